r"""Inverted lists over rows that are not in memory: codes propose, rows read in blocks decide.

What stays in memory is a code of d/4 bytes and a number for each row (``lists.py``). Centers and
codes are learned on a sample, every row is added as its block is read. Many queries are asked at a
time: the lists give each its candidates, then the support is read once, and each block gives the
distances of the candidates that lie in it, from the differences of the rows. So what is found is at
the distance an exact search would give it; what is missed is measured on 1,000 rows that are
searched exactly, and the effort is raised until the recall is met.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.files import reading
from vicinal.neighbors.distances import compared_rows, zero_rows
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.exact import SPARE, checked_query, squared_distances
from vicinal.neighbors.search.faiss import Listed
from vicinal.neighbors.search.lists import AGAIN, DEEPEST, InvertedLists, keep, kept, training_rows
from vicinal.neighbors.search.recall import Recall
from vicinal.neighbors.search.sharded import MEMORY, ShardedSearch, Source, rows_at

_PAIR = 32  # bytes of a candidate: its number, two distances, and its place in a block
_PAIRS = 1 << 13  # candidates whose rows are compared at a time


class ShardedLists(Listed, ShardedSearch):  # type: ignore[override]
    """Approximate neighbors in a source that is read in blocks (``pip install 'vicinal[faiss]'``).

    Parameters
    ----------
    metric, memory : as of :class:`ShardedSearch`; the codes come on top of the memory.
    kind : ``"ivf"``, lists from 5,000 rows on; ``"auto"``, lists where exact search would take more
        than a minute and lists at most half of that, and where at most half of them must be read.
    recall : raise the effort until so large a share of the true neighbors is found.
    kept : a folder for these rows alone, that what was decided is kept in and comes back from.

    >>> from vicinal.capture.sources import ArrayRows
    >>> search = ShardedLists().build(ArrayRows(torch.tensor([[0.0], [1.0], [3.0]])))
    >>> search.exact, search.query(torch.tensor([[0.9]]), k=2).indices
    (True, tensor([[1, 0]]))
    """

    def __init__(
        self,
        metric: str = "sqeuclidean",
        kind: str = "auto",
        *,
        recall: float = 0.98,
        memory: int = MEMORY,
        kept: Path | None = None,
    ) -> None:
        super().__init__(metric, memory=memory)
        self.kept = kept
        self._wish(kind, ("auto", "ivf"), recall)
        self._shift = torch.zeros(0)

    @property
    def title(self) -> str:  # type: ignore[override]
        if self._lists is None:
            return "exact, in blocks"
        return f"IVF over blocks ({self._lists.probes:,} of {self._lists.count:,} lists read)"

    def build(self, support: Source) -> Self:
        """Learn centers and codes on a sample, add the rows block by block, find the effort."""
        super().build(support)
        if self.kept is not None and (held := kept(self.kept)) is not None:
            return self._as_before(held, self.kept)
        self._make_lists()
        if self.kept is not None:
            keep(self.kept, self._facts())
        return self

    def _facts(self) -> dict[str, Any]:
        """What was decided."""
        if (lists := self._lists) is None or self.recall_ is None:
            return {"search": "exact"}
        effort = {"effort": [lists.probes, lists.depth], "differences": lists.differences}
        return {"search": "lists", "recall": asdict(self.recall_), **effort}

    def _as_before(self, facts: dict[str, Any], folder: Path) -> Self:
        """What was decided holds; centers and codes are learned anew, from the same rows."""
        self._lists, self.recall_ = None, None
        with reading(folder, AGAIN):
            if facts["search"] == "exact":
                return self
            recall, (probes, depth) = Recall(**facts["recall"]), facts["effort"]
            whole = all(type(n) is int and n > 0 for n in (recall.k, recall.rows, probes, depth))
            shares = 0 <= recall.error <= 1 and 0 < recall.share <= 1
            if not (whole and shares and depth <= 2 * DEEPEST):
                raise ValueError("these are no lists of such rows")
        some = self._learned()
        lists = InvertedLists(len(self), some)
        lists.code(bool(facts.get("differences")), some)
        lists.probes, lists.depth, lists.least = min(probes, lists.count), depth, recall.k
        if self._filled(lists):
            self._lists, self.recall_ = lists, recall
        return self

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows to each row of x, or nearly so."""
        if self.recall_ is not None and min(k, len(self) - 1) > self.recall_.k:
            self._reach(min(k, len(self) - 1))
        return self.exactly(x, k, exclude=exclude) if self.exact else self._asked(x, k, exclude)

    def _asked(self, x: Any, k: int, exclude: Any) -> Neighborhood:
        assert self._lists is not None
        x, out = checked_query(self, x, k, exclude)
        each = _PAIR * max(k + SPARE, self._lists.least) * self._lists.depth
        size = max(256, 3 * self.memory // 4 // each)
        parts = zip(x.split(size), out.split(size), strict=True)
        return joined([self._listed(rows, k, left_out) for rows, left_out in parts])

    def _learned(self) -> np.ndarray:
        """The rows that centers and codes are learned on; all are centered by their mean."""
        some = training_rows(len(self), max(1, self.memory // (16 * self.width)))
        rows = compared_rows(rows_at(self.source, some, self.block), self.metric)
        self._shift = rows.mean(0, dtype=torch.float64).to(rows.dtype)
        return self._turned(rows)

    def _filled(self, lists: InvertedLists) -> bool:
        """Add all rows; not where a zero row has a distance that no point has."""
        for _, block in self.source.blocks(self.block):
            rows = compared_rows(block, self.metric)
            if self.metric == "cosine" and bool(zero_rows(rows).any()):
                return False
            lists.add(self._turned(rows))
        return True

    def _turned(self, rows: Float[Tensor, "n d"]) -> np.ndarray:
        return (rows - self._shift).float().contiguous().numpy()

    def _homes(self, lists: InvertedLists, neighbors: Int[Tensor, "m k"]) -> np.ndarray:
        """The list of each of these rows, each read once."""
        named, place = neighbors.unique(return_inverse=True)
        homes = [
            lists.homes(self._turned(compared_rows(block[mine], self.metric)))
            for start, block in self.source.blocks(self.block)
            if len(mine := named[(named >= start) & (named < start + len(block))] - start)
        ]
        return np.concatenate(homes)[place.numpy()]

    def _squared(self, q: Float[Tensor, "m d"], found: Int[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        """From differences of rows, each block of the support read once for all candidates."""
        kind, each, found = torch.promote_types(q.dtype, self.dtype), found.shape[1], found.view(-1)
        squared = q.new_zeros(len(found), dtype=kind)
        for start, block in self.source.blocks(self.block):
            base = compared_rows(block, self.metric)
            inside = (found >= start) & (found < start + len(block))
            for pairs in inside.nonzero()[:, 0].split(_PAIRS):
                picked = (found[pairs] - start)[:, None]
                near = squared_distances(q[pairs // each], base, picked, self.metric)
                squared[pairs] = near[:, 0]
        return squared.view(-1, each)
