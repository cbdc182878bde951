r"""What if this label were different, or this row gone? Exact answers for the neighbor head.

NED is a sum over neighbors (eq. 3), so a support row can change only the queries that have it among
their k nearest, and those in closed form: relabeled, its weight moves from one class sum to
another; removed, it makes room for the (k+1)-th neighbor. No retraining, no approximation: each
answer equals predicting after ``relabel(..., refit=False)`` or ``remove(..., refit=False)``. The
parameters stay as they are (a refit moves T by little, and every query with it), and a softmax
head trained on the same labels may react differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import InputError, check_same_rows
from vicinal.confidence.ned.posterior import best_class, ned_log_probs
from vicinal.labels import codes_of
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class LabelEffects:
    """Effects of r single edits on the queries, each edit alone.

    Per edit, in the order of ``ids``: ``touched`` queries have the row among their k neighbors,
    ``changed`` of them get another label. Per touched pair of edit and query, e in all: ``edit`` (a
    position in ``ids``), ``query``, labels ``before`` and ``after``, the probability of the label
    before the edit then and now (``p_before``, ``p_after``), and the new label's ``confidence``.
    ``probabilities`` (e, c) hold every class where they were asked for.
    """

    ids: NDArray[np.int64]
    touched: NDArray[np.int64]
    changed: NDArray[np.int64]
    edit: NDArray[np.int64]
    query: NDArray[np.int64]
    before: NDArray[Any]
    after: NDArray[Any]
    p_before: NDArray[np.float64]
    p_after: NDArray[np.float64]
    confidence: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class JointEffect:
    """All edits at once: labels and probabilities of every query before and after."""

    before: NDArray[Any]
    after: NDArray[Any]
    probabilities_before: NDArray[np.float64]
    probabilities_after: NDArray[np.float64]

    @property
    def changed(self) -> NDArray[np.int64]:
        """Queries whose label changes."""
        return np.flatnonzero(self.before != self.after)


def label_effects(
    ned: NEDClassifier, queries: Tensor, ids: Any, new_labels: Any, probabilities: bool = False
) -> LabelEffects:
    """Each support row of ``ids`` alone: relabeled as ``new_labels``, or removed without them."""
    support, k = ned.support_, ned.k_
    rows, new = _edits(ned, ids, new_labels)
    removing = new is None
    if removing and len(support) == 1:
        raise InputError("the support has a single row; without it nothing can be predicted.")
    neighborhood = support.query(queries, min(k + removing, len(support)))
    shown = neighborhood.first(k)
    log_before = ned.log_probs_of(shown)
    best_before = best_class(log_before, shown)
    edit_of = torch.full((len(support),), -1)
    edit_of[rows] = torch.arange(len(rows))
    query, slot = (edit_of[shown.indices] >= 0).nonzero(as_tuple=True)
    edit = edit_of[shown.indices[query, slot]]

    best, p_old, top, full = [], [], [], []
    cells = neighborhood.indices.shape[1] * (len(ned.classes_) if support.labels.soft else 1)
    block = max(_ELEMENTS // (cells + len(ned.classes_)), 1)
    for q, j, e in zip(query.split(block), slot.split(block), edit.split(block), strict=True):
        edited = _edited(neighborhood.rows(q).double(), j, None if new is None else new[e])
        log_after = ned_log_probs(edited, len(ned.classes_), ned.parameters_)
        best.append(best_class(log_after, edited))
        p_old.append(log_after.gather(1, best_before[q, None])[:, 0].exp())
        top.append(log_after.gather(1, best[-1][:, None])[:, 0].exp())
        full += [log_after.exp()] if probabilities else []
    after = torch.cat(best) if best else torch.empty(0, dtype=torch.long)
    changed = after != best_before[query]
    empty = torch.empty(0, dtype=torch.float64)
    return LabelEffects(
        ids=support.ids[rows].numpy(),
        touched=torch.bincount(edit, minlength=len(rows)).numpy(),
        changed=torch.bincount(edit[changed], minlength=len(rows)).numpy(),
        edit=edit.numpy(),
        query=query.numpy(),
        before=ned.classes_[best_before[query].numpy()],
        after=ned.classes_[after.numpy()],
        p_before=log_before.gather(1, best_before[:, None])[query, 0].exp().numpy(),
        p_after=torch.cat(p_old or [empty]).numpy(),
        confidence=torch.cat(top or [empty]).numpy(),
        probabilities=torch.cat(full).numpy() if full else None,
    )


def joint_effect(ned: NEDClassifier, queries: Tensor, ids: Any, new_labels: Any) -> JointEffect:
    """All edits of the list together: every relabel, or every removal."""
    support, count = ned.support_, len(ned.classes_)
    rows, new = _edits(ned, ids, new_labels)
    neighborhood = support.query(queries, ned.k_)
    log_before = ned.log_probs_of(neighborhood)
    before = best_class(log_before, neighborhood)
    values = support.labels.codes.clone()
    if new is None:
        neighborhood = _without(ned, queries, rows)
    else:
        values[rows] = new
    blocks = []
    for part in neighborhood.labeled(values).double().blocks(4096):
        log_after = ned_log_probs(part, count, ned.parameters_)
        blocks.append((log_after, best_class(log_after, part)))
    after = torch.cat([best for _, best in blocks])
    return JointEffect(
        before=ned.classes_[before.numpy()],
        after=ned.classes_[after.numpy()],
        probabilities_before=log_before.exp().numpy(),
        probabilities_after=torch.cat([log for log, _ in blocks]).exp().numpy(),
    )


def _edits(ned: NEDClassifier, ids: Any, new_labels: Any) -> tuple[Tensor, Tensor | None]:
    support = ned.support_
    rows = torch.arange(len(support)) if ids is None else support.positions(ids)
    if len(rows.unique()) != len(rows):
        raise InputError("`ids` names a row twice. Each edit is of one row; drop the repeats.")
    if new_labels is None:
        return rows, None
    check_same_rows(rows, new_labels, "ids", "new_labels")
    new = codes_of(new_labels, len(rows), support.labels)
    if new.ndim == 1 and bool((new < 0).any()):
        wrong = np.asarray(new_labels)[(new < 0).numpy()][0]
        raise InputError(
            f"`new_labels` holds {wrong!r}, which is no class of the support. "
            "For a class that is new, use relabel() and predict."
        )
    if support.labels.soft and new.ndim == 1:
        new = torch.nn.functional.one_hot(new, len(ned.classes_)).double()
    return rows, new


def _edited(neighborhood: Neighborhood, slot: Tensor, new: Tensor | None) -> Neighborhood:
    """The neighbor at ``slot`` relabeled, or (``new`` None) taken out so that the rest move up."""
    pair, (distances, indices) = torch.arange(len(slot)), neighborhood
    if new is not None:
        labels = neighborhood.labels.clone()
        labels[pair, slot] = new.to(labels)
        return Neighborhood(distances, indices, labels)
    columns = torch.arange(neighborhood.k - 1).expand(len(slot), -1)
    columns = columns + (columns >= slot[:, None])
    labels = neighborhood.labels[pair[:, None], columns]
    return Neighborhood(distances.gather(1, columns), indices.gather(1, columns), labels)


def _without(ned: NEDClassifier, queries: Tensor, rows: Tensor) -> Neighborhood:
    """The k nearest rows that are not removed; deeper lists only for queries that need them."""
    support, k = ned.support_, ned.k_
    left = len(support) - len(rows)
    if left < 1:
        raise InputError("`ids` names the whole support. At least one row must stay.")
    gone = torch.zeros(len(support), dtype=torch.bool)
    gone[rows] = True
    k, depth = min(k, left), min(ned.k_ + min(len(rows), ned.k_), len(support))
    distances = queries.new_empty(len(queries), k)
    indices = torch.empty(len(queries), k, dtype=torch.long)
    waiting = torch.arange(len(queries))
    while len(waiting):
        neighborhood = support.search.query(queries[waiting], depth)
        stays = ~gone[neighborhood.indices]
        enough = stays.sum(1) >= k
        order = (~stays[enough]).int().argsort(dim=1, stable=True)[:, :k]
        done = waiting[enough]
        distances[done] = neighborhood.distances[enough].gather(1, order).to(distances)
        indices[done] = neighborhood.indices[enough].gather(1, order)
        waiting, depth = waiting[~enough], min(2 * depth, len(support))
    return Neighborhood(distances, indices)
