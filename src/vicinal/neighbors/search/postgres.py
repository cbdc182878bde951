r"""Search in PostgreSQL with pgvector: a support that lives on a server, behind the same protocol.

The rows are written to a table of their own (``COPY``) and asked for by
``ORDER BY embedding <-> query, id``: exact by default, approximate with ``hnsw=True``. pgvector
stores float32, so it proposes k and a few spare candidates; their distances are then computed here
from the rows as passed, and sorted by distance and index as in every other search.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from vicinal.checks import InputError, as_matrix, check_choice, check_k
from vicinal.neighbors.distances import METRICS, compared_rows, in_unit, zero_rows
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.exact import (
    SPARE,
    checked_exclude,
    checked_rows,
    kept_mask,
    squared_distances,
)
from vicinal.neighbors.search.smallest import by_distance_then_index

_COLUMN_LIMIT = {"vector": 16_000, "hnsw": 2_000}  # pgvector's
_OURS = "support of a vicinal search"  # the comment on our tables: no other is ever dropped


class PgSearch:
    """The protocol of ``Search`` over a table of PostgreSQL (``pip install 'vicinal[pg]'``).

    Close with :meth:`close`, or use it in a ``with`` block. The rows also stay here, for the
    distances.

    Parameters
    ----------
    dsn : a libpq connection string.
    table : which ``build`` writes anew; a table that is not of its own making is refused.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    hnsw : add an index: then answers are approximate.
    ef_search : how many candidates the index looks at.
    """

    def __init__(
        self,
        dsn: str,
        table: str = "vicinal_support",
        *,
        metric: str = "sqeuclidean",
        hnsw: bool = False,
        ef_search: int = 200,
    ) -> None:
        check_choice(metric, "metric", METRICS)
        check_k(ef_search, 1000, "ef_search", "pgvector")
        self.metric, self.table = metric, table
        self.hnsw, self.ef_search = hnsw, ef_search
        self._pg, register = _import_psycopg()
        self._connection = self._pg.connect(dsn, autocommit=True)
        self._run("CREATE EXTENSION IF NOT EXISTS vector")
        register(self._connection)
        self._support: Tensor | None = None

    @property
    def support(self) -> Tensor:
        if self._support is None:
            raise InputError("the search has no support yet. Call build(support) first.")
        return self._support

    def __len__(self) -> int:
        return 0 if self._support is None else len(self._support)

    @property
    def width(self) -> int:
        return self.support.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.support.dtype

    @property
    def exact(self) -> bool:
        return not self.hnsw

    @property
    def title(self) -> str:
        return f"PostgreSQL ({'hnsw' if self.hnsw else 'exact'})"

    def rows(self, indices: Tensor | slice) -> Tensor:
        return self.support[indices]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def build(self, support: Any) -> Self:
        """Write the table anew, in one transaction."""
        rows = as_matrix(support, "support").detach().cpu()
        limit = _COLUMN_LIMIT["hnsw" if self.hnsw else "vector"]
        if rows.shape[1] > limit:
            raise InputError(
                f"`support` has {rows.shape[1]} dimensions, pgvector takes at most {limit} "
                f"{'with' if self.hnsw else 'without'} an index. Reduce them, or search otherwise."
            )
        base = compared_rows(rows, self.metric)
        self._shift = base.mean(0)  # float32 keeps more digits of centered rows
        stored = self._stored(base, 0)
        with self._connection.transaction():
            self._drop_own()
            columns = f"(id bigint PRIMARY KEY, embedding vector({stored.shape[1]}))"
            self._run("CREATE TABLE {t} " + columns)
            self._run(f"COMMENT ON TABLE {{t}} IS '{_OURS}'")
            self._copy(stored, torch.arange(len(rows)))
            if self.hnsw:
                self._run("CREATE INDEX ON {t} USING hnsw (embedding vector_l2_ops)")
        self._support, self._base = rows, base
        self._ids = torch.arange(len(rows))
        return self

    def add(self, rows: Any) -> None:
        new = checked_rows(rows, "rows", self.width).cpu().to(self.support.dtype)
        base = compared_rows(new, self.metric)
        ids = int(self._ids[-1]) + 1 + torch.arange(len(new))
        with self._connection.transaction():
            self._copy(self._stored(base, 0), ids)
        self._support, self._base = torch.cat([self.support, new]), torch.cat([self._base, base])
        self._ids = torch.cat([self._ids, ids])

    def remove(self, indices: Any) -> None:
        keep = kept_mask(indices, len(self), self.support.device)
        self._run("DELETE FROM {t} WHERE id = ANY(%s)", (self._ids[~keep].tolist(),))
        self._support, self._base, self._ids = self.support[keep], self._base[keep], self._ids[keep]

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows of the table to each row of ``x``."""
        x = checked_rows(x, "x", self.width).cpu()
        left_out = checked_exclude(exclude, len(x), len(self), x.device)
        check_k(k, len(self) - bool((left_out >= 0).any()), "k", "the support")
        q = compared_rows(x, self.metric)
        out_ids = torch.where(left_out < 0, -1, self._ids[left_out])
        found = self._ask(self._stored(q, 1), out_ids, min(k + SPARE, len(self) - 1) + 1)
        indices = torch.searchsorted(self._ids, found.clamp_min(0))  # ids ascend with the index
        squared = squared_distances(q, self._base, indices, self.metric)
        squared = squared.masked_fill((found < 0) | (found == out_ids[:, None]), torch.inf)
        distances, indices = by_distance_then_index(in_unit(squared, self.metric), indices)
        if bool(distances[:, k - 1].isinf().any()):
            raise InputError(
                f"the hnsw index found fewer than `k`={k} rows for a query. "
                f"Pass a larger ef_search (now {self.ef_search}), or hnsw=False."
            )
        return Neighborhood(distances[:, :k].contiguous(), indices[:, :k].contiguous())

    def _ask(self, queries: Tensor, out_ids: Tensor, count: int) -> Tensor:
        """Ids of the nearest rows, -1 where an index found too few."""
        found = torch.full((len(queries), count), -1)
        # With an index the order must be by distance alone for the index to serve it.
        order = "embedding <-> %s" if self.hnsw else "embedding <-> %s, id"
        text = "SELECT id FROM {t} WHERE id <> %s ORDER BY " + order + " LIMIT %s"
        with self._connection.transaction():
            if self.hnsw:
                self._run(f"SET LOCAL hnsw.ef_search = {int(self.ef_search)}")
            self._run(f"SET LOCAL enable_{'seq' if self.hnsw else 'index'}scan = off")
            for i, query in enumerate(queries.numpy()):
                rows = self._run(text, (int(out_ids[i]), query, count)).fetchall()
                found[i, : len(rows)] = torch.tensor([row[0] for row in rows], dtype=torch.long)
        return found

    def _stored(self, base: Tensor, side: int) -> Tensor:
        """Centered rows in float32; under the cosine with two columns that put zero rows, of the
        support or of the queries, as far from all others as if they were orthogonal to them."""
        rows = (base - self._shift).float()
        if self.metric != "cosine":
            return rows
        zero = rows.new_zeros(len(rows), 2)
        zero[:, side] = zero_rows(base).float()
        return torch.cat([rows, zero], 1)

    def _drop_own(self) -> None:
        text = "SELECT to_regclass(quote_ident(%s)), obj_description(to_regclass(quote_ident(%s)))"
        name, comment = self._run(text, (self.table, self.table)).fetchone()
        if name is not None and comment != _OURS:
            raise InputError(
                f"`table` {self.table!r} exists and was not written by a vicinal search. "
                "Pass another name, or drop it yourself."
            )
        self._run("DROP TABLE IF EXISTS {t}")

    def _copy(self, rows: Tensor, ids: Tensor) -> None:
        text = self._sql("COPY {t} (id, embedding) FROM STDIN WITH (FORMAT BINARY)")
        with self._connection.cursor() as cursor, cursor.copy(text) as copy:
            copy.set_types(["int8", "vector"])
            for id_, row in zip(ids.tolist(), rows.numpy(), strict=True):
                copy.write_row([id_, row])

    def _sql(self, text: str) -> Any:
        return self._pg.sql.SQL(text).format(t=self._pg.sql.Identifier(self.table))

    def _run(self, text: str, values: tuple[object, ...] | None = None) -> Any:
        return self._connection.execute(self._sql(text), values)


def _import_psycopg() -> tuple[Any, Any]:
    try:
        import psycopg
        import psycopg.sql
        from pgvector.psycopg import register_vector
    except ImportError as error:
        raise InputError(
            "PgSearch needs the packages psycopg and pgvector, which are not installed. "
            "Run pip install 'vicinal[pg]'."
        ) from error
    return psycopg, register_vector
