"""What an audit found about the support's labels: every row's score, suspects, how many are wrong.

Rows are positions in the support, classes positions in ``Audit.classes``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError
from vicinal.records import Record


@dataclass(frozen=True)
class Suspect(Record):
    """A support row whose neighborhood contradicts its label."""

    row: int
    id: str
    given: int
    suggested: int
    p_given: float
    p_suggested: float
    affected: int | None  # query predictions that change when the suggestion is accepted
    neighbors: tuple[int, ...]
    weights: tuple[float, ...]
    distances: tuple[float, ...]
    depth_agreement: float | None = None  # share of layers whose neighbors contradict the label too
    score: float | None = None  # 1 - P(the given label is the true one)


@dataclass(frozen=True)
class Effect(Record):
    """What accepting the first ``top`` suggestions does to the answers of ``head``.

    Exact for its neighbors; a linear part beside them stays as it is.
    """

    top: int
    changed: int
    fixed: int | None
    broken: int | None
    accuracy_before: float | None
    accuracy_after: float | None
    head: str = "ned"


@dataclass(frozen=True)
class LabelRows(Record):
    """Every support row, one entry in every column: what ``labels.csv`` holds."""

    id: tuple[str, ...]
    given: tuple[int, ...]
    suggested: tuple[int, ...]
    score: tuple[float, ...]  # larger is more suspect
    p_given: tuple[float, ...]
    p_suggested: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            if len(getattr(self, field.name)) != len(self.id):
                raise InputError(
                    f"`LabelRows.{field.name}` must hold one entry per support row: "
                    f"{len(self.id)} ids, {len(getattr(self, field.name))} entries."
                )


@dataclass(frozen=True)
class WrongPair(Record):
    """Labels ``given`` that should be ``true``: how many, at least, at most."""

    given: int
    true: int
    count: float
    low: float
    high: float


@dataclass(frozen=True)
class WrongLabels(Record):
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
    wrong: WrongLabels | None = None
    alike: tuple[AlikeClasses, ...] = ()
    ambiguous: Ambiguous | None = None

    @property
    def scores(self) -> NDArray[np.float64]:
        """How suspect the label of each support row is, (n_support,); empty in older records."""
        return np.array(self.rows.score if self.rows else (), dtype=np.float64)
