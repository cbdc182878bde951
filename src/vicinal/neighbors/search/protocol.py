"""What every engine answers: the k nearest rows of a support, wherever its rows lie.

All engines answer the same question in the same way: distances ascend, equal distances are in order
of index, each returned distance is computed from the difference of the two rows, and a row to leave
out is left out by its index, never by its place. Rows may lie in memory, in files, on a server or
on other machines, so no engine hands out "the support": :meth:`Search.rows` reads the rows that are
named, and what walks over all of them does so block by block (:func:`leave_one_out` in
``resumable.py`` does).
"""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.recall import Recall


class Search(Protocol):
    """What the rest of the library asks of a search.

    Indices are 0..n-1 over the whole support, in whatever parts it is kept.
    """

    metric: str

    @property
    def exact(self) -> bool:
        """Whether every answer is promised to be the exact one; if not, the search is an
        :class:`ApproximateSearch`, which can say how far off it is."""

    @property
    def title(self) -> str:
        """The engine in a few words, for the record of an audit."""

    def __len__(self) -> int:
        """How many rows the support has."""

    @property
    def width(self) -> int:
        """How many columns a row has."""

    @property
    def dtype(self) -> torch.dtype:
        """The kind of number that :meth:`rows` answers with."""

    def build(self, support: Any) -> Self:
        """Take the rows to search; returns itself."""

    def rows(self, indices: Int[Tensor, " m"] | slice) -> Float[Tensor, "m d"]:
        """These rows of the support as they were given, in this order; no more are read."""

    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows to each row of x; ``exclude``: an index per query, -1 for none."""

    def add(self, rows: Any) -> None:
        """Append rows; they get the next indices. (A support that is only read refuses.)"""

    def remove(self, indices: Any) -> None:
        """Delete rows; later rows move up, so indices stay 0..n-1. (One only read refuses.)"""


class ApproximateSearch(Search, Protocol):
    """A search that may miss neighbors: it has measured how many, and can be asked not to."""

    @property
    def recall_(self) -> Recall | None:
        """What was measured at build, at the effort it has chosen; None where it is exact."""

    def exactly(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """:meth:`query`, exact whatever it costs."""


@runtime_checkable
class EffortSearch(Protocol):
    """An approximate search that can try harder."""

    def reach(self, x: Any, k: int) -> Recall | None:
        """Raise the effort until recall is met for rows like these; None where that is exact."""
