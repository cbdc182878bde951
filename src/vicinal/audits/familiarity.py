"""How foreign the rows of an audit are, and what a known-foreign set shows of the detectors.

Every set is scored once in every part of :mod:`vicinal.confidence.familiarity`; each fold ranks its
rows among the held-out rows it may look at. Where a foreign set is given, half of it may choose
another combination of the parts, and everything that is reported is measured on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits.heads import Fold
from vicinal.audits.model import TITLES, ModelScores
from vicinal.audits.sections import UnknownPart, Unknowns
from vicinal.confidence.familiarity import (
    ANCHORS,
    COMBINED,
    PARTS,
    Familiarity,
    Surroundings,
    cross_fitted_scores,
    enough,
)
from vicinal.confidence.ned.posterior import best_class
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.verdicts import SUPPORTED, VERDICTS, judge, standards_of
from vicinal.evaluation import auroc, fpr_at_tpr
from vicinal.labels import at_codes

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts
    from vicinal.audits.inputs import Sets
    from vicinal.confidence.verdicts import Judged, Standards

SURELY = 2.0  # standard errors by which another combination must be better


class Reference(NamedTuple):
    """What past experience suggests: shares of foreign rows that are not called unfamiliar."""

    pairs: int
    median: float
    mean: float
    high: float
    source: str = "benchmarks/results/are_unknowns_found.json"


REFERENCE = Reference(26, 0.05, 0.229, 0.913)


@dataclass(frozen=True, eq=False)
class Foreignness:
    """Scores (n, p) in every part; ``held`` are those of rows that nothing was fitted on."""

    query: Float[Tensor, "m p"]
    held: Float[Tensor, "h p"] | None  # calibration rows, or support rows left out in turn
    foreign: Float[Tensor, "f p"] | None
    titles: dict[str, str]  # of the columns by name; those of a model after those of the head
    kept: Float[Tensor, "h p"] | None = None  # for the head to keep, where its map saw ``held``


def foreignness(facts: Facts) -> Foreignness:
    """Every set in every part; support rows as if each were new."""
    sets, parameters = facts.sets, facts.ned.parameters_
    parts = Surroundings.fit(sets.support.rows, sets.codes)
    held = foreign = None
    if sets.foreign is not None and facts.foreign is not None:
        foreign = parts.scores(sets.foreign.rows, facts.foreign, parameters)
    if sets.leave_one_out:
        query = parts.left_out(torch.arange(len(sets.codes)), facts.graph, parameters)
        held = query[parts.held_out(ANCHORS)]
        return Foreignness(query, held, foreign, PARTS, _new_to_the_map(facts))
    query = parts.scores(sets.query.rows, facts.neighborhood, parameters)
    held_out, rate = facts.split.held_out, facts.settings.unfamiliar
    fewest = min(len(fold.evidence) for fold in facts.split.folds)
    if held_out.points is not None and enough(fewest, rate):
        held = parts.scores(held_out.points, held_out.neighborhood, parameters)
    elif held_out.leave_one_out or not enough(fewest, rate):
        held = _new_to_the_map(facts)
        if held is None:
            held = parts.left_out(parts.held_out(ANCHORS), facts.graph, parameters)
        return Foreignness(query, held, foreign, PARTS)  # no held-out rows to rank layers among
    found = Foreignness(query, held, foreign, PARTS)
    return found if facts.model is None else _with_model(found, facts.model.unknowns, sets)


def _with_model(scores: Foreignness, model: ModelScores | None, sets: Sets) -> Foreignness:
    """The same with the columns of a model's layers and logits, where there are any."""
    if model is None or not model.titles:
        return scores

    def both(own: Tensor | None, name: str) -> Tensor | None:
        if own is None:
            return None
        rows = model.rows[name]
        if name == "calib" and sets.calib is not None and sets.calib.codes is not None:
            rows = rows[sets.calib.codes >= 0]
        return torch.cat([own, rows], 1)

    held, foreign = both(scores.held, "calib"), both(scores.foreign, "foreign")
    query = both(scores.query, "query")
    assert query is not None
    return Foreignness(query, held, foreign, PARTS | model.titles)


def _new_to_the_map(facts: Facts) -> Float[Tensor, "h p"] | None:
    """Of support rows by maps that did not see them; None where the map saw no labels."""
    if facts.support.crossed is None:
        return None
    return cross_fitted_scores(facts.support, facts.neighborhood.k, facts.ned.parameters_)


def ordinary_rows(facts: Facts, among: Int[Tensor, " r"] | None = None) -> Int[Tensor, " r"]:
    """Query rows of a class the support has; all, where the query has no labels."""
    codes = facts.sets.query.codes
    rows = torch.arange(len(facts.foreignness.query)) if among is None else among
    return rows if codes is None else rows[codes[rows] >= 0]


def held_out_scores(facts: Facts, fold: Fold | None = None) -> Float[Tensor, "h p"]:
    """Of the rows that a fold (or, without one, the head to keep) may be ranked among."""
    scores = facts.foreignness
    if fold is None and scores.kept is not None:
        return scores.kept
    if scores.held is not None:
        return scores.held
    return scores.query[ordinary_rows(facts, None if fold is None else fold.fitted_on)]


def familiarity_of(facts: Facts, fold: Fold | None = None, saved: bool = False) -> Familiarity:
    """The ranks of a fold, or (None) of all held-out rows; ``saved``: as a saved head can tell.

    A saved head sees embeddings alone: of the parts of the combination those that it can compute,
    and the usual ones where it can compute none.
    """
    rate, columns = facts.settings.unfamiliar, tuple(facts.foreignness.titles)
    parts = kept_parts(facts.combination) if saved else facts.combination
    return Familiarity.of(held_out_scores(facts, fold), rate, parts, columns)


def by_saved_head(facts: Facts) -> Float[Tensor, " m"]:
    """What query rows get, out of fold, by the parts that a saved head can compute."""
    found = facts.verdicts.familiarity.clone()
    for fold in facts.split.folds:
        ranked = familiarity_of(facts, fold, saved=True)
        found[fold.scored] = ranked.p_values(facts.foreignness.query[fold.scored])
    return found


def kept_parts(combination: tuple[str, ...]) -> tuple[str, ...]:
    """Those that a saved head goes by."""
    return tuple(name for name in combination if name in PARTS) or COMBINED


def familiar_by(facts: Facts) -> str:
    """What *unfamiliar* goes by in an audit of a model, and in the head that it saves."""
    used = facts.combination
    own = [name for name in used if name not in PARTS]
    if not own:
        return ""
    layers = [name.removeprefix("layer:") for name in own if name not in TITLES]
    said = [TITLES[name].split(":")[0] for name in own if name in TITLES]
    said += [f"distances in layers {', '.join(layers)}"] if layers else []
    head = len(kept_parts(used))
    return (
        f"The verdict unfamiliar combines {len(used)} scores here, {len(own)} of them the model's: "
        f"{'; '.join(said)}. The saved head sees embeddings alone and combines {head}."
    )


def halves(facts: Facts) -> tuple[Tensor, Tensor]:
    """Of the foreign rows: those that choose the combination, and those it is reported on."""
    assert facts.foreignness.foreign is not None
    rng = np.random.default_rng(facts.settings.seed)
    order = torch.from_numpy(rng.permutation(len(facts.foreignness.foreign)))
    cut = len(order) // 2
    return order[:cut], order[cut:]


def combination_of(facts: Facts) -> tuple[str, ...]:
    """The parts that are combined: the usual ones, unless half of a foreign set says otherwise."""
    scores = facts.foreignness
    every = tuple(scores.titles)
    best = usual_parts(every)
    if scores.foreign is None or len(scores.foreign) < 4:
        return best
    inside, outside = held_out_scores(facts), scores.foreign[halves(facts)[0]]
    usual, gain = _separation(inside, outside, best, every), 0.0
    for parts in (every, *((name,) for name in every)):
        told = _separation(inside, outside, parts, every)
        more = [mine - theirs for mine, theirs in zip(told, usual, strict=True)]
        error = sum(float(part.var()) / len(part) for part in more) ** 0.5
        better = float(more[1].mean())
        if better > gain and better > SURELY * error:
            best, gain = parts, better
    return best


def usual_parts(every: tuple[str, ...]) -> tuple[str, ...]:
    """Where nothing foreign was seen: a head's usual parts, and all that a model has."""
    return (*COMBINED, *(name for name in every if name not in PARTS))


def _separation(
    inside: Float[Tensor, "i p"],
    outside: Float[Tensor, "o p"],
    parts: tuple[str, ...],
    columns: tuple[str, ...],
) -> tuple[Float[Tensor, " i"], Float[Tensor, " o"]]:
    """For each row the share of the other side that it is rightly told from; the mean is AUROC."""
    ranks = Familiarity.of(inside, 0.05, parts, columns)
    low, high = ranks.p_values(outside), ranks.p_values(inside)
    return _above(low, high), 1 - _above(high, low)


def _above(others: Float[Tensor, " o"], values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The share of ``others`` below each value, ties half."""
    ascending = others.sort().values
    left = torch.searchsorted(ascending, values)
    right = torch.searchsorted(ascending, values, right=True)
    return (left + right).double() / (2 * len(others))


def unknowns_of(facts: Facts) -> Unknowns | None:
    """Each part and the combination on the half of the foreign set that chose nothing."""
    sets, scores = facts.sets, facts.foreignness
    if sets.foreign is None or scores.foreign is None:
        return None
    rows, ordinary = halves(facts)[1], ordinary_rows(facts)
    held, rate = held_out_scores(facts), facts.settings.unfamiliar
    inside, outside = scores.query[ordinary], scores.foreign[rows]
    judged, used, every = foreign_judged(facts), facts.combination, tuple(scores.titles)
    assert judged.familiarity is not None
    own, theirs = facts.verdicts.familiarity[ordinary], judged.familiarity[rows]
    parts = (*_auroc_and_fpr(-own, -theirs), float((theirs <= rate).double().mean()))
    lines = [UnknownPart("combination", "combination", *parts, True)]
    for at, (name, title) in enumerate(scores.titles.items()):
        alone = Familiarity.of(held, rate, (name,), every).p_values(outside)
        flagged = float((alone <= rate).double().mean())
        parts = (*_auroc_and_fpr(inside[:, at], outside[:, at]), flagged)
        lines.append(UnknownPart(name, title, *parts, name in used))
    counts = torch.bincount(judged.codes[rows], minlength=len(VERDICTS)).tolist()
    return Unknowns(
        rate=rate,
        flagged=float((own <= rate).double().mean()),
        ordinary=len(ordinary),
        foreign=sets.foreign.facts(),
        rows=len(rows),
        parts=tuple(lines),
        combination=used,
        how=_how(used, scores.titles, len(scores.foreign) - len(rows), len(rows)),
        verdicts=dict(zip(VERDICTS, counts, strict=True)),
        supported=counts[SUPPORTED] / len(rows),
    )


def kept_standards(facts: Facts) -> Standards:
    """Those of the head to keep: all held-out rows, the audit's own threshold."""
    promise = facts.threshold, facts.promise.target, familiarity_of(facts, saved=True)
    return standards_of(facts.split.held_out, facts.ned.parameters_, *promise)


def foreign_judged(facts: Facts) -> Judged:
    """What the head to keep says of the foreign rows, with a model's own parts of familiarity."""
    assert facts.foreign is not None
    standards = replace(facts.standards, familiarity=familiarity_of(facts))
    near = facts.foreign.double()
    if isinstance(facts.kept, NEDLinear):
        assert facts.sets.foreign is not None
        log_probs = facts.kept.log_probs_of(near, facts.sets.foreign.as_given)
    else:
        log_probs = facts.kept.log_probs_of(near)
    best = best_class(log_probs, near)
    sure = at_codes(log_probs, best).exp()
    scores = facts.foreignness.foreign
    return judge(near, best, sure, facts.ned.parameters_, standards, None, scores)


def _auroc_and_fpr(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    return auroc(inside, outside), fpr_at_tpr(inside, outside)


def _how(used: tuple[str, ...], titles: dict[str, str], chosen_on: int, reported_on: int) -> str:
    where = f"the table is of the other {reported_on:,} foreign rows"
    if used == usual_parts(tuple(titles)):
        return f"the usual combination: nothing was surely better on {chosen_on:,} rows; {where}"
    names = "all scores" if used == tuple(titles) else titles[used[0]]
    return f"{names}, surely better than the usual combination on {chosen_on:,} rows; {where}"


def untested() -> str:
    """What can be said of unknown inputs where no foreign set was given."""
    return (
        "no known-foreign set was given (--foreign), so the hit rate is not known. In "
        f"{REFERENCE.pairs} reference pairs of sets {100 * REFERENCE.mean:.0f} % of the foreign "
        f"rows slipped through (median {100 * REFERENCE.median:.0f} %; up to "
        f"{100 * REFERENCE.high:.0f} % where they were much like the support)"
    )
