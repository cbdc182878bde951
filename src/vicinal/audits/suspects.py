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

from vicinal.audits.sections import Effect, LabelAudit, Suspect
from vicinal.confidence.ned.effects import joint_effect, label_effects
from vicinal.confidence.ned.posterior import NEDParameters, ned_log_probs, neighbor_log_weights
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


def contradictions(
    graph: Neighborhood, codes: Int[Tensor, " n"], num_classes: int, parameters: NEDParameters
) -> Contradictions:
    """Suspect rows of a support, from its leave-one-out graph; classes of one row are left out."""
    p = _leave_one_out(graph, num_classes, parameters)
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
    found, near = facts.suspects, facts.graph.rows(facts.suspects.rows)
    depth: dict[int, float] = {}
    if facts.model is not None:
        layers, count = facts.model.support_neighborhoods, len(facts.sets.classes)
        depth = depth_agreement(layers, facts.sets.codes, found.rows, count)
    weights = neighbor_log_weights(near.double(), facts.ned.parameters_).softmax(1)
    rows, ids, shown = found.rows.tolist(), facts.support_ids, near.first(SHOWN_NEIGHBORS)
    columns: dict[str, list[Any]] = {
        "row": rows,
        "id": [ids[row] for row in rows],
        "given": facts.sets.codes[found.rows].tolist(),
        "suggested": found.suggested.tolist(),
        "p_given": found.p_given.tolist(),
        "p_suggested": found.p_suggested.tolist(),
        "affected": _affected(facts),
        "neighbors": shown.indices.tolist(),
        "weights": weights[:, :SHOWN_NEIGHBORS].tolist(),
        "distances": shown.distances.tolist(),
        "depth_agreement": [depth.get(row) for row in rows],
    }
    lines = zip(*columns.values(), strict=True)
    suspects = tuple(Suspect(**dict(zip(columns, line, strict=True))) for line in lines)
    how = "leave-one-out by row number, with the temperature of the recommended neighbor head"
    return LabelAudit(len(facts.sets.codes), how, suspects, tuple(_effects(facts)))


def _affected(facts: Facts) -> list[int]:
    """For each suspect, the query rows whose prediction its suggestion would change."""
    found, ned = facts.suspects, facts.ned
    if len(found.rows) == 0:
        return []
    new = ned.classes_[found.suggested.numpy()]
    ids = ned.support_.ids[found.rows].numpy()
    return label_effects(ned, facts.sets.query.rows, ids, new).changed.tolist()


def _effects(facts: Facts) -> Iterator[Effect]:
    """Accepting the first 10, 50, 200 or all suggestions together; exact for the neighbor head."""
    found, ned, codes = facts.suspects, facts.ned, facts.sets.query.codes
    known = None if codes is None else (codes >= 0).numpy()
    for top in sorted({n for n in (10, 50, 200) if n < len(found.rows)} | {len(found.rows)}):
        if top == 0:
            continue
        ids = ned.support_.ids[found.rows[:top]].numpy()
        new = ned.classes_[found.suggested[:top].numpy()]
        joint = joint_effect(ned, facts.sets.query.rows, ids, new)
        changed = len(joint.changed)
        if codes is None or known is None or not known.any():
            yield Effect(top, changed, None, None, None, None)
            continue
        true = ned.classes_[codes.clamp_min(0).numpy()]
        before, after = (joint.before == true)[known], (joint.after == true)[known]
        yield Effect(
            top=top,
            changed=changed,
            fixed=int((~before & after).sum()),
            broken=int((before & ~after).sum()),
            accuracy_before=float(before.mean()),
            accuracy_after=float(after.mean()),
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


def _leave_one_out(graph: Neighborhood, num_classes: int, parameters: NEDParameters) -> Tensor:
    block = max(1, (1 << 22) // (graph.k + num_classes))
    parts = (ned_log_probs(part.double(), num_classes, parameters) for part in graph.blocks(block))
    return torch.cat([logs.exp() for logs in parts])
