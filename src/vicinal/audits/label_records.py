"""What an audit found about the support's labels: every row's score, suspects, how many are wrong.

Rows are positions in the support, classes positions in ``Audit.classes``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vicinal.records import Record, Share


@dataclass(frozen=True)
class Suspect(Record):
    """A support row whose neighborhood contradicts its label."""

    TOGETHER = (("neighbors", "weights", "distances"),)

    row: int
    id: str
    given: int
    suggested: int
    p_given: Share
    p_suggested: Share
    affected: int | None  # query predictions that change when the suggestion is accepted
    neighbors: tuple[int, ...]
    weights: tuple[Share, ...]
    distances: tuple[float, ...]
    depth_agreement: Share | None = None  # share of layers whose neighbors contradict the label too
    score: Share | None = None  # 1 - P(the given label is the true one)


@dataclass(frozen=True)
class Effect(Record):
    """What accepting the first ``top`` suggestions does to the answers of ``head``.

    Exact for its neighbors; a linear part beside them stays as it is.
    """

    top: int
    changed: int
    fixed: int | None
    broken: int | None
    accuracy_before: Share | None
    accuracy_after: Share | None
    head: str = "ned"


@dataclass(frozen=True)
class LabelRows(Record):
    """Every support row, one entry in every column: what ``labels.csv`` holds."""

    TOGETHER = (("id", "given", "suggested", "score", "p_given", "p_suggested"),)

    id: tuple[str, ...]
    given: tuple[int, ...]
    suggested: tuple[int, ...]
    score: tuple[Share, ...]  # larger is more suspect
    p_given: tuple[Share, ...]
    p_suggested: tuple[Share, ...]


@dataclass(frozen=True)
class WrongPair(Record):
    """Labels ``given`` that should be ``true``: how many, at least, at most."""

    given: int
    true: int
    count: float
    low: float
    high: float


@dataclass(frozen=True)
class WrongCount(Record):
    """How many labels are wrong: an estimate, its interval, and the class pairs with the most."""

    count: int
    low: int
    high: int
    how: str
    pairs: tuple[WrongPair, ...] = ()


@dataclass(frozen=True)
class AlikeClasses(Record):
    """Two classes that may be one; ``apart`` is 1 where they are always told apart, 0 never."""

    a: int
    b: int
    apart: float


@dataclass(frozen=True)
class Ambiguous(Record):
    """Rows of which two labels are plausible: posteriors within ``factor`` of one another."""

    factor: float
    rows: tuple[int, ...]


@dataclass(frozen=True)
class LabelAudit(Record):
    checked: int
    how: str
    suspects: tuple[Suspect, ...]  # most suspicious first
    effects: tuple[Effect, ...] = ()
    rows: LabelRows | None = None
    wrong: WrongCount | None = None
    alike: tuple[AlikeClasses, ...] = ()
    ambiguous: Ambiguous | None = None

    @property
    def scores(self) -> NDArray[np.float64]:
        """How suspect the label of each support row is, (n_support,); empty in older records."""
        return np.array(self.rows.score if self.rows else (), dtype=np.float64)
