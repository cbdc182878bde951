r"""Inverted lists of faiss: candidates from the lists nearest to a query, none from the others.

Rows go to the nearest of about 4·√n centers and are kept there as codes of four bits to two columns
(faiss's fast scan), a sixteenth of their size; whoever asks computes the true
distances of the candidates from the rows. Two numbers make the effort: ``probes``, lists that are
read, and ``depth``, candidates for each neighbor wanted. The first need not be searched for: a true
neighbor is found only if its list is among those read, so the ranks of the lists that true
neighbors of a sample lie in say how many must be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.neighbors.search.cost import ITERATIONS, TRAINING, list_count

_CODED_FROM = 10_000  # rows below which there is nothing to learn codes from: they are kept whole
_PARTS = 128  # of a code at most; the sums of more do not fit the registers of a fast scan
_DEEPEST = 16  # candidates for each neighbor; beyond, codes are not what hides the others
_BLOCK = 1 << 14  # rows that are handed over at a time


class InvertedLists:
    """Which rows may be near: ids are 0..n-1 in the order rows came, and are never used again."""

    def __init__(self, faiss: Any, rows: NDArray[np.float32]) -> None:
        n, width = rows.shape
        self.count, self.probes, self.depth = list_count(n), 1, 2
        columns = 2 * -(-width // (2 * _PARTS))  # to a part of the code
        parts = -(-width // columns)
        coded = n >= _CODED_FROM
        self._width = parts * columns if coded else width
        codes = f"PQ{parts}x4fs" if coded else "Flat"
        self._index = faiss.index_factory(self._width, f"IVF{self.count},{codes}")
        self._index.cp.niter = ITERATIONS
        self._index.cp.min_points_per_centroid = 1  # list_count sees to it; faiss would print
        some = np.random.default_rng(0).permutation(n)[: TRAINING * self.count]
        self._index.train(self._wide(rows[np.sort(some)]))
        self.ids = torch.empty(0, dtype=torch.long)
        self.add(rows)

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

    def read_for(
        self,
        rows: NDArray[np.float32],
        asked: Int[Tensor, " m"],
        neighbors: Int[Tensor, "m k"],
        share: float,
    ) -> None:
        """Read as many lists as hold this share of the true neighbors of the rows asked."""
        find = self._index.quantizer.search
        _, order = find(self._wide(rows[asked.numpy()]), self.count)
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(self.count)[None].repeat(len(order), 0), 1)
        parts = neighbors.flatten().split(_BLOCK)
        home = np.concatenate([find(self._wide(rows[part.numpy()]), 1)[1] for part in parts])
        needed = np.sort(np.take_along_axis(rank, home.reshape(len(order), -1), 1), axis=None)
        self.probes = int(needed[min(int(share * len(needed)), len(needed) - 1)]) + 1

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
