r"""Inverted lists of faiss: candidates from the lists nearest to a query, none from the others.

Rows go to the nearest of about 4·√n centers and are kept there as codes of four bits to two columns
(faiss's fast scan), a sixteenth of their size; whoever asks computes the true
distances of the candidates from the rows. Two numbers make the effort: ``probes``, lists that are
read, and ``depth``, candidates for each neighbor wanted. The first need not be searched for: a true
neighbor is found only if its list is among those read, so the ranks of the lists that true
neighbors of a sample lie in say how many must be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.cost import ITERATIONS, TRAINING, list_count
from vicinal.neighbors.search.recall import Recall, recall_of

_CODED_FROM = 10_000  # rows below which there is nothing to learn codes from: they are kept whole
_PARTS = 128  # of a code at most; the sums of more do not fit the registers of a fast scan
_DEEPEST = 16  # candidates for each neighbor; beyond, codes are not what hides the others
_BLOCK = 1 << 14  # rows that are handed over at a time
clock = time.process_time  # of all threads: others on the machine do not count


class InvertedLists:
    """Which rows may be near: ids are 0..n-1 in the order rows came, and are never used again."""

    def __init__(self, faiss: Any, n: int, some: NDArray[np.float32]) -> None:
        """For n rows to come, trained on ``some`` of them (:func:`training_rows`)."""
        width = some.shape[1]
        self.count, self.probes, self.depth = min(list_count(n), max(1, len(some) // 39)), 1, 2
        columns = 2 * -(-width // (2 * _PARTS))  # to a part of the code
        parts = -(-width // columns)
        coded = n >= _CODED_FROM
        self._width = parts * columns if coded else width
        codes = f"PQ{parts}x4fs" if coded else "Flat"
        self._index = faiss.index_factory(self._width, f"IVF{self.count},{codes}")
        self._index.cp.niter = ITERATIONS
        self._index.cp.min_points_per_centroid = 1  # list_count sees to it; faiss would print
        self._index.train(self._wide(some))
        self.ids = torch.empty(0, dtype=torch.long)

    def add(self, rows: NDArray[np.float32]) -> None:
        first = int(self.ids[-1]) + 1 if len(self.ids) else 0
        new = torch.arange(first, first + len(rows))
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            self._index.add_with_ids(self._wide(rows[block]), new[block].numpy())
        self.ids = torch.cat([self.ids, new])

    def keep(self, kept: Tensor) -> None:
        """Without the other rows; places move up."""
        self._index.remove_ids(self.ids[~kept].numpy())
        self.ids = self.ids[kept]

    def candidates(self, queries: Float[Tensor, "n d"], count: int) -> Int[Tensor, "n c"]:
        """Places of rows that may be among the ``count`` nearest, -1 where lists hold too few."""
        self._index.nprobe = min(self.probes, self.count)
        wanted = min(count * self.depth, len(self.ids))
        _, found = self._index.search(self._wide(queries.float().numpy()), wanted)
        ids = torch.from_numpy(found)
        if int(self.ids[-1]) == len(self.ids) - 1:  # none has gone: an id is its place
            return ids
        places = torch.searchsorted(self.ids, ids)  # ids ascend with the place
        return torch.where(ids < 0, -1, places)

    @property
    def widest(self) -> bool:
        """Whether every list is read: more effort than that is an exact search."""
        return self.probes >= self.count

    def homes(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """The list that each row lies in."""
        parts = [rows[at : at + _BLOCK] for at in range(0, len(rows), _BLOCK)]
        find = self._index.quantizer.search
        return np.concatenate([find(self._wide(part), 1)[1][:, 0] for part in parts])

    def read_for(self, asked: NDArray[np.float32], homes: NDArray[np.int64], share: float) -> None:
        """Read as many lists as hold this share of the true neighbors of the rows asked, whose
        lists are ``homes``."""
        _, order = self._index.quantizer.search(self._wide(asked), self.count)
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(self.count)[None].repeat(len(order), 0), 1)
        needed = np.sort(np.take_along_axis(rank, homes, 1), axis=None)
        self.probes = int(needed[min(int(share * len(needed)), len(needed) - 1)]) + 1

    def reach(
        self,
        ask: Callable[[], Neighborhood],
        true: Neighborhood,
        wanted: float,
        slowest: float = math.inf,
    ) -> Recall | None:
        """Raise the effort until ``ask`` has the recall that is wanted, and measure it.

        None where that cannot be, or where asking takes longer than ``slowest``: lists do not pay.
        """
        while True:
            start = clock()
            recall = recall_of(ask(), true)
            if clock() - start > slowest or (recall.share < wanted and self.widest):
                return None
            if recall.share >= wanted:
                return recall
            self.try_harder()

    def try_harder(self) -> None:
        """Half as many candidates again: the lists hold enough. If that was not it, more lists."""
        if self.depth < _DEEPEST and self.depth < len(self.ids):
            self.depth += max(1, self.depth // 2)
        else:
            self.probes = min(self.probes + self.probes // 2 + 1, self.count)

    def _wide(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Zero columns make the width a multiple of a part's."""
        more = self._width - rows.shape[1]
        return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, more))) if more else rows)


def training_rows(n: int, most: int | None = None) -> Int[Tensor, " t"]:
    """Which of n rows the lists' centers are trained on, in order; at most so many."""
    order = np.random.default_rng(0).permutation(n)[: TRAINING * list_count(n)]
    return torch.from_numpy(np.sort(order[:most]))
