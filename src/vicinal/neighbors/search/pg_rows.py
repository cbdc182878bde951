"""``pg:TABLE``: the rows of a table of PostgreSQL, read in blocks where they lie.

``pg:TABLE`` and ``pg:schema.TABLE`` are on the server that ``DATABASE_URL`` or libpq's variables
(``PGHOST``, ``PGDATABASE``, …) name; ``pg:postgresql://host/db#TABLE`` names it itself. No file
ever does: whoever opens a head's file decides which server is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import InputError
from vicinal.neighbors.search.pg_table import PgTable

PREFIX = "pg:"


class PgAddress(NamedTuple):
    """Where a table is: a connection string (empty: libpq's own variables), and its name."""

    dsn: str
    table: str


def is_pg(spec: object) -> bool:
    return isinstance(spec, str) and spec.startswith(PREFIX)


def pg_address(spec: str) -> PgAddress:
    """
    >>> pg_address("pg:postgresql://host/shop#items")
    PgAddress(dsn='postgresql://host/shop', table='items')
    """
    place = spec.removeprefix(PREFIX)
    dsn, _, table = place.rpartition("#") if "://" in place else ("", "", place)
    if not table or "://" in table:
        raise InputError(
            f"{spec!r} names no table. Write pg:TABLE, or pg:postgresql://host/database#TABLE."
        )
    return PgAddress(dsn or os.environ.get("DATABASE_URL", ""), table)


class TableRows:
    """A table's rows in order of id, read in blocks."""

    dtype = torch.float32  # what pgvector stores

    def __init__(self, table: PgTable) -> None:
        self.table = table

    @property
    def width(self) -> int:
        return self.table.width

    def __len__(self) -> int:
        return len(self.table.ids)

    def blocks(
        self, size: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        stop = len(self) if stop is None else stop
        for at, rows in self.table.stream(size, start, stop):
            yield at, torch.from_numpy(rows)


class PgRows(TableRows):
    """A table as rows that are read in blocks, in order of id; ids and labels are in memory."""

    def __init__(
        self,
        spec: str,
        *,
        id: str | None = None,
        label: str | None = None,
        embedding: str | None = None,
    ) -> None:
        self._open(pg_address(spec), {"id": id, "label": label, "embedding": embedding})

    def _open(self, address: PgAddress, columns: dict[str, str | None]) -> None:
        self.address, self.name = address, address.table
        self.table = PgTable(*address)
        self.table.open(**columns)

    def __getstate__(self) -> tuple[PgAddress, dict[str, str | None]]:
        return self.address, self.table.columns  # another process opens the table itself

    def __setstate__(self, state: tuple[PgAddress, dict[str, str | None]]) -> None:
        self._open(*state)

    def labels(self) -> NDArray[Any] | None:
        found = self.table.labels
        if found is not None and any(label is None for label in found.tolist()):
            raise InputError(f"some rows of the table {self.name!r} have no label.")
        return found

    def ids(self, start: int, stop: int) -> list[str]:
        return [str(name) for name in self.table.ids[start:stop].tolist()]
