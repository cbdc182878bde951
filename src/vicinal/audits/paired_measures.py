"""Two runs on the same rows: each measure of both, and what resampling the rows says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vicinal.records import Record

Floats = NDArray[np.float64]
Measure = Callable[[Floats, Floats, Floats], Floats]  # (draws, n), (n,), (n,) -> (draws,)

DRAWS = 1000
BINS = 15


@dataclass(frozen=True)
class Delta(Record):
    """One measure of two runs on the same rows, with the paired interval of the difference."""

    name: str
    title: str
    a: float | None
    b: float | None
    delta: float | None
    low: float | None
    high: float | None
    higher_is_better: bool

    @property
    def finding(self) -> str:
        """ "better", "worse", or "no evidence" where the interval holds zero."""
        if self.low is None or self.high is None:
            return "not measured"
        if self.low <= 0 <= self.high:
            return "no evidence"
        return "better" if (self.low > 0) == self.higher_is_better else "worse"


def resampled(
    measures: Sequence[tuple[str, str, Measure, bool]],
    right: Sequence[Floats],
    sure: Sequence[Floats],
    level: float,
    seed: int,
) -> list[Delta]:
    """Each measure of both runs on the data and on resamples of the rows, the same for both."""
    rng, n = np.random.default_rng(seed), len(right[0])
    per_block = max(1, 4_000_000 // n)
    values: list[list[Floats]] = [[] for _ in range(2 * len(measures))]
    left = DRAWS
    weights = np.ones((1, n))  # the data themselves come first
    while True:
        for at, (_, _, measure, _) in enumerate(measures):
            for run in (0, 1):
                values[2 * at + run].append(measure(weights, right[run], sure[run]))
        if left == 0:
            break
        take = min(left, per_block)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=take).astype(np.float64)
        left -= take
    found = []
    for at, (name, title, _, up) in enumerate(measures):
        first, second = np.concatenate(values[2 * at]), np.concatenate(values[2 * at + 1])
        change = second - first
        low, high = np.quantile(change[1:], [(1 - level) / 2, (1 + level) / 2])
        found.append(Delta(name, title, first[0], second[0], change[0], low, high, up))
    return found


def accuracy(weights: Floats, right: Floats, sure: Floats) -> Floats:
    return weights @ right / weights.sum(1)


def ece(weights: Floats, right: Floats, sure: Floats) -> Floats:
    bins = np.searchsorted(np.arange(1, BINS) / BINS, sure, side="left")
    gap = np.zeros(len(weights))
    for b in range(BINS):
        rows = bins == b
        gap += np.abs(weights[:, rows] @ (right[rows] - sure[rows]))
    return gap / weights.sum(1)


def coverage(weights: Floats, right: Floats, sure: Floats, *, target: float) -> Floats:
    """The largest share of rows, surest first and ties whole, that is right often enough."""
    order = np.argsort(-sure, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(sure[order]) != 0, True))
    size = np.cumsum(weights[:, order], 1)[:, ends]
    hits = np.cumsum(weights[:, order] * right[order], 1)[:, ends]
    enough = hits >= target * size - 1e-9
    return np.where(enough, size, 0).max(1) / weights.sum(1)
