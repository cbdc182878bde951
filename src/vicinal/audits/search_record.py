"""Who found an audit's neighbors, and how far off that is."""

from __future__ import annotations

from dataclasses import dataclass

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
    wanted: float | None = None  # the recall that was asked for
