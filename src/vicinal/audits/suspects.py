"""Which support labels does the neighborhood contradict, and what would mending them change?

A row is suspect when the others, asked leave-one-out, name another class and name it as surely as
they usually name rows of that class: p(suggested) is at least the mean leave-one-out probability
that rows labeled so get for their own label (the class thresholds of confident learning, Northcutt
et al. 2021). Most suspicious first: the margin p(suggested) - p(given). The rule is blind to labels
an embedding has memorized and to a class that is wrong as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits.record import Effect, LabelAudit, Suspect
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.effects import joint_effect, label_effects, relabeled
from vicinal.confidence.ned.posterior import NEDParameters, ned_log_probs, neighbor_log_weights
from vicinal.neighbors.neighborhood import Neighborhood

SHOWN_NEIGHBORS = 20


class Contradictions(NamedTuple):
    """Positions of suspect support rows, most suspicious first, and what speaks against them."""

    rows: Int[Tensor, " s"]
    suggested: Int[Tensor, " s"]
    p_given: Float[Tensor, " s"]
    p_suggested: Float[Tensor, " s"]


def contradictions(
    graph: Neighborhood, labels: Int[Tensor, " n"], num_classes: int, parameters: NEDParameters
) -> Contradictions:
    """Suspect rows of a support, from its leave-one-out graph; classes of one row are left out."""
    p = _leave_one_out(graph, num_classes, parameters)
    own = p.gather(1, labels[:, None])[:, 0]
    counts = torch.bincount(labels, minlength=num_classes)
    usual = torch.zeros(num_classes, dtype=p.dtype).index_add_(0, labels, own)
    usual = usual / counts.clamp_min(1)
    others = p.scatter(1, labels[:, None], -1.0)
    best = others.argmax(1)
    top = others.gather(1, best[:, None])[:, 0]
    found = (top > own) & (top >= usual[best]) & (counts[labels] > 1)
    rows = found.nonzero().flatten()
    order = torch.argsort(top[rows] - own[rows], descending=True, stable=True)
    rows = rows[order]
    return Contradictions(rows, best[rows], own[rows], top[rows])


def label_audit(
    found: Contradictions,
    graph: Neighborhood,
    labels: Int[Tensor, " n"],
    ids: tuple[str, ...],
    ned: NEDClassifier,
    near_queries: Neighborhood,
    query_labels: Int[Tensor, " m"] | None,
    depth: dict[int, float] | None = None,
) -> LabelAudit:
    """The suspects as a record, with the exact effect of each on the query, and of the first few.

    ``depth``: for some rows, the share of other layers whose neighbors contradict the label too.
    """
    affected = torch.zeros(len(found.rows), dtype=torch.long)
    if len(found.rows):
        effects = label_effects(ned, near_queries, found.rows, found.suggested)
        affected = torch.from_numpy(effects.changed)
    near = graph.first(SHOWN_NEIGHBORS).rows(found.rows)
    weights = neighbor_log_weights(graph.rows(found.rows).double(), ned.parameters_)
    weights = weights.softmax(1)[:, :SHOWN_NEIGHBORS]
    suspects = [
        Suspect(
            row=row,
            id=ids[row],
            given=int(labels[row]),
            suggested=int(found.suggested[at]),
            p_given=float(found.p_given[at]),
            p_suggested=float(found.p_suggested[at]),
            affected=int(affected[at]),
            neighbors=tuple(near.indices[at].tolist()),
            weights=tuple(weights[at].tolist()),
            distances=tuple(near.distances[at].tolist()),
            depth_agreement=None if depth is None else depth.get(row),
        )
        for at, row in enumerate(found.rows.tolist())
    ]
    how = "leave-one-out by row number, with the temperature of the recommended neighbor head"
    return LabelAudit(
        len(labels), how, tuple(suspects), tuple(_effects(found, ned, near_queries, query_labels))
    )


def _effects(
    found: Contradictions,
    ned: NEDClassifier,
    near_queries: Neighborhood,
    query_labels: Int[Tensor, " m"] | None,
) -> list[Effect]:
    """Accepting the first 10, 50, 200 or all suggestions together; exact for the neighbor head."""
    tops = sorted({n for n in (10, 50, 200) if n < len(found.rows)} | {len(found.rows)})
    effects = []
    for top in tops:
        if top == 0:
            continue
        edits = found.rows[:top], found.suggested[:top]
        joint = joint_effect(ned, near_queries, relabeled(near_queries, ned.support_, *edits))
        changed = joint.before != joint.after
        known = None if query_labels is None else (query_labels >= 0).numpy()
        if query_labels is None or known is None or not known.any():
            effects.append(Effect(top, int(changed.sum()), None, None, None, None))
            continue
        true = ned.classes_[query_labels.clamp_min(0).numpy()]
        before, after = (joint.before == true)[known], (joint.after == true)[known]
        effects.append(
            Effect(
                top=top,
                changed=int(changed.sum()),
                fixed=int((~before & after).sum()),
                broken=int((before & ~after).sum()),
                accuracy_before=float(before.mean()),
                accuracy_after=float(after.mean()),
            )
        )
    return effects


def depth_agreement(
    layers: dict[str, Neighborhood],
    labels: Int[Tensor, " n"],
    rows: Int[Tensor, " s"],
    num_classes: int,
) -> dict[int, float]:
    """For each suspect, the share of layers whose plain vote is not for the given label.

    An embedding that has memorized a wrong label has neighbors that agree with it; earlier layers
    do not.
    """
    shares: dict[int, list[bool]] = {int(row): [] for row in rows}
    for neighborhood in layers.values():
        votes = torch.zeros(len(rows), num_classes)
        votes.scatter_add_(
            1, neighborhood.labels[rows], torch.ones(len(rows), neighborhood.labels.shape[1])
        )
        against = votes.argmax(1) != labels[rows]
        for row, flag in zip(rows.tolist(), against.tolist(), strict=True):
            shares[row].append(flag)
    return {row: float(np.mean(flags)) for row, flags in shares.items() if flags}


def _leave_one_out(graph: Neighborhood, num_classes: int, parameters: NEDParameters) -> Tensor:
    parts = []
    block = max(1, (1 << 22) // (graph.distances.shape[1] + num_classes))
    for rows in torch.arange(len(graph.distances)).split(block):
        logs = ned_log_probs(graph.rows(rows).double(), num_classes, parameters)
        parts.append(logs.exp())
    return torch.cat(parts)
