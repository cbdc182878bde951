"""What is recorded of the query's rows under corruptions and attacks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vicinal.checks import InputError
from vicinal.records import Record

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class StressRow(Record):
    """The same rows under one perturbation at one strength, read by the kept head.

    ``level`` is the severity of a corruption or the ε of an attack; clean rows have neither.
    """

    name: str  # "clean", "fog", "fgsm"
    kind: str  # "clean", "corruption", "attack"
    level: float | None
    accuracy: float
    accuracy_se: float
    ece: float | None  # None: too few rows
    noise_floor: float | None
    confidence: float  # the mean
    credibility: float  # the mean
    verdicts: dict[str, float]  # shares
    wrong_supported: float  # share of all rows that are wrong and called supported
    softmax_accuracy: float | None = None  # the model's own output, where it has a class a column
    softmax_ece: float | None = None


@dataclass(frozen=True)
class StressExample(Record):
    """A row that was read rightly and, perturbed, is not. Pictures are small PNGs as data URIs."""

    row: int  # of the query
    label: int
    predicted: int
    confidence: float
    verdict: str
    before: str | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for picture in (self.before, self.after):
            if picture is not None and not _PICTURE.fullmatch(picture):
                raise InputError("a picture of `StressExample` must be a PNG as a data URI.")


@dataclass(frozen=True)
class WorstCase(Record):
    """Shares of rows still read rightly under every attack of ``attack_audit``; see there."""

    epsilon: float
    rows: int
    clean: float
    fitted: float
    smoothed: float
    transfer: float | None
    worst: float
    masked_gradients: bool | None
    note: str


@dataclass(frozen=True)
class Stress(Record):
    """Accuracy, calibration and verdicts under stress; clean rows first."""

    rows: int  # of the query, the same ones everywhere
    how: str  # which rows, which perturbations, whose constants
    cost: str  # what it took
    results: tuple[StressRow, ...]
    worst: int  # place in ``results`` of the lowest accuracy
    examples: tuple[StressExample, ...] = ()  # of the worst
    attack: WorstCase | None = None  # where the full set was asked for

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.worst < len(self.results):
            raise InputError(f"`Stress.worst` is none of its {len(self.results)} results.")
