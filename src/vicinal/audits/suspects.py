"""Which support labels does the neighborhood contradict, and what would mending them change?

A row is suspect when the others, asked leave-one-out, name another class and name it as surely as
they usually name rows of that class: p(suggested) is at least the mean leave-one-out probability
that rows labeled so get for their own label (the class thresholds of confident learning, Northcutt
et al. 2021). Most suspicious first: the margin p(suggested) - p(given). The rule is blind to labels
an embedding has memorized and to a class that is wrong as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits.record import Effect, LabelAudit, Suspect
from vicinal.confidence.ned.effects import label_effects, relabeled
from vicinal.confidence.ned.posterior import (
    best_class,
    neighbor_log_weights,
)
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

SHOWN_NEIGHBORS = 20


class Contradictions(NamedTuple):
    """Positions of suspect support rows, most suspicious first, and what speaks against them."""

    rows: Int[Tensor, " s"]
    suggested: Int[Tensor, " s"]
    p_given: Float[Tensor, " s"]
    p_suggested: Float[Tensor, " s"]


def contradictions(p: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> Contradictions:
    """Suspect rows of a support, by its leave-one-out probabilities; not classes of one row."""
    num_classes = p.shape[1]
    own = p.gather(1, codes[:, None])[:, 0]
    counts = torch.bincount(codes, minlength=num_classes)
    usual = torch.zeros(num_classes, dtype=p.dtype).index_add_(0, codes, own)
    usual = usual / counts.clamp_min(1)
    others = p.scatter(1, codes[:, None], -1.0)
    best = others.argmax(1)
    top = others.gather(1, best[:, None])[:, 0]
    found = (top > own) & (top >= usual[best]) & (counts[codes] > 1)
    rows = found.nonzero().flatten()
    order = torch.argsort(top[rows] - own[rows], descending=True, stable=True)
    rows = rows[order]
    return Contradictions(rows, best[rows], own[rows], top[rows])


def label_audit(facts: Facts) -> LabelAudit:
    """The suspects as a record, with the exact effect on the query of each and of the first few."""
    found, checked = facts.suspects, len(facts.sets.codes)
    how = facts.labels_by
    if not len(found.rows):
        return LabelAudit(checked, how, ())
    near = facts.graph.rows(found.rows)
    depth: dict[int, float] = {}
    if facts.model is not None:
        layers, count = facts.model.support_neighborhoods, len(facts.sets.classes)
        depth = depth_agreement(layers, facts.sets.codes, found.rows, count)
    weights = neighbor_log_weights(near.double(), facts.ned.parameters_).softmax(1)
    affected = label_effects(facts.ned, facts.neighborhood, found.rows, found.suggested).changed
    rows, ids, shown = found.rows.tolist(), facts.support_ids, near.first(SHOWN_NEIGHBORS)
    columns: dict[str, list[Any]] = {
        "row": rows,
        "id": [ids[row] for row in rows],
        "given": facts.sets.codes[found.rows].tolist(),
        "suggested": found.suggested.tolist(),
        "p_given": found.p_given.tolist(),
        "p_suggested": found.p_suggested.tolist(),
        "affected": affected.tolist(),
        "neighbors": shown.indices.tolist(),
        "weights": weights[:, :SHOWN_NEIGHBORS].tolist(),
        "distances": shown.distances.tolist(),
        "depth_agreement": [depth.get(row) for row in rows],
    }
    lines = zip(*columns.values(), strict=True)
    suspects = tuple(Suspect(**dict(zip(columns, line, strict=True))) for line in lines)
    return LabelAudit(checked, how, suspects, tuple(_effects(facts)))


def _effects(facts: Facts) -> Iterator[Effect]:
    """Accepting the first 10, 50, 200 or all suggestions together; exact for the neighbor head.

    Without a query the support's own rows are judged, each by the others (leave-one-out) and
    against the label it was given.
    """
    found, ned, query = facts.suspects, facts.ned, facts.sets.query
    neighborhood, total = facts.neighborhood, len(found.rows)
    before = best_class(ned.log_probs_of(neighborhood), neighborhood)
    for top in sorted({n for n in (10, 50, 200) if n < total} | {total}):
        edits = found.rows[:top], found.suggested[:top]
        edited = torch.zeros(len(facts.sets.codes), dtype=torch.bool)
        edited[edits[0]] = True
        rows = edited[neighborhood.indices].any(1).nonzero().flatten()  # no other row can change
        other, after = relabeled(neighborhood.rows(rows), ned.support_, *edits), before.clone()
        if len(rows):
            after[rows] = best_class(ned.log_probs_of(other), other)
        changed = int((before != after).sum())
        if query.codes is None or not query.labeled:
            yield Effect(top, changed, None, None, None, None)
            continue
        known = query.codes >= 0
        right, then_right = (before == query.codes)[known], (after == query.codes)[known]
        yield Effect(
            top=top,
            changed=changed,
            fixed=int((~right & then_right).sum()),
            broken=int((right & ~then_right).sum()),
            accuracy_before=float(right.double().mean()),
            accuracy_after=float(then_right.double().mean()),
        )


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
