"""Results row by row on disk: parquet parts of so many rows, each whole or not at all.

A part is named by its place. Work that was stopped goes on at the first part that is missing; what
is summed at the end is read from the parts, so that a run that was stopped ends like one that was
not.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.files import (
    PARTIAL,
    DiskError,
    arrow,
    reading,
    reason,
    regular_file,
    sweep,
    write_atomically,
)
from vicinal.neighbors.search.resumable import Progress

JUDGED = 1024  # rows of a part judged at a time: the working memory
Columns = Mapping[str, Any]
Run = Callable[[Callable[[int, int], Columns], Sequence[tuple[int, int]]], Iterable[Columns]]


def joined(parts: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """
    >>> joined([{"row": [0, 1]}, {"row": [2]}])
    {'row': [0, 1, 2]}
    """
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


_FOLDER = re.compile(r"(labels|samples)-[0-9a-f]{16}-[0-9]+|search-[0-9a-f]{16}")
_PART = re.compile(r"part-[0-9]{5,}\.parquet|lists\.json")


def is_parts(folder: Path) -> bool:
    """Whether a folder bears the name of such parts, or of kept lists, and holds nothing else."""
    names = [path.name for path in folder.iterdir()]
    return _FOLDER.fullmatch(folder.name) is not None and all(
        _PART.fullmatch(name) or name.endswith(PARTIAL) for name in names
    )


class Parts:
    """A folder of parquet parts of ``size`` rows each, of ``rows`` in all."""

    def __init__(self, folder: Path, rows: int, size: int) -> None:
        self.folder, self.rows = folder, rows
        self.arrow = arrow(
            "an audit of rows that do not fit into memory writes parquet, which needs pyarrow"
        )
        self.spans = [(at, min(at + size, rows)) for at in range(0, rows, size)]
        self.paths = [folder / f"part-{at:05d}.parquet" for at in range(len(self.spans))]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"cannot write to folder {folder}: {reason(error)}.") from error
        sweep(folder)

    def fill(
        self,
        work: Callable[[int, int], Columns],
        run: Run = itertools.starmap,  # one span after the other, in this process
        progress: Progress | None = None,
        title: str = "rows",
    ) -> None:
        """Make the parts that are missing; ``work(start, stop)`` gives the columns of a span."""
        missing = [at for at in range(len(self.spans)) if not self.paths[at].exists()]
        spans = [self.spans[at] for at in missing]
        for at, columns in zip(missing, run(work, spans), strict=True):
            buffer, table = io.BytesIO(), self.arrow.table(dict(columns))
            self.arrow.parquet.write_table(table, buffer, write_page_checksum=True)
            write_atomically(self.paths[at], buffer.getvalue())
            if progress is not None:
                progress(title, self.spans[at][1], self.rows)

    def read(self, *columns: str, rows: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
        """Some columns of one part after the other, as numpy arrays or lists; or of some rows."""
        read = self.arrow.parquet.read_table
        for path, (start, stop) in zip(self.paths, self.spans, strict=True):
            regular_file(path, "part", within=self.folder)
            with reading(path, "Run the same command with --fresh."):
                table = read(path, columns=list(columns), page_checksum_verification=True)
                if table.num_rows != stop - start:
                    raise ValueError(f"it holds {table.num_rows} rows, not {stop - start}")
                if rows is not None:
                    table = table.filter(np.isin(table["row"].to_numpy(), rows))
                yield {name: _values(table[name]) for name in columns}

    def columns(self, *names: str, rows: Sequence[int] | None = None) -> dict[str, list[Any]]:
        """The same of all parts together, as lists."""
        found = {name: [] for name in names}  # type: dict[str, list[Any]]
        for part in self.read(*names, rows=rows):
            for name, values in part.items():
                found[name] += values if isinstance(values, list) else values.tolist()
        return found


def _values(column: Any) -> Any:
    return column.to_pylist() if hasattr(column.type, "value_type") else column.to_numpy()
