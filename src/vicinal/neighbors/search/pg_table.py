"""A table of PostgreSQL with a vector, an id and maybe a label to each row: what SQL there is.

Names are quoted, values are sent apart from the text, and no table that is not of our own making is
ever written to or dropped. In memory are the ids and the labels, in order of id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError
from vicinal.files import fingerprint

_COLUMN_LIMIT = {"vector": 16_000, "hnsw": 2_000}  # pgvector's
_OURS = "support of a vicinal search"  # the comment on our tables
_LABELS = ("label", "labels", "y", "target", "class")
_BLOCK = 4096  # rows fetched at a time


class PgTable:
    """One table over one connection; ``ids`` and ``labels`` are those of its rows, by place."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self._names = {"t": name, "id": "id", "label": "label", "x": "embedding"}
        self._pg, self._register = _import_psycopg()
        try:
            self._connection = self._pg.connect(dsn, autocommit=True)
        except self._pg.Error as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(
                f"the PostgreSQL server cannot be reached: {first}. Name it in `dsn`, in "
                "DATABASE_URL, or in libpq's variables (PGHOST, PGPORT, PGDATABASE, PGUSER)."
            ) from None
        self._own = False
        self.width = 0
        self.ids: NDArray[Any] = np.empty(0, dtype=np.int64)
        self.labels: NDArray[Any] | None = None

    @property
    def columns(self) -> dict[str, str | None]:
        """Which column holds what, as ``open`` takes them."""
        names = self._names
        label = None if self.labels is None else names["label"]
        return {"id": names["id"], "label": label, "embedding": names["x"]}

    def marks(self) -> str:
        """What ids and labels are known by."""
        labels = [] if self.labels is None else [str(label) for label in self.labels.tolist()]
        return fingerprint("\n".join(map(str, self.ids.tolist())), "\n".join(labels))[:16]

    def close(self) -> None:
        self._connection.close()

    def write(self, rows: NDArray[np.float32], labels: Any, operators: str | None) -> None:
        """The table anew, in one transaction; with an index for these operators."""
        width, limit = rows.shape[1], _COLUMN_LIMIT["hnsw" if operators else "vector"]
        if width > limit:
            raise InputError(
                f"`support` has {width} dimensions, pgvector takes at most {limit} "
                f"{'with' if operators else 'without'} an index. Reduce them, or search otherwise."
            )
        names = _label_column(labels, len(rows))
        self._prepare(writing=True)
        with self._connection.transaction():
            self._drop_own()
            columns = f"(id bigint PRIMARY KEY, label {_kind(names)}, embedding vector({width}))"
            self._run("CREATE TABLE {t} " + columns)
            self._run(f"COMMENT ON TABLE {{t}} IS '{_OURS}'")
            ids = np.arange(len(rows))
            self._copy(ids, names, rows)
            if operators:
                self._run(f"CREATE INDEX ON {{t}} USING hnsw (embedding {operators})")
        self._names |= {"id": "id", "label": "label", "x": "embedding"}
        self._own, self.width, self.ids, self.labels = True, width, ids, names

    def open(self, id: str | None, label: str | None, embedding: str | None) -> None:
        """The table as it lies; only read."""
        self._prepare(writing=False)
        kinds = self._columns()
        x = embedding or _only([n for n, kind in kinds.items() if kind == "vector"], self.name)
        key = id or self._key(kinds)
        named = label or next((name for name in _LABELS if name in kinds), None)
        for name in (x, key, named):
            if name is not None and name not in kinds:
                raise InputError(
                    f"the table {self.name!r} has no column {name!r}. It has {', '.join(kinds)}."
                )
        self._names |= {"id": key, "x": x, "label": named or key}
        self._own = False
        bad = self._run("SELECT count(*) FROM {t} WHERE {x} IS NULL OR {id} IS NULL").fetchone()[0]
        if bad:
            raise InputError(f"{bad:,} rows of the table {self.name!r} have no vector or no id.")
        dims = self._run("SELECT DISTINCT vector_dims({x}) FROM {t} LIMIT 2").fetchall()
        if len(dims) != 1:
            what = "no rows" if not dims else "vectors of different widths"
            raise InputError(f"the table {self.name!r} has {what}. It cannot be a support.")
        self.width = int(dims[0][0])
        pairs = self._run("SELECT {id}, {label} FROM {t} ORDER BY {id}").fetchall()
        self.ids = np.array([pair[0] for pair in pairs])
        if len(np.unique(self.ids)) < len(self.ids):
            raise InputError(f"ids of the table {self.name!r} occur more than once.")
        self.labels = None if named is None else np.array([pair[1] for pair in pairs])

    def _prepare(self, *, writing: bool) -> None:
        """What is only read is read in transactions that cannot write."""
        mode = "READ WRITE" if writing else "READ ONLY"
        self._run(f"SET SESSION CHARACTERISTICS AS TRANSACTION {mode}")
        try:
            if writing:
                self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._register(self._connection)
        except self._pg.Error as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(
                f"the server has no pgvector that this user may use: {first}."
            ) from None

    def nearest(
        self,
        queries: NDArray[np.float32],
        out: list[int],
        count: int,
        cosine: bool,
        index: int | None,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], list[float]]]:
        """For each query places, rows and the server's distances of the nearest, at most ``count``.

        Parameters
        ----------
        queries : rows of the table's width.
        out : for each the place of a row that is not asked for, -1 for none.
        count : how many to fetch.
        cosine : by angle, a zero row as if orthogonal to everything; else by length.
        index : how many candidates an index looks at; None: no index is asked.
        """
        far = "{x} <=> %(q)s" if cosine else "{x} <-> %(q)s"
        whole = f"coalesce(nullif({far}, 'NaN'), 1), {{id}}"
        order = far if index else whole  # by distance alone, for an index to serve it
        text = f"SELECT {{id}}, {{x}}, coalesce(nullif({far}, 'NaN'), 1) FROM {{t}} "
        text += f"WHERE %(any)s OR {{id}} <> %(out)s ORDER BY {order} LIMIT %(count)s"
        with self._connection.transaction():
            if index:
                self._run(f"SET LOCAL hnsw.ef_search = {int(index)}")
            self._run(f"SET LOCAL enable_{'seq' if index else 'index'}scan = off")
            for query, gone in zip(queries, out, strict=True):
                left = self.ids[max(gone, 0)].item()
                values = {"q": query, "any": gone < 0, "out": left, "count": count}
                found = self._run(text, values, binary=True).fetchall()
                rows = _matrix(found, self.width)
                yield self._places([row[0] for row in found]), rows, [row[2] for row in found]

    def fetch(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these places, in this order."""
        rows = np.empty((len(places), self.width), dtype=np.float32)
        for start in range(0, len(places), _BLOCK):
            block = places[start : start + _BLOCK]
            text = "SELECT {id}, {x} FROM {t} WHERE {id} = ANY(%s)"
            found = self._run(text, (self.ids[block].tolist(),), binary=True).fetchall()
            at = np.full(len(self.ids), -1)
            at[self._places([row[0] for row in found])] = np.arange(len(found))
            if (at[block] < 0).any():
                raise self._changed()
            rows[start : start + len(block)] = _matrix(found, self.width)[at[block]]
        return rows

    def stream(self, size: int, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Vectors from one place to another, at most ``size`` at a time, in order of id.

        Every block is a question of its own: whoever stops reading leaves nothing open.
        """
        text = "SELECT {id}, {x} FROM {t} WHERE {id} >= %s ORDER BY {id} LIMIT %s"
        for at in range(start, stop, size):
            wanted = self.ids[at : min(at + size, stop)].tolist()
            found = self._run(text, (wanted[0], len(wanted)), binary=True).fetchall()
            if [row[0] for row in found] != wanted:
                raise self._changed()
            yield at, _matrix(found, self.width)

    def append(self, rows: NDArray[np.float32], labels: Any) -> None:
        self._check_own()
        names = _label_column(labels, len(rows))
        if names is not None and (self.labels is None or _kind(names) != _kind(self.labels)):
            raise InputError(
                f"`labels` are {_kind(names)}, those of the table {self.name!r} are "
                f"{'none' if self.labels is None else _kind(self.labels)}. Use the same kind."
            )
        ids = int(self.ids[-1]) + 1 + np.arange(len(rows))
        with self._connection.transaction():
            self._copy(ids, names, rows)
        if self.labels is not None:
            more = np.full(len(rows), None) if names is None else names
            self.labels = np.concatenate([self.labels.astype(object), more])
        self.ids = np.concatenate([self.ids, ids])

    def delete(self, kept: NDArray[np.bool_]) -> None:
        self._check_own()
        self._run("DELETE FROM {t} WHERE id = ANY(%s)", (self.ids[~kept].tolist(),))
        self.ids = self.ids[kept]
        self.labels = None if self.labels is None else self.labels[kept]

    def _places(self, ids: list[Any]) -> NDArray[np.int64]:
        order = np.argsort(self.ids, kind="stable") if self.ids.dtype.kind not in "iu" else None
        wanted = np.array(ids, dtype=self.ids.dtype)
        spots = np.searchsorted(self.ids, wanted, sorter=order).clip(max=len(self.ids) - 1)
        places = spots if order is None else order[spots]
        if (self.ids[places] != wanted).any():
            raise self._changed()
        return places

    def _changed(self) -> InputError:
        return InputError(
            f"the table {self.name!r} has changed since it was opened: rows came or went. "
            "Open it again."
        )

    def _columns(self) -> dict[str, str]:
        text = (
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attnum > 0 "
            "AND NOT attisdropped AND attrelid = to_regclass(%s) ORDER BY attnum"
        )
        kinds = dict(self._run(text, (self._quoted(),)).fetchall())
        if not kinds:
            raise InputError(f"there is no table {self.name!r} on the server.")
        return kinds

    def _key(self, kinds: dict[str, str]) -> str:
        text = (
            "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY(indkey) WHERE indisprimary AND indrelid = to_regclass(%s)"
        )
        found = [row[0] for row in self._run(text, (self._quoted(),)).fetchall()]
        if len(found) != 1 and "id" not in kinds:
            raise InputError(
                f"the table {self.name!r} has no primary key of one column and no column 'id'. "
                "Name the column of ids."
            )
        return found[0] if len(found) == 1 else "id"

    def _quoted(self) -> str:
        return self._pg.sql.Identifier(*self.name.split(".")).as_string(self._connection)

    def _drop_own(self) -> None:
        text = "SELECT to_regclass(%s), obj_description(to_regclass(%s))"
        name, comment = self._run(text, (self._quoted(), self._quoted())).fetchone()
        if name is not None and comment != _OURS:
            raise InputError(
                f"`table` {self.name!r} exists and was not written by a vicinal search. "
                "Pass another name, or drop it yourself."
            )
        self._run("DROP TABLE IF EXISTS {t}")

    def _check_own(self) -> None:
        if not self._own:
            raise InputError(
                f"the table {self.name!r} was not written by this search and is only read. "
                "Change it on its server, and open it again."
            )

    def _copy(
        self, ids: NDArray[np.int64], labels: NDArray[Any] | None, rows: NDArray[np.float32]
    ) -> None:
        text = self._sql("COPY {t} (id, label, embedding) FROM STDIN WITH (FORMAT BINARY)")
        names = [None] * len(ids) if labels is None else labels.tolist()
        with self._connection.cursor() as cursor, cursor.copy(text) as copy:
            kind = self.labels if labels is None else labels
            copy.set_types(["int8", "int8" if _kind(kind) == "bigint" else "text", "vector"])
            for line in zip(ids.tolist(), names, rows, strict=True):
                copy.write_row(line)

    def _sql(self, text: str) -> Any:
        sql, names = self._pg.sql, dict(self._names)
        table = sql.Identifier(*names.pop("t").split("."))
        return sql.SQL(text).format(t=table, **{k: sql.Identifier(v) for k, v in names.items()})

    def _run(self, text: str, values: Any = None, *, binary: bool = False) -> Any:
        return self._connection.execute(self._sql(text), values, binary=binary)


def _only(vectors: list[str], table: str) -> str:
    if len(vectors) != 1:
        some = f"several columns of vectors ({', '.join(vectors)})" if vectors else "no vectors"
        raise InputError(f"the table {table!r} has {some}. Name the one that is compared.")
    return vectors[0]


def _kind(labels: NDArray[Any] | None) -> str:
    """Of the column; numbers that were joined by rows without a label are numbers still."""
    known = [] if labels is None else [label for label in labels[:64].tolist() if label is not None]
    return "bigint" if known and all(isinstance(label, int) for label in known) else "text"


def _matrix(found: list[Any], width: int) -> NDArray[np.float32]:
    rows = np.empty((len(found), width), dtype=np.float32)
    for i, row in enumerate(found):
        rows[i] = row[1] if isinstance(row[1], np.ndarray) else row[1].to_numpy()  # pgvector 0.4
    return rows


def _label_column(labels: Any, rows: int) -> NDArray[Any] | None:
    """Whole numbers as they are, anything else as text."""
    if labels is None:
        return None
    names = np.asarray(labels)
    if names.shape != (rows,):
        raise InputError(f"`labels` must hold one label per row: {names.shape} for {rows} rows.")
    if names.dtype.kind in "iu":
        return names.astype(np.int64)
    return np.array([str(label) for label in names.tolist()], dtype=object)


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
