"""The neighbors of some rows: how far, which rows of the support, and of what label.

Everything after a search speaks of this one record. It unpacks as the pair that a search answers
with, ``distances, indices``; labels join where a labeled support is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError

_ELEMENTS = 1 << 19  # of a block, whatever the number of classes: it stays in the cache
NeighborLabels = Int[Tensor, "n k"] | Float[Tensor, "n k c"]


class _Pair(NamedTuple):
    distances: Float[Tensor, "n k"]
    indices: Int[Tensor, "n k"]


class Neighborhood(_Pair):
    """For each of n rows its k neighbors: ascending distances in the metric's unit, and indices.

    >>> found = Neighborhood(torch.tensor([[0.1, 0.5]]), torch.tensor([[2, 0]]))
    >>> distances, indices = found
    >>> found.labeled(torch.tensor([7, 8, 9])).labels
    tensor([[9, 7]])
    """

    _labels: NeighborLabels | None
    _of: Tensor | None  # soft labels of the support, gathered when they are read

    def __new__(
        cls,
        distances: Tensor,
        indices: Tensor,
        labels: NeighborLabels | None = None,
        of: Float[Tensor, "m c"] | None = None,
    ) -> Self:
        self = super().__new__(cls, distances, indices)
        self._labels, self._of = labels, of
        return self

    @property
    def labels(self) -> NeighborLabels:
        """The neighbors' labels: codes (n, k), or soft labels (n, k, c)."""
        if self._labels is not None:
            return self._labels
        if self._of is None:
            raise InputError("these neighbors have no labels. Call labeled(labels) first.")
        return self._of[self.indices.to(self._of.device)]

    @property
    def k(self) -> int:
        return self.distances.shape[1]

    @property
    def size(self) -> int:
        """How many rows have their neighbors here."""
        return self.distances.shape[0]

    def labeled(self, labels: Int[Tensor, " m"] | Float[Tensor, "m c"]) -> Neighborhood:
        """With the labels of the support's rows; soft ones, (n, k, c), wait until they are read."""
        if labels.ndim == 2:
            return Neighborhood(self.distances, self.indices, of=labels)
        return Neighborhood(self.distances, self.indices, labels[self.indices.to(labels.device)])

    def rows(self, keep: Tensor | slice) -> Neighborhood:
        """Of some rows only: positions, a slice, or a mask; the same where a mask keeps all."""
        if isinstance(keep, Tensor) and keep.dtype == torch.bool and bool(keep.all()):
            return self
        return self._each(lambda column: _rows(column, keep))

    def first(self, k: int) -> Neighborhood:
        """The k nearest of each."""
        return self._each(lambda column: column[:, :k])

    def blocks(self, rows: int) -> Iterator[Neighborhood]:
        """One after the other, so many rows at a time."""
        for start in range(0, self.size, rows):
            yield self.rows(slice(start, start + rows))

    def block_rows(self, num_classes: int) -> int:
        """How many rows to weigh at a time: masses are (n, c), soft labels (n, k, c)."""
        soft = self._of is not None or self.labels.ndim == 3
        return max(_ELEMENTS // (self.k * (num_classes if soft else 1) + num_classes), 1)

    def cpu(self) -> Neighborhood:
        return self._each(Tensor.cpu)

    def double(self) -> Neighborhood:
        """Distances in float64: what is summed over them is."""
        return Neighborhood(self.distances.double(), self.indices, self._labels, self._of)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Neighborhood:
        labels = None if self._labels is None else change(self._labels)
        return Neighborhood(change(self.distances), change(self.indices), labels, self._of)


def _rows(column: Tensor, keep: Tensor | slice) -> Tensor:
    if isinstance(keep, slice):
        return column[keep]
    keep = keep.nonzero().flatten() if keep.dtype == torch.bool else keep
    return column.index_select(0, keep.to(column.device))  # three times as fast as column[keep]


def joined(parts: list[Neighborhood]) -> Neighborhood:
    """The rows of several, one after the other."""
    labels = [part._labels for part in parts if part._labels is not None]
    return Neighborhood(
        torch.cat([part.distances for part in parts]),
        torch.cat([part.indices for part in parts]),
        torch.cat(labels) if len(labels) == len(parts) else None,
    )
