"""Which support labels are wrong, how many, and what would mending them change?

Every row is scored by :func:`vicinal.confidence.label_noise.label_noise` from its leave-one-out
probabilities; as many as are estimated to be wrong are suspects, most suspicious first. Labels an
embedding has memorized and a class that is wrong as a whole stay unseen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
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
    WrongLabels,
    WrongPair,
)
from vicinal.audits.record import significant
from vicinal.confidence.blend import blended_log_probs, product_log_probs
from vicinal.confidence.label_noise import AMBIGUOUS, LabelNoise, label_noise
from vicinal.confidence.ned.effects import label_effects
from vicinal.confidence.ned.posterior import BLOCK, best_class, ned_log_probs, neighbor_log_weights
from vicinal.labels import UNKNOWN, log_class_shares
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

SHOWN_NEIGHBORS = 20
SHOWN_PAIRS = 50
FEW_NAMED = 0.5  # below it a head that understands little cannot be told from wrong labels


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
    facts: Facts, rows: Int[Tensor, " r"], log_ned: Float[Tensor, "r c"]
) -> Float[Tensor, "r c"]:
    """Of support rows' classes, by neighbors and a linear head that have not seen their labels.

    Floors are even, not the class shares: a rare class is no reason to suspect a label.
    """
    if facts.support_blend is None:
        return log_ned
    count = len(facts.sets.classes)
    even = torch.full((count,), -math.log(count), dtype=torch.float64)
    return product_log_probs(log_ned, facts.linear.support[rows], even, facts.support_blend)


def scored_labels(log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> ScoredLabels:
    """From log-probabilities that did not look at the row's own label, of whatever head."""
    noise = label_noise(log_probs, codes)
    given, suggested = log_probs.gather(1, torch.stack([codes, noise.suggested], 1)).exp().T
    named = float((log_probs.argmax(1) == codes).double().mean())
    return ScoredLabels(noise, given, suggested, named)


def label_audit(facts: Facts) -> LabelAudit:
    """Every label's score, how many are wrong, and the suspects with the effect of mending them."""
    found = facts.labels
    warn_of_few_named(found)
    effects = effects_of(facts, facts.sets.codes, found.suspects, found.suggested)
    return LabelAudit(
        checked=len(facts.sets.codes),
        how=facts.labels_by,
        suspects=tuple(_suspects(facts)),
        effects=tuple(effects) if len(found.suspects) else (),
        rows=_rows(facts),
        wrong=wrong_of(found.noise),
        alike=alike_of(found.noise),
        ambiguous=Ambiguous(AMBIGUOUS, tuple(found.noise.ambiguous.nonzero().flatten().tolist())),
    )


def warn_of_few_named(found: ScoredLabels) -> None:
    if found.named < FEW_NAMED:
        warn(
            f"the neighbors name the given label of only {100 * found.named:.0f} % of the support "
            "rows: suspects and their number say more about the embedding than about the labels."
        )


def _suspects(facts: Facts) -> Iterator[Suspect]:
    """The flagged rows, with the neighbors that speak against them and their effect on the query.

    The effects are the neighbor head's own, exact.
    """
    found, rows = facts.labels, facts.labels.suspects
    if not len(rows):
        return
    near = facts.graph.rows(rows)
    depth: dict[int, float] = {}
    if facts.model is not None:
        layers, count = facts.model.support_neighborhoods, len(facts.sets.classes)
        depth = depth_agreement(layers, facts.sets.codes, rows, count)
    weights = neighbor_log_weights(near.double(), facts.ned.parameters_).softmax(1)
    affected = label_effects(facts.ned, facts.neighborhood, rows, found.suggested).changed
    shown = near.first(SHOWN_NEIGHBORS)
    columns: dict[str, Sequence[Any]] = {
        "row": rows.tolist(),
        "id": facts.support_names(rows.tolist()),
        "given": facts.sets.codes[rows].tolist(),
        "suggested": found.suggested.tolist(),
        "p_given": found.p_given[rows].tolist(),
        "p_suggested": found.p_suggested[rows].tolist(),
        "affected": affected.tolist(),
        "neighbors": shown.indices.tolist(),
        "weights": weights[:, :SHOWN_NEIGHBORS].tolist(),
        "distances": shown.distances.tolist(),
        "depth_agreement": [depth.get(row) for row in rows.tolist()],
        "score": found.noise.scores[rows].tolist(),
    }
    for line in zip(*columns.values(), strict=True):
        yield Suspect(**dict(zip(columns, line, strict=True)))


def _rows(facts: Facts) -> LabelRows:
    found = facts.labels
    return LabelRows(
        id=facts.support_names(range(len(facts.sets.codes))),
        given=tuple(facts.sets.codes.tolist()),
        suggested=tuple(found.noise.suggested.tolist()),
        score=tuple(found.noise.scores.tolist()),
        p_given=tuple(significant(found.p_given).tolist()),
        p_suggested=tuple(significant(found.p_suggested).tolist()),
    )


def alike_of(noise: LabelNoise) -> tuple[AlikeClasses, ...]:
    return tuple(AlikeClasses(a, b, round(apart, 6)) for a, b, apart in noise.alike)


def wrong_of(noise: LabelNoise) -> WrongLabels:
    """The estimate as whole labels; class pairs with one wrong label or more, the most first."""
    count, low, high, by_pair = noise.wrong
    places = (by_pair[:, :, 0] >= 0.5).nonzero().tolist()
    places.sort(key=lambda place: -float(by_pair[*place, 0]))
    pairs = (WrongPair(j, k, *by_pair[j, k].round(decimals=2).tolist()) for j, k in places)
    how = (
        "from what remains if all that fades for unlike rows is overlap, to every confident "
        "contradiction (confident joint), each widened by 1.96 standard errors; the estimate lies "
        "between"
    )
    few = tuple(itertools.islice(pairs, SHOWN_PAIRS))
    return WrongLabels(round(count), math.floor(low), math.ceil(high), how, few)


def effects_of(
    facts: Facts,
    codes: Int[Tensor, " n"],
    suspects: Int[Tensor, " s"],
    suggested: Int[Tensor, " s"],
) -> Iterator[Effect]:
    """Accepting the first 10, 50, 200 or all suggestions together: the answers of the kept head.

    Out of fold, as they are scored: accuracy before is the head's own. Where the kept head is
    linear alone, the neighbors' answers are told of. Without a query the support's own rows are
    judged, each by the others (leave-one-out) and against the label it was given. ``codes`` are
    those of all support rows.
    """
    query, total = facts.sets.query, len(suspects)
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
        yield Effect(
            top=top,
            changed=changed,
            fixed=int((~right & then_right).sum()),
            broken=int((right & ~then_right).sum()),
            accuracy_before=float(right.double().mean()),
            accuracy_after=float(then_right.double().mean()),
            head=head,
        )


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


def depth_agreement(
    layers: dict[str, Neighborhood],
    codes: Int[Tensor, " n"],
    rows: Int[Tensor, " s"],
    num_classes: int,
) -> dict[int, float]:
    """For each suspect, the share of layers whose plain vote is not for the given label.

    An embedding that has memorized a wrong label has neighbors that agree with it; earlier layers
    do not.
    """
    if not layers:
        return {}
    against = torch.zeros(len(rows), dtype=torch.float64)
    for neighborhood in layers.values():
        near = neighborhood.labels[rows]
        votes = torch.zeros(len(rows), num_classes).scatter_add_(1, near, torch.ones(near.shape))
        against += votes.argmax(1) != codes[rows]
    return dict(zip(rows.tolist(), (against / len(layers)).tolist(), strict=True))
