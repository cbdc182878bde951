"""How foreign the rows of an audit are, and what a known-foreign set shows of the detectors.

Every set is scored once in every part of :mod:`vicinal.confidence.familiarity`; each fold ranks its
rows among the held-out rows it may look at. Where a foreign set is given, half of it may choose
another combination of the parts, and everything that is reported is measured on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits.heads import Fold
from vicinal.audits.model_unknowns import model_parts
from vicinal.audits.sections import UnknownPart, Unknowns
from vicinal.confidence.familiarity import (
    ANCHORS,
    COMBINED,
    PARTS,
    Familiarity,
    Surroundings,
    enough,
    part_columns,
)
from vicinal.confidence.held_out_familiarity import cross_fitted_scores
from vicinal.confidence.ned.posterior import best_class
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.verdicts import SUPPORTED, VERDICTS, judge, standards_of
from vicinal.evaluation import auroc, fpr_at_tpr

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts
    from vicinal.confidence.verdicts import Judged, Standards

SURELY = 2.0  # standard errors by which another combination must be better


class Reference(NamedTuple):
    """What past experience suggests: shares of foreign rows that are not called unfamiliar."""

    pairs: int
    median: float
    mean: float
    high: float
    source: str = "benchmarks/results/are_unknowns_found.json"


REFERENCE = Reference(26, 0.051, 0.231, 0.914)


@dataclass(frozen=True, eq=False)
class Foreignness:
    """Scores (n, p) in every part; ``held`` are those of rows that nothing was fitted on."""

    query: Float[Tensor, "m p"]
    held: Float[Tensor, "h p"] | None  # calibration rows, or support rows left out in turn
    foreign: Float[Tensor, "f p"] | None
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
        return Foreignness(query, query[parts.held_out(ANCHORS)], foreign, _new_to_the_map(facts))
    query = parts.scores(sets.query.rows, facts.neighborhood, parameters)
    held_out, rate = facts.split.held_out, facts.settings.unfamiliar
    fewest = min(len(fold.evidence) for fold in facts.split.folds)
    if held_out.points is not None and enough(fewest, rate):
        held = parts.scores(held_out.points, held_out.neighborhood, parameters)
    elif held_out.leave_one_out or not enough(fewest, rate):
        held = _new_to_the_map(facts)
        if held is None:
            held = parts.left_out(parts.held_out(ANCHORS), facts.graph, parameters)
    return Foreignness(query, held, foreign)


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


def familiarity_of(facts: Facts, fold: Fold | None = None) -> Familiarity:
    """The ranks of a fold, or of the head to keep."""
    held = held_out_scores(facts, fold)
    return Familiarity.of(held, facts.settings.unfamiliar, facts.combination)


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
    if scores.foreign is None or len(scores.foreign) < 4:
        return COMBINED
    inside, outside = held_out_scores(facts), scores.foreign[halves(facts)[0]]
    best: tuple[str, ...] = COMBINED
    usual, gain = _separation(inside, outside, COMBINED), 0.0
    for parts in (tuple(PARTS), *((name,) for name in PARTS)):
        more = [mine - theirs for mine, theirs in zip(
            _separation(inside, outside, parts), usual, strict=True
        )]  # fmt: skip
        error = sum(float(part.var()) / len(part) for part in more) ** 0.5
        better = float(more[1].mean())
        if better > gain and better > SURELY * error:
            best, gain = parts, better
    return best


def _separation(
    inside: Float[Tensor, "i p"], outside: Float[Tensor, "o p"], parts: tuple[str, ...]
) -> tuple[Float[Tensor, " i"], Float[Tensor, " o"]]:
    """For each row the share of the other side that it is rightly told from; the mean is AUROC."""
    ranks = Familiarity.of(inside, 0.05, parts)
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
    standards = facts.standards
    codes = foreign_judged(facts, standards).codes[rows]
    used = facts.combination
    assert standards.familiarity is not None
    own, theirs = facts.verdicts.familiarity[ordinary], standards.familiarity.p_values(outside)
    parts = (*_auroc_and_fpr(-own, -theirs), float((theirs <= rate).double().mean()))
    lines = [UnknownPart("combination", "combination", *parts, True)]
    for name, title in PARTS.items():
        (at,) = part_columns((name,))
        alone = Familiarity.of(held, rate, (name,)).p_values(outside)
        flagged = float((alone <= rate).double().mean())
        parts = (*_auroc_and_fpr(inside[:, at], outside[:, at]), flagged)
        lines.append(UnknownPart(name, title, *parts, name in used))
    lines += model_parts(facts, rows, ordinary)
    counts = torch.bincount(codes, minlength=len(VERDICTS)).tolist()
    return Unknowns(
        rate=rate,
        flagged=float((own <= rate).double().mean()),
        ordinary=len(ordinary),
        foreign=sets.foreign.facts(),
        rows=len(rows),
        parts=tuple(lines),
        combination=used,
        how=_how(used, len(scores.foreign) - len(rows), len(rows)),
        verdicts=dict(zip(VERDICTS, counts, strict=True)),
        supported=counts[SUPPORTED] / len(rows),
    )


def kept_standards(facts: Facts) -> Standards:
    """Those of the head to keep: all held-out rows, the audit's own threshold."""
    promise = facts.threshold, facts.promise.target, familiarity_of(facts)
    return standards_of(facts.split.held_out, facts.ned.parameters_, *promise)


def foreign_judged(facts: Facts, standards: Standards) -> Judged:
    """What the head to keep says of the foreign rows."""
    assert facts.foreign is not None
    near = facts.foreign.double()
    if isinstance(facts.kept, NEDLinear):
        assert facts.sets.foreign is not None
        log_probs = facts.kept.log_probs_of(near, facts.sets.foreign.as_given)
    else:
        log_probs = facts.kept.log_probs_of(near)
    best = best_class(log_probs, near)
    sure = log_probs.gather(1, best[:, None])[:, 0].exp()
    scores = facts.foreignness.foreign
    return judge(near, best, sure, facts.ned.parameters_, standards, None, scores)


def _auroc_and_fpr(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    return auroc(inside, outside), fpr_at_tpr(inside, outside)


def _how(used: tuple[str, ...], chosen_on: int, reported_on: int) -> str:
    where = f"reported on the {reported_on:,} foreign rows that chose nothing"
    if used == COMBINED:
        return f"the usual combination; nothing was surely better on {chosen_on:,} rows; {where}"
    names = "all parts" if used == tuple(PARTS) else PARTS[used[0]]
    return f"{names}, surely better than the usual combination on {chosen_on:,} rows; {where}"


def untested() -> str:
    """What can be said of unknown inputs where no foreign set was given."""
    sentence = "no known-foreign set was given (--foreign): the hit rate is not tested"
    return (
        f"{sentence}. In {REFERENCE.pairs} reference pairs of sets {100 * REFERENCE.mean:.0f} % of "
        f"the foreign rows slipped through (median {100 * REFERENCE.median:.0f} %; up to "
        f"{100 * REFERENCE.high:.0f} % where they were much like the support)"
    )
