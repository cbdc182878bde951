r"""What if this label were different, or this row gone? Exact answers for the neighbor head.

NED is a sum over neighbors (eq. 3), so a support row can change only the queries that have it among
their k nearest, and those in closed form: relabeled, its weight moves from one class sum to
another; removed, it makes room for the (k+1)-th neighbor. No retraining, no approximation: each
answer equals predicting after ``relabel(..., refit=False)`` or ``remove(..., refit=False)``. The
parameters stay as they are (a refit moves T by little, and every query with it), and a softmax
head trained on the same labels may react differently.

Nothing here searches: the queries' neighborhoods come from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import InputError, check_same_rows
from vicinal.confidence.ned.posterior import best_class, ned_log_probs
from vicinal.confidence.support import LabeledSupport
from vicinal.labels import at_codes, codes_of
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

NewLabels = Int[Tensor, " r"] | Float[Tensor, "r c"]


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
    ned: NEDClassifier,
    neighborhood: Neighborhood,
    rows: Int[Tensor, " r"],
    new: NewLabels | None,
    *,
    probabilities: bool = False,
) -> LabelEffects:
    """Each support row of ``rows`` alone: relabeled as ``new``, or removed without it.

    Parameters
    ----------
    ned : whose support and parameters they are.
    neighborhood : the queries' k nearest, labeled; one more than ``ned.k_`` for removals, if the
        support has one more.
    rows : positions in the support, none twice.
    new : their codes, or soft labels where the support's are; None removes the rows.
    probabilities : whether to keep every class's probability after every edit.
    """
    shown = neighborhood.first(ned.k_)
    log_before = ned.log_probs_of(shown)
    best_before = best_class(log_before, shown)
    edit_of = torch.full((len(ned.support_),), -1)
    edit_of[rows] = torch.arange(len(rows))
    query, slot = (edit_of[shown.indices] >= 0).nonzero(as_tuple=True)
    edit = edit_of[shown.indices[query, slot]]

    best, p_old, top, full = [], [], [], []
    block = neighborhood.block_rows(len(ned.classes_))
    for q, j, e in zip(query.split(block), slot.split(block), edit.split(block), strict=True):
        edited = _edited(neighborhood.rows(q).double(), j, None if new is None else new[e])
        log_after = ned_log_probs(edited, len(ned.classes_), ned.parameters_)
        best.append(best_class(log_after, edited))
        p_old.append(at_codes(log_after, best_before[q]).exp())
        top.append(at_codes(log_after, best[-1]).exp())
        full += [log_after.exp()] if probabilities else []
    after, was = torch.cat(best), best_before[query]
    return LabelEffects(
        ids=ned.support_.ids[rows].numpy(),
        touched=torch.bincount(edit, minlength=len(rows)).numpy(),
        changed=torch.bincount(edit[after != was], minlength=len(rows)).numpy(),
        edit=edit.numpy(),
        query=query.numpy(),
        before=ned.classes_[was.numpy()],
        after=ned.classes_[after.numpy()],
        p_before=at_codes(log_before, best_before)[query].exp().numpy(),
        p_after=torch.cat(p_old).numpy(),
        confidence=torch.cat(top).numpy(),
        probabilities=torch.cat(full).numpy() if full else None,
    )


def joint_effect(ned: NEDClassifier, before: Neighborhood, after: Neighborhood) -> JointEffect:
    """What ``ned`` says of the same queries by their neighbors before and after all edits."""
    log_before, log_after = ned.log_probs_of(before), ned.log_probs_of(after)
    return JointEffect(
        before=ned.classes_[best_class(log_before, before).numpy()],
        after=ned.classes_[best_class(log_after, after).numpy()],
        probabilities_before=log_before.exp().numpy(),
        probabilities_after=log_after.exp().numpy(),
    )


def relabeled(
    neighborhood: Neighborhood, support: LabeledSupport, rows: Int[Tensor, " r"], new: NewLabels
) -> Neighborhood:
    """The same neighbors, with the labels of support ``rows`` (positions) replaced by ``new``."""
    values = support.labels.codes.clone()
    values[rows] = new.to(values)
    return neighborhood.labeled(values)


def edits_of(
    support: LabeledSupport, ids: Any, new_labels: Any
) -> tuple[Int[Tensor, " r"], NewLabels | None]:
    """Positions of the rows named by ``ids`` (None: all) and the codes of their new labels."""
    rows = torch.arange(len(support)) if ids is None else support.positions(ids)
    if len(rows.unique()) != len(rows):
        raise InputError("`ids` names a row twice. Each edit is of one row; drop the repeats.")
    if new_labels is None:
        return rows, None
    check_same_rows(rows, new_labels, "ids", "new_labels")
    new = codes_of(new_labels, len(rows), support.labels, name="new_labels")
    if new.ndim == 1 and bool((new < 0).any()):
        wrong = np.asarray(new_labels)[(new < 0).numpy()][0]
        raise InputError(
            f"`new_labels` holds {wrong!r}, which is no class of the support. "
            "For a class that is new, use relabel() and predict."
        )
    if support.labels.soft and new.ndim == 1:
        new = torch.nn.functional.one_hot(new, len(support.labels.classes)).double()
    return rows, new


def _edited(neighborhood: Neighborhood, slot: Tensor, new: Tensor | None) -> Neighborhood:
    """The neighbor at ``slot`` relabeled, or (``new`` None) taken out so that the rest move up."""
    pair, (distances, indices), labels = torch.arange(len(slot)), neighborhood, neighborhood.labels
    if new is not None:
        labels = labels.clone()
        labels[pair, slot] = new.to(labels)
        return Neighborhood(distances, indices, labels)
    columns = torch.arange(neighborhood.k - 1).expand(len(slot), -1)
    kept = pair[:, None], columns + (columns >= slot[:, None])
    return Neighborhood(distances[kept], indices[kept], labels[kept])
