r"""The leave-one-out graph of a support: for each row its k nearest *other* rows, kept up to date.

Everything fitted leave-one-out (temperature, sharpness, suspect labels) reads this one graph.
Editing the support costs what the edit touches: new rows are searched once and merged into the old
lists; after a removal only the rows that lost a neighbor are searched again. The result is the
graph that building anew would give.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError
from vicinal.neighbors.neighborhood import joined
from vicinal.neighbors.search.exact import ExactSearch, checked_rows, kept_mask, merged
from vicinal.neighbors.search.protocol import Search
from vicinal.neighbors.search.resumable import leave_one_out

_BLOCK = 4096  # old rows read at a time


class NeighborGraph:
    """Distances and indices (n, k) of every support row's nearest others; never the row itself.

    >>> search = ExactSearch().build(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> graph = NeighborGraph.build(search, k=1)
    >>> graph.add([[2.9]])
    >>> graph.indices.flatten()
    tensor([1, 0, 3, 2])
    """

    def __init__(
        self, search: Search, distances: Float[Tensor, "n k"], indices: Int[Tensor, "n k"]
    ) -> None:
        self.search = search
        self.distances = distances
        self.indices = indices

    @classmethod
    def build(cls, search: Search, k: int) -> Self:
        """Search every row of a built search's support, itself left out by its index."""
        return cls(search, *leave_one_out(search, k))

    @property
    def k(self) -> int:
        return self.distances.shape[1]

    def __len__(self) -> int:
        return len(self.distances)

    def add(self, rows: Any) -> None:
        """Append rows to the support and to the graph."""
        search, old = self.search, len(self)
        new = checked_rows(rows, "rows", search.width)
        search.add(new)
        new, ids = search.rows(slice(old, None)), torch.arange(old, len(search))
        mine = search.query(new, self.k, exclude=ids)
        theirs, count = ExactSearch(search.metric).build(new), min(self.k, len(ids))
        blocks = torch.arange(old).split(_BLOCK)
        distances, indices = joined([theirs.query(search.rows(part), count) for part in blocks])
        # A newcomer has the larger index, so it enters only where it is strictly nearer.
        touched = (distances[:, 0] < self.distances[:, -1]).nonzero()[:, 0]
        before = self.distances[touched], self.indices[touched]
        after = merged(before, (distances[touched], indices[touched] + old), self.k)
        self.distances = torch.cat([self.distances, mine.distances])
        self.indices = torch.cat([self.indices, mine.indices])
        self.distances[touched], self.indices[touched] = after

    def remove(self, indices: Any) -> None:
        """Delete rows from the support and the graph; later rows move up."""
        keep = kept_mask(indices, len(self), self.indices.device)
        left = int(keep.sum())
        if left <= self.k:
            raise InputError(
                f"`indices` would leave {left} rows, too few for the k={self.k} nearest others of "
                f"each. Keep at least {self.k + 1} rows, or build a graph with a smaller k."
            )
        lost = (~keep[self.indices]).any(1)[keep]
        self.search.remove((~keep).nonzero()[:, 0])
        position = keep.cumsum(0) - 1
        self.distances, self.indices = self.distances[keep], position[self.indices[keep]]
        again = lost.nonzero()[:, 0]
        if len(again):
            found = self.search.query(self.search.rows(again), self.k, exclude=again)
            self.distances[again], self.indices[again] = found
