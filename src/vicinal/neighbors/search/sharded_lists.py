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

from vicinal.checks import check_choice, check_share
from vicinal.files import reading
from vicinal.neighbors.distances import compared_rows, zero_rows
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.cost import SAMPLE, lists_may_pay
from vicinal.neighbors.search.exact import SPARE, checked_query, squared_distances
from vicinal.neighbors.search.faiss import LISTS_FROM, import_faiss
from vicinal.neighbors.search.lists import (
    AGAIN,
    FARTHEST,
    InvertedLists,
    decided,
    facts_of,
    keep,
    kept,
    lists_from,
    training_rows,
)
from vicinal.neighbors.search.recall import Recall, drawn_rows
from vicinal.neighbors.search.sharded import MEMORY, ShardedSearch, Source, rows_at

_K = 100  # neighbors that the effort is found for, until more are asked for
_PAIR = 32  # bytes of a candidate: its number, two distances, and its place in a block
_PAIRS = 1 << 13  # candidates whose rows are compared at a time


class ShardedLists(ShardedSearch):
    """Approximate neighbors in a source that is read in blocks (``pip install 'vicinal[faiss]'``).

    Parameters
    ----------
    metric, memory : as of :class:`ShardedSearch`; the codes come on top of the memory.
    kind : ``"ivf"``, lists from 5,000 rows on; ``"auto"``, lists where exact search would take more
        than a minute and lists at most half of that, and where at most half of them must be read.
    recall : raise the effort until so large a share of the true neighbors is found.
    kept : a folder for these rows alone, that what was learned is kept in and comes back from.

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
        check_choice(kind, "kind", ("auto", "ivf"))
        if recall != 1:  # all of them: exact
            check_share(recall, "recall")
        self.kind, self.recall = kind, recall
        self.recall_: Recall | None = None
        self._lists: InvertedLists | None = None
        self._shift = torch.zeros(0)

    @property
    def exact(self) -> bool:  # type: ignore[override]  # of this engine it depends on the rows
        return self._lists is None

    @property
    def title(self) -> str:  # type: ignore[override]
        if self._lists is None:
            return "exact, in blocks"
        return f"IVF over blocks ({self._lists.probes:,} of {self._lists.count:,} lists read)"

    def build(self, support: Source) -> Self:
        """Learn centers and codes on a sample, add the rows block by block, find the effort."""
        super().build(support)
        self._lists, self.recall_ = None, None
        if self.kept is not None and (held := kept(self.kept)) is not None:
            return self._as_before(held, self.kept)
        if self._wants_lists():
            self._lists = InvertedLists(import_faiss(), len(self), self._learned())
            self._reach(min(_K, len(self) - 1))
        if self.kept is not None:
            facts: dict[str, Any] = {"search": "exact"}
            if self._lists is not None and self.recall_ is not None:
                facts = {
                    "search": "lists",
                    "shift": self._shift.tolist(),
                    "recall": asdict(self.recall_),
                    **facts_of(import_faiss(), self._lists),
                }
            keep(self.kept, facts)
        return self

    def _as_before(self, facts: dict[str, Any], folder: Path) -> Self:
        """What was decided and learned holds; the rows are added anew."""
        with reading(folder, AGAIN):
            if facts["search"] == "exact":
                return self
            shift, recall = np.array(facts["shift"], np.float64), Recall(**facts["recall"])
            counts = type(recall.k) is int and type(recall.rows) is int
            shares = 0 <= recall.error <= 1 and 0 < recall.share <= 1
            if not (counts and shares and recall.k > 0 and (np.abs(shift) < FARTHEST).all()):
                raise ValueError("these are no lists of such rows")
            lists = lists_from(import_faiss(), len(self), self.width, facts)
            self._shift = torch.from_numpy(shift).to(self.dtype).reshape(self.width)
            self.recall_, lists.least = recall, recall.k
        self._lists = lists if self._filled(lists) else None
        return self

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows to each row of x, or nearly so."""
        if not self.exact and self.recall_ is not None and min(k, len(self) - 1) > self.recall_.k:
            self._reach(min(k, len(self) - 1))
        return self.exactly(x, k, exclude=exclude) if self.exact else self._asked(x, k, exclude)

    def _asked(self, x: Any, k: int, exclude: Any) -> Neighborhood:
        assert self._lists is not None
        x, out = checked_query(self, x, k, exclude)
        each = _PAIR * max(k + SPARE, self._lists.least) * self._lists.depth
        size = max(256, 3 * self.memory // 4 // each)
        parts = zip(x.split(size), out.split(size), strict=True)
        return joined([self._listed(rows, k, left_out) for rows, left_out in parts])

    def exactly(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The same, exact whatever it costs."""
        return super().query(x, k, exclude=exclude)

    def reach(self, x: Any, k: int) -> Recall | None:
        """Raise the effort until recall is met for rows like these; None where that is exact."""
        return self._raise_effort(x, None, self.exactly(x, k))

    def _wants_lists(self) -> bool:
        if self.recall == 1:
            return False
        if self.kind == "ivf":
            return len(self) >= LISTS_FROM
        return lists_may_pay(len(self), self.width)

    def _learned(self) -> np.ndarray:
        """The rows that centers and codes are learned on; all are centered by their mean."""
        some = training_rows(len(self), max(1, self.memory // (16 * self.width)))
        rows = compared_rows(rows_at(self.source, some, self.block), self.metric)
        self._shift = rows.mean(0, dtype=torch.float64).to(rows.dtype)
        return self._centered(rows)

    def _filled(self, lists: InvertedLists) -> bool:
        """Add all rows; not where a zero row has a distance that no point has."""
        for _, block in self.source.blocks(self.block):
            rows = compared_rows(block, self.metric)
            if self.metric == "cosine" and bool(zero_rows(rows).any()):
                return False
            lists.add(self._centered(rows))
        return True

    def _centered(self, rows: Float[Tensor, "n d"]) -> np.ndarray:
        return (rows - self._shift).float().contiguous().numpy()

    def _reach(self, k: int) -> None:
        """Fill lists until the recall of the k nearest is met, and measure it."""
        lists, rows = self._lists, drawn_rows(len(self), 2 * SAMPLE)
        assert lists is not None
        x = self.rows(rows)
        true = self.exactly(x, k, exclude=rows)  # one reading for both samples
        choose, state = slice(0, None, 2), slice(1, None, 2)
        asked = self._centered(compared_rows(x[choose], self.metric))
        homes = self._homes(lists, true.indices[choose])
        lists.read_for(asked, homes, (3 * self.recall + 1) / 4)
        for _ in lists.codings(self._learned()):
            self._lists = lists if self._filled(lists) else None
            for some in (choose, state):
                self.recall_ = self._raise_effort(x[some], rows[some], true.rows(some))

    def _homes(self, lists: InvertedLists, neighbors: Int[Tensor, "m k"]) -> np.ndarray:
        """The list of each of these rows, each read once."""
        named, place = neighbors.unique(return_inverse=True)
        homes = [
            lists.homes(self._centered(compared_rows(block[mine], self.metric)))
            for start, block in self.source.blocks(self.block)
            if len(mine := named[(named >= start) & (named < start + len(block))] - start)
        ]
        return np.concatenate(homes)[place.numpy()]

    def _raise_effort(self, x: Tensor, out: Tensor | None, true: Neighborhood) -> Recall | None:
        """Until recall is met; ``auto`` gives lists up where more than half must be read: by their
        number and not by the clock, so that a run that goes on does as it did."""
        lists = self._lists
        if lists is None:
            return None
        found = lists.reach(lambda: self._asked(x, true.k, out), true, self.recall)
        if found is None or (self.kind == "auto" and 2 * lists.probes > lists.count):
            self._lists = None
            return None
        return found

    def _listed(self, x: Float[Tensor, "m d"], k: int, out: Int[Tensor, " m"]) -> Neighborhood:
        """The nearest of the candidates; where lists give too few, exactly."""
        assert self._lists is not None
        q = compared_rows(x, self.metric)
        work = torch.from_numpy(self._centered(q))
        found = self._lists.candidates(work, min(k + SPARE, len(self)))
        best, few = decided(Neighborhood(self._squared(q, found), found), q, k, out, self.metric)
        if len(few):
            best.distances[few], best.indices[few] = self.exactly(x[few], k, exclude=out[few])
        return best

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
