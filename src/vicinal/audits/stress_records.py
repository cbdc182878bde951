"""What is recorded of the query's rows under corruptions and attacks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vicinal.checks import InputError, check_choice
from vicinal.confidence.verdicts import VERDICTS
from vicinal.records import Record, Share

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class StressRow(Record):
    """The same rows under one perturbation at one strength, read by the kept head.

    ``level`` is the severity of a corruption or the ε of an attack; clean rows have neither.
    """

    name: str  # "clean", "fog", "fgsm"
    kind: str  # "clean", "corruption", "attack"
    level: float | None
    accuracy: Share
    accuracy_se: Share
    ece: Share | None  # None: too few rows
    noise_floor: Share | None
    confidence: Share  # the mean
    credibility: Share  # the mean
    verdicts: dict[str, Share]  # shares
    wrong_supported: Share  # share of all rows that are wrong and called supported
    softmax_accuracy: Share | None = None  # the model's own output, where it has a class a column
    softmax_ece: Share | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = [self.accuracy, self.wrong_supported, *self.verdicts.values()]
        if tuple(self.verdicts) != VERDICTS or not all(0 <= share <= 1 for share in shares):
            raise InputError(
                f"`StressRow` {self.name!r} must hold shares of {', '.join(VERDICTS)} from 0 to 1."
            )


@dataclass(frozen=True)
class StressExample(Record):
    """A row that was read rightly and, perturbed, is not. Pictures are small PNGs as data URIs."""

    row: int  # of the query
    label: int
    predicted: int
    confidence: Share
    verdict: str
    before: str | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.verdict, "StressExample.verdict", VERDICTS)
        for picture in (self.before, self.after):
            if picture is not None and not _PICTURE.fullmatch(picture):
                raise InputError("a picture of `StressExample` must be a PNG as a data URI.")


@dataclass(frozen=True)
class WorstCase(Record):
    """Shares of rows still read rightly under every attack of ``attack_audit``; see there."""

    epsilon: float
    rows: int
    clean: Share
    fitted: Share
    smoothed: Share
    transfer: Share | None
    worst: Share
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
