"""Which support labels are wrong, how many, and what would mending them change?

Every row is scored by :func:`vicinal.confidence.label_noise.label_noise` from its leave-one-out
probabilities; as many as are estimated to be wrong are suspects, most suspicious first. Labels an
embedding has memorized and a class that is wrong as a whole stay unseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vicinal.audits.inputs import warn
from vicinal.audits.label_records import (
    AlikeClasses,
    Ambiguous,
    Effect,
    LabelAudit,
    LabelRows,
    Suspect,
    WrongCount,
    WrongPair,
)
from vicinal.audits.model import votes
from vicinal.audits.record import significant
from vicinal.confidence.blend import Blend, blended_log_probs, product_log_probs
from vicinal.confidence.label_noise import AMBIGUOUS, FEW_NAMED, LabelNoise, label_noise
from vicinal.confidence.ned.effects import label_effects
from vicinal.confidence.ned.posterior import BLOCK, best_class, ned_log_probs, neighbor_log_weights
from vicinal.labels import UNKNOWN, log_class_shares

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

SHOWN_NEIGHBORS = 20
SHOWN_PAIRS = 50


class ScoredLabels(NamedTuple):
    """Every support label judged; ``suspects`` are rows, most suspicious first."""

    noise: LabelNoise
    p_given: Float[Tensor, " n"]
    p_suggested: Float[Tensor, " n"]
    named: float  # share of rows whose given label is the likeliest

    @property
    def suspects(self) -> Int[Tensor, " s"]:
        return self.noise.flagged

    @property
    def suggested(self) -> Int[Tensor, " s"]:
        return self.noise.suggested[self.noise.flagged]


def class_log_probs(
    log_ned: Float[Tensor, "r c"], log_linear: Float[Tensor, "r c"], blend: Blend | None
) -> Float[Tensor, "r c"]:
    """Of support rows' classes, by neighbors and a linear head that have not seen their labels.

    Floors are even, not the class shares: a rare class is no reason to suspect a label.
    """
    if blend is None:
        return log_ned
    count = log_ned.shape[1]
    even = torch.full((count,), -math.log(count), dtype=torch.float64)
    return product_log_probs(log_ned, log_linear, even, blend)


def scored_labels(log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> ScoredLabels:
    """From log-probabilities that did not look at the row's own label, of whatever head."""
    noise = label_noise(log_probs, codes)
    given, suggested = log_probs.gather(1, torch.stack([codes, noise.suggested], 1)).exp().T
    named = float((log_probs.argmax(1) == codes).double().mean())
    return ScoredLabels(noise, given, suggested, named)


class JudgedLabels(NamedTuple):
    """What the record holds of single labels: suspects by column, every row, the ambiguous rows."""

    suspects: dict[str, list[Any]]
    rows: LabelRows | None
    ambiguous: tuple[int, ...]


def label_audit(facts: Facts) -> LabelAudit:
    """Every label's score, how many are wrong, and the suspects with the effect of mending them."""
    found, judged, count = facts.labels, facts.judged_labels, facts.sets.support.count
    if found.named < FEW_NAMED:
        warn(
            f"the neighbors name the given label of only {100 * found.named:.0f} % of the support "
            "rows: suspects and their number say more about the embedding than about the labels."
        )
    columns, effects = judged.suspects, tuple[Effect, ...]()
    rows, new = (torch.tensor(columns[name], dtype=torch.long) for name in ("row", "suggested"))
    if len(rows):  # effects on single answers are the neighbors' own, exact
        affected = label_effects(facts.ned, facts.neighborhood, rows, new).changed
        columns = columns | {"affected": affected.tolist()}
        effects = tuple(effects_of(facts, rows, new))
    lines = zip(*columns.values(), strict=True)
    return LabelAudit(
        checked=count,
        how=facts.labels_by,
        suspects=tuple(Suspect(**dict(zip(columns, line, strict=True))) for line in lines),
        effects=effects,
        rows=judged.rows,
        wrong=wrong_of(found.noise, count / len(facts.sets.codes), count),
        alike=tuple(AlikeClasses(a, b, round(apart, 6)) for a, b, apart in found.noise.alike),
        ambiguous=Ambiguous(AMBIGUOUS, judged.ambiguous),
    )


def judged_labels(facts: Facts) -> JudgedLabels:
    """The flagged rows with the neighbors that speak against them, and every row's score."""
    found, codes, rows = facts.labels, facts.sets.codes, facts.labels.suspects
    near = facts.graph.rows(rows)
    weights = neighbor_log_weights(near.double(), facts.ned.parameters_).softmax(1)
    shown = near.first(SHOWN_NEIGHBORS)
    suspects: dict[str, list[Any]] = {
        "row": rows.tolist(),
        "id": list(facts.support_names(rows.tolist())),
        "given": codes[rows].tolist(),
        "suggested": found.suggested.tolist(),
        "p_given": found.p_given[rows].tolist(),
        "p_suggested": found.p_suggested[rows].tolist(),
        "neighbors": shown.indices.tolist(),
        "weights": weights[:, :SHOWN_NEIGHBORS].tolist(),
        "distances": shown.distances.tolist(),
        "depth_agreement": depth_agreement(facts, rows),
        "score": found.noise.scores[rows].tolist(),
    }
    every = LabelRows(
        id=facts.support_names(range(len(codes))),
        given=tuple(codes.tolist()),
        suggested=tuple(found.noise.suggested.tolist()),
        score=tuple(found.noise.scores.tolist()),
        p_given=tuple(significant(found.p_given).tolist()),
        p_suggested=tuple(significant(found.p_suggested).tolist()),
    )
    return JudgedLabels(suspects, every, tuple(found.noise.ambiguous.nonzero().flatten().tolist()))


def wrong_of(noise: LabelNoise, scale: float, rows: int) -> WrongCount:
    """The estimate as whole labels; class pairs with one wrong label or more, the most first.

    Where it was made on a sample of the ``rows``, counts are scaled to all of them.
    """
    count, low, high, by_pair = noise.wrong
    places = (by_pair[:, :, 0] >= 0.5).nonzero().tolist()
    places.sort(key=lambda place: -float(by_pair[*place, 0]))
    rounded = by_pair.round(decimals=2) * scale
    pairs = tuple(WrongPair(j, k, *rounded[j, k].tolist()) for j, k in places[:SHOWN_PAIRS])
    how = (
        "from what remains if all that fades for unlike rows is overlap (nothing, where less than "
        "half of the labels are named) to every confident contradiction (confident joint), widened "
        "by 1.96 standard errors; the estimate is the higher, the more rows the head is sure of"
    )
    count, low, high = round(count), math.floor(low), math.ceil(high)
    if scale > 1:
        how = f"estimated on a sample of the rows and scaled to all {rows:,}: {how}"
        high = min(math.ceil(high * scale), rows)
    return WrongCount(round(count * scale), math.floor(low * scale), high, how, pairs)


def effects_of(
    facts: Facts, suspects: Int[Tensor, " s"], suggested: Int[Tensor, " s"]
) -> Iterator[Effect]:
    """Accepting the first 10, 50, 200 or all suggestions together: the answers of the kept head.

    Out of fold, as they are scored: accuracy before is the head's own. Where the kept head is
    linear alone, the neighbors' answers are told of. Without a query the support's own rows are
    judged, each by the others (leave-one-out) and against the label it was given.
    """
    query, codes, total = facts.sets.query, facts.sets.all_codes, len(suspects)
    head = facts.shown if facts.shown in ("ned", "ned_fitted", "ned_linear") else "ned_fitted"
    before = facts.answers[head].predicted
    for top in sorted({n for n in (10, 50, 200) if n < total} | {total}):
        mended = codes.clone()
        mended[suspects[:top]] = suggested[:top]
        after = _mended(facts, head, mended, mended != codes)
        changed = int((before != after).sum())
        if query.codes is None or not query.labeled:
            yield Effect(top, changed, None, None, None, None, head)
            continue
        known = query.codes >= UNKNOWN
        right, then_right = (before == query.codes)[known], (after == query.codes)[known]
        moved = int((~right & then_right).sum()), int((right & ~then_right).sum())
        accuracy = float(right.double().mean()), float(then_right.double().mean())
        yield Effect(top, changed, *moved, *accuracy, head)


def _mended(
    facts: Facts, head: str, mended: Int[Tensor, " n"], edited: Bool[Tensor, " n"]
) -> Int[Tensor, " m"]:
    """What ``head`` would say, fold by fold, if the edited support rows had the other labels."""
    answer, task = facts.answers[head], facts.task
    after, count = answer.predicted.clone(), task.num_classes
    log_prior = log_class_shares(task.codes, count, leave_one_out=task.alone)
    for at, (fold, parameters) in enumerate(zip(task.folds, answer.parameters, strict=True)):
        blocks = zip(fold.scored.split(BLOCK), fold.neighborhood.blocks(BLOCK), strict=True)
        for scored, near in blocks:
            touched = edited[near.indices].any(1).nonzero().flatten()  # no other row changes
            if not len(touched):
                continue
            rows, other = scored[touched], near.rows(touched).labeled(mended)
            log_probs = ned_log_probs(other, count, parameters)
            if answer.blends and task.linear is not None:
                prior = log_prior[rows] if task.alone else log_prior
                parts = log_probs, task.linear.query[rows], prior, answer.blends[at]
                log_probs = blended_log_probs(*parts)
            after[rows] = best_class(log_probs, other)
    return after


def depth_agreement(facts: Facts, rows: Int[Tensor, " s"]) -> list[float] | list[None]:
    """For each suspect, the share of layers whose plain vote is not for the given label.

    An embedding that has memorized a wrong label has neighbors that agree with it; earlier layers
    do not.
    """
    layers = {} if facts.model is None else facts.model.support_neighborhoods
    if not layers:
        return [None] * len(rows)
    against = torch.zeros(len(rows), dtype=torch.float64)
    for neighborhood in layers.values():
        voted = votes(neighborhood.rows(rows), len(facts.sets.classes)).argmax(1)
        against += voted != facts.sets.codes[rows]
    return (against / len(layers)).tolist()
