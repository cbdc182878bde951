r"""The soft nearest neighbor loss of a data set over temperatures, every row against all others.

Beyond some 1,600 rows nothing is cached: distances are formed in blocks, so memory stays linear.
:mod:`vicinal.neighbors.surprise` has the loss, its slopes and the search for its minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_choice,
    check_k,
    check_labels,
    check_positive,
)
from vicinal.neighbors.distances import (
    METRICS,
    compared_rows,
    in_unit,
    repair_near,
    squared_lengths,
)
from vicinal.neighbors.mass import agreement
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.neighbors.surprise import (
    ALONE,
    Gaps,
    block_rows,
    fit_blocks,
    fit_temperature,
    gaps_of,
    losses,
)

TILE = 1 << 20  # distances of a data set to itself formed at a time
KEPT = 5 << 19  # distances that are kept: those of some 1,600 rows


def optimal_temperature(
    x: Float[Tensor, "n d"], labels: Any, *, metric: str = "sqeuclidean", k: int | None = None
) -> float:
    r"""argmin over T of the soft nearest neighbor loss: NED's temperature, leave-one-out.

    Parameters
    ----------
    x : rows ``(n, d)``.
    labels : integers ``(n,)``, or soft labels ``(n, c)``.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    k : look among the k nearest others; None: among all, streamed in blocks.

    >>> x = torch.tensor([[0.0], [1.0], [1.5], [2.5]])
    >>> round(optimal_temperature(x, torch.tensor([0, 0, 1, 1])), 3)
    1.089
    """
    rows, labels = _checked_rows(x, labels, metric)
    if k is not None:
        check_k(k, len(rows) - 1, "k", "each row of `x`")
        others = torch.arange(len(rows), device=rows.device)
        distances, indices = ExactSearch(metric).build(rows).query(rows, k, exclude=others)
        return fit_temperature(distances, shared(labels, indices)).temperature

    def blocks(picked: Tensor, dtype: torch.dtype) -> AllOthers:
        return AllOthers(rows.to(dtype), labels, metric, picked)

    return fit_blocks(blocks, (peers(labels) > 0).nonzero()[:, 0]).temperature


@torch.no_grad()
def snnl_profile(
    x: Float[Tensor, "n d"], labels: Any, temperatures: Any, *, metric: str = "sqeuclidean"
) -> Float[Tensor, " t"]:
    """The soft nearest neighbor loss at several temperatures, from one pass over the distances.

    Parameters
    ----------
    x : rows ``(n, d)``.
    labels : integers ``(n,)``, or soft labels ``(n, c)``.
    temperatures : positive numbers, infinity included.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.

    >>> x, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])
    >>> snnl_profile(x, labels, [1.0, float("inf")])
    tensor([0.3709, 0.6931], dtype=torch.float64)
    """
    rows, labels = _checked_rows(x, labels, metric)
    at = as_tensor(temperatures, "temperatures").double().flatten()
    for value in at.tolist():
        check_positive(value, "temperatures", infinite=True)
    picked = (peers(labels) > 0).nonzero()[:, 0]
    if not len(picked):
        raise InputError(ALONE)
    values = losses(AllOthers(rows.double(), labels, metric, picked), at.reciprocal().tolist())
    return torch.tensor(values, dtype=torch.float64)


def chance_level(labels: Any) -> float:
    r"""The loss of neighbors that know nothing, mean of :math:`\log((n-1)/(n_{y_i}-1))`.

    The soft nearest neighbor loss at T = inf; rows without a peer are left out. At its best
    temperature no representation is above it.

    >>> round(chance_level(torch.tensor([0, 0, 1, 1])), 4)
    1.0986
    """
    y = as_tensor(labels, "labels")
    count = peers(check_labels(y, "labels", len(y)))
    if not bool((count > 0).any()):
        raise InputError(ALONE)
    return float(((len(y) - 1) / count[count > 0]).log().mean())


class AllOthers:
    """Blocks of rows with their distances to all others: kept where they are few, and else formed
    anew each time they are gone through, so that memory stays linear in the number of rows."""

    def __init__(self, x: Tensor, labels: Tensor, metric: str, picked: Tensor) -> None:
        self.labels = labels.to(x.dtype) if labels.ndim == 2 else labels
        self.metric, self.picked = metric, picked
        self.base = compared_rows(x, metric)
        self.centered = self.base - self.base.mean(0)
        self.squares = squared_lengths(self.centered, self.base, metric)
        self._kept: list[Gaps] | None = None

    def __iter__(self) -> Iterator[Gaps]:
        if len(self.picked) * len(self.base) > KEPT:
            return self._formed()
        if self._kept is None:
            self._kept = list(self._formed())
        return iter(self._kept)

    def _formed(self) -> Iterator[Gaps]:
        n = len(self.base)
        step = block_rows(n)
        for rows in self.picked.split(max(64, TILE // n)):
            others = torch.arange(n, device=rows.device) != rows[:, None]
            distances = self._distances(rows, ~others)[others].view(len(rows), n - 1)
            share = agreement(self.labels[rows], self.labels).to(distances.dtype)
            share = share[others].view(len(rows), n - 1)
            weight = distances.new_ones(len(rows))
            for i in range(0, len(rows), step):
                part = slice(i, i + step)
                yield gaps_of(distances[part], share[part], weight[part])

    def _distances(self, rows: Tensor, self_: Tensor) -> Tensor:
        squares = self.squares[rows]
        d = torch.addmm(self.squares, self.centered[rows], self.centered.T, alpha=-2)
        d = d.add_(squares[:, None]).clamp_min_(0).masked_fill_(self_, torch.inf)
        repair_near(d, self.base[rows], self.base, squares, self.squares)
        return in_unit(d, self.metric)


def shared(labels: Tensor, indices: Tensor) -> Tensor:
    """The share of label of each row with its neighbors ``indices``; bool for hard labels."""
    if labels.ndim == 1:
        return labels[indices] == labels[:, None]
    step = max(1, TILE // (indices.shape[1] * labels.shape[1]))
    parts = [
        torch.einsum("nc,nkc->nk", labels[i : i + step], labels[indices[i : i + step]])
        for i in range(0, len(labels), step)
    ]
    return torch.cat(parts).clamp(0, 1)


def peers(labels: Tensor) -> Tensor:
    """How many others share each row's label (the sum of shares, for soft labels)."""
    if labels.ndim == 1:
        _, place, counts = labels.unique(return_inverse=True, return_counts=True)
        return counts[place].double() - 1
    soft = labels.double()
    return (soft @ soft.sum(0) - soft.square().sum(1)).clamp_min(0)


def _checked_rows(x: Any, labels: Any, metric: str) -> tuple[Tensor, Tensor]:
    check_choice(metric, "metric", METRICS)
    rows, y = as_matrix(x, "x").detach(), as_tensor(labels, "labels").detach()
    if len(rows) < 2:
        raise InputError("`x` must have at least two rows: a row is compared with the others.")
    return rows, check_labels(y, "labels", len(rows)).to(rows.device)
