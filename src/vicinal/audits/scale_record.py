"""What an audit of rows that are not all in memory was fitted on, and its sums over all rows."""

from __future__ import annotations

from dataclasses import dataclass

from vicinal.records import Record


@dataclass(frozen=True)
class Scale(Record):
    """An audit of rows that are not all in memory: what it was fitted on, and the sums over all."""

    how: str  # a sentence: what was fitted on how many rows, and the sampling error
    search: str
    support_rows: int
    anchors: int  # support rows that everything was fitted on
    query_rows: int
    query_sample: int  # query rows that the heads were compared on, and that the record holds
    verdicts: dict[str, int]  # of all query rows
    suspects: int  # of all support rows
    ambiguous: int
    memory: int | None = None  # bytes that were allowed
    parts: tuple[str, ...] = ()  # files that hold every row
