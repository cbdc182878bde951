"""Who found an audit's neighbors and how far off that is; what a streamed one was fitted on."""

from __future__ import annotations

from dataclasses import dataclass, field

from vicinal.records import Record


@dataclass(frozen=True)
class SearchFacts(Record):
    """Who found the neighbors; what an approximate search moved, on rows also searched exactly.

    ``nll_moved`` and ``ece_moved`` are NED's on these rows, leave-one-out: found less exact.
    """

    engine: str
    exact: bool
    how: str  # a sentence: "IVF (…), recall@100 0.994 ± 0.001 on 1,000 exact rows; NLL moved by …"
    recall: float | None = None
    recall_se: float | None = None
    k: int | None = None
    rows: int | None = None  # searched exactly as well
    nll_moved: float | None = None
    nll_moved_se: float | None = None
    ece_moved: float | None = None
    suspects_moved: int | None = None  # of these rows: suspect by one answer, not by the other
    lost: int | None = None  # of these rows: the search missed all neighbors of their class
    recalls: dict[str, float] = field(default_factory=dict)  # of the other sets' rows, by role
    wanted: float | None = None  # the recall that was asked for


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
