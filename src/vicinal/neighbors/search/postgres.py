r"""Search in PostgreSQL with pgvector: a support that stays on its server, behind the protocol.

``build`` writes a table (``COPY``); ``open`` takes one that is there, with its vectors, labels and
ids, and never writes to it. Here only ids and labels are kept. The server orders by distance and
id; what it proposes, k and a few more, is fetched, and the distances are computed here from the
rows, as in every other search. Where the server's rounding could have hidden a neighbor, more is
fetched. Many rows at a time are not asked one by one: the table is read once in blocks and searched
here, which gives the same answer. Exact by default; with an index (``hnsw=True``) neighbors may be
missed: its effort is raised until the recall is met, and what is still missed is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import InputError, as_matrix, check_choice, check_k, check_share
from vicinal.neighbors.distances import METRICS, compared_rows, in_unit, squared_unit
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.cost import SAMPLE
from vicinal.neighbors.search.exact import (
    SPARE,
    checked_query,
    checked_rows,
    kept_mask,
    squared_distances,
)
from vicinal.neighbors.search.pg_rows import TableRows
from vicinal.neighbors.search.pg_table import PgTable
from vicinal.neighbors.search.recall import Recall, drawn_rows, recall_of
from vicinal.neighbors.search.sharded import ShardedSearch
from vicinal.neighbors.search.smallest import by_distance_then_index

_BLOCK = 64  # queries whose candidates are held at a time
_MANY = 64  # queries for which one reading of the table costs less than asking the server
_EFFORT, _MOST = 100, 1000  # candidates an index looks at: to begin with, and pgvector's limit
_DIGITS = 1e-5  # of the server's distances, relative: float32 sums of thousands of columns


class PgSearch:
    """The protocol of ``Search`` over a table of PostgreSQL (``pip install 'vicinal[pg]'``).

    Close with :meth:`close`, or use it in a ``with`` block.

    Parameters
    ----------
    dsn : a libpq connection string; ``""``: what libpq's environment says (``PGHOST``, …).
    table : which ``build`` writes anew; a table that is not of its own making is refused.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    hnsw : ask the table's index (``build`` adds one): then answers are approximate.
    ef_search : how many candidates the index looks at; None: more and more, until the recall is
        met on 1,000 rows of the table, when it is first asked.
    recall : the share of the true neighbors that an index is to find, at least.
    """

    def __init__(
        self,
        dsn: str,
        table: str = "vicinal_support",
        *,
        metric: str = "sqeuclidean",
        hnsw: bool = False,
        ef_search: int | None = None,
        recall: float = 0.98,
    ) -> None:
        check_choice(metric, "metric", METRICS)
        check_share(recall, "recall")
        if ef_search is not None:
            check_k(ef_search, _MOST, "ef_search", "pgvector")
        self.metric, self.hnsw, self.recall = metric, hnsw, recall
        self.ef_search, self._given = ef_search or _EFFORT, ef_search is not None
        self.table = PgTable(dsn, table)
        self._recall: Recall | None = None

    def __len__(self) -> int:
        return len(self.table.ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.table.close()

    @property
    def width(self) -> int:
        self._check_built()
        return self.table.width

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32  # what pgvector stores

    @property
    def exact(self) -> bool:
        return not self.hnsw

    @property
    def title(self) -> str:
        how = f"hnsw, ef_search {self.ef_search}" if self.hnsw else "exact"
        return f"PostgreSQL table {self.table.name} ({how})"

    @property
    def labels(self) -> np.ndarray | None:
        """Of the rows, as the table names them; None where it has no such column."""
        return self.table.labels

    @property
    def recall_(self) -> Recall | None:
        """Of an index: measured on 1,000 of its rows when first asked for."""
        if self.hnsw and self._recall is None:
            self._reach(min(100, len(self) - 1))
        return self._recall

    def _reach(self, k: int) -> None:
        """Raise the effort on some rows until the k nearest are found, and measure it on others."""
        halves = (slice(None),) if self._given else (slice(0, None, 2), slice(1, None, 2))
        rows = drawn_rows(len(self), len(halves) * SAMPLE)
        x = self.rows(rows)
        true = self.exactly(x, k, exclude=rows)
        for some in halves:
            self._recall = self._raised(x[some], rows[some], true.rows(some))
        if not self._given and self._recall is not None and self._recall.share < self.recall:
            warnings.warn(
                f"the hnsw index of {self.table.name} finds less than is wanted at pgvector's "
                f"largest ef_search ({_MOST}): {self._recall}. Build it with more links (m, "
                "ef_construction), or pass hnsw=False.",
                UserWarning,
                stacklevel=3,
            )

    @torch.no_grad()
    def reach(self, x: Any, k: int) -> Recall | None:
        """Raise the effort until recall is met for rows like these; None where that is exact."""
        return self._raised(x, None, self.exactly(x, k)) if self.hnsw else None

    def _raised(self, x: Any, out: Tensor | None, true: Neighborhood) -> Recall:
        if not self._given:  # an index answers with no more rows than it looks at
            self.ef_search = min(max(self.ef_search, true.k + SPARE + 1), _MOST)
        while True:
            recall = recall_of(self._answered(x, true.k, out, self.ef_search), true)
            if self._given or recall.share >= self.recall or self.ef_search == _MOST:
                return recall
            self.ef_search = min(self.ef_search + self.ef_search // 2, _MOST)

    def build(self, support: Any, labels: Any = None) -> Self:
        """Write the table anew, in one transaction."""
        rows = _storable(as_matrix(support, "support").detach().cpu(), "support")
        operators = "vector_cosine_ops" if self.metric == "cosine" else "vector_l2_ops"
        self.table.write(rows.numpy(), labels, operators if self.hnsw else None)
        self._recall = None
        return self

    def open(
        self, *, id: str | None = None, label: str | None = None, embedding: str | None = None
    ) -> Self:
        """Take the table as it lies; its columns are found by their kind where not named."""
        self.table.open(id, label, embedding)
        self._recall = None
        return self

    def rows(self, indices: Tensor | slice) -> Tensor:
        """These rows of the table, in this order; only they are fetched."""
        self._check_built()
        return torch.from_numpy(self.table.fetch(torch.arange(len(self))[indices].numpy()))

    def add(self, rows: Any, labels: Any = None) -> None:
        new = checked_rows(rows, "rows", self.width).cpu()
        self.table.append(_storable(new, "rows").numpy(), labels)
        self._recall = None

    def remove(self, indices: Any) -> None:
        self._check_built()
        self.table.delete(kept_mask(indices, len(self), torch.device("cpu")).numpy())
        self._recall = None

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows of the table to each row of ``x``."""
        if self.hnsw and not self._given:
            self._check_built()
            wanted = min(k, len(self) - 1)
            if self._recall is None or wanted > self._recall.k:
                self._reach(wanted)
        return self._answered(x, k, exclude, self.ef_search if self.hnsw else None)

    @torch.no_grad()
    def exactly(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The same without the index, whatever it costs."""
        return self._answered(x, k, exclude, None)

    def _answered(self, x: Any, k: int, exclude: Any, index: int | None) -> Neighborhood:
        x, left_out = (part.cpu() for part in checked_query(self, x, k, exclude))
        if index is None and len(x) >= _MANY:
            whole = ShardedSearch(self.metric).build(TableRows(self.table))
            return whole.query(x, k, exclude=left_out)
        parts = zip(x.split(_BLOCK), left_out.split(_BLOCK), strict=True)
        return joined([self._block(rows, k, out, index) for rows, out in parts])

    def _block(self, x: Tensor, k: int, out: Tensor, index: int | None) -> Neighborhood:
        """Fetch, compute, and where the k-th is as far as what was not fetched may be, fetch more.

        Rows as far as each other to the last digit are in order of id already.
        """
        count = min(k + SPARE, len(self) - 1) + 1
        found = self._fetched(x, k, out, count, index)
        distances, indices, last, tied = (torch.cat(part) for part in zip(*found, strict=True))
        while index is None and count < len(self):
            kth = squared_unit(distances[:, -1].double(), self.metric)
            reached = last.square() if self.metric != "cosine" else 2 * last
            unsure = (~tied & (kth >= reached * (1 - _DIGITS))).nonzero()[:, 0]
            if not len(unsure):
                break
            count = min(8 * count, len(self))
            more = list(self._fetched(x[unsure], k, out[unsure], count, index))
            for part, new in zip(
                (distances, indices, last, tied), zip(*more, strict=True), strict=True
            ):
                part[unsure] = torch.cat(new)
        return Neighborhood(distances, indices)

    def _fetched(
        self, x: Tensor, k: int, out: Tensor, count: int, index: int | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For each query: the k nearest fetched, how far the last one is to the server, and whether
        that is as far as the k-th of them."""
        q, cosine = compared_rows(x, self.metric), self.metric == "cosine"
        answers = self.table.nearest(x.float().numpy(), out.tolist(), count, cosine, index)
        for i, (places, rows, far) in enumerate(answers):
            if len(places) < k:
                raise InputError(
                    f"the hnsw index found fewer than `k`={k} rows for a query. "
                    f"Pass a larger ef_search (now {self.ef_search}), or hnsw=False."
                )
            base = compared_rows(torch.from_numpy(rows), self.metric)
            every = torch.arange(len(base))[None]
            squared = squared_distances(q[i : i + 1], base, every, self.metric)
            best = by_distance_then_index(
                in_unit(squared, self.metric), torch.from_numpy(places)[None]
            )
            distances, indices = (part[:, :k].contiguous() for part in best)
            yield distances, indices, torch.tensor([far[-1]]), torch.tensor([far[k - 1] == far[-1]])

    def _check_built(self) -> None:
        if not len(self):
            raise InputError("the search has no support yet. Call build(support) or open() first.")


def _storable(rows: Tensor, name: str) -> Tensor:
    """pgvector stores float32: what it cannot hold is not rounded in silence."""
    stored = rows.float()
    if not torch.equal(stored.to(rows.dtype), rows):
        raise InputError(
            f"`{name}` is {rows.dtype} and pgvector stores float32, which does not hold all of its "
            f"digits. Pass {name}.float() if that is near enough."
        )
    return stored
