"""Measures of two runs on the same rows, and on resamples of the rows that are the same for both.

    Δ* = m(w, b) − m(w, a),   w ~ Multinomial(n; 1/n, …, 1/n)

The interval of a difference is between quantiles of Δ*: what both runs find hard cancels in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vicinal.records import Record

Floats = NDArray[np.float64]

DRAWS = 1000
BLOCK = 4_000_000  # weights in memory
BINS = 15


class Measure(NamedTuple):
    """A statistic of weighted rows, and the columns of both runs that it is computed from."""

    of: Callable[..., Floats]  # (draws, n), (n,), … -> (draws,)
    a: tuple[Floats, ...]
    b: tuple[Floats, ...]


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
    paired: bool = True  # else the interval comes from both standard errors, and is too wide

    @property
    def head(self) -> str | None:
        """Whose measure it is, where it is of one of the heads: ``nll_ned`` is of ``ned``."""
        return self.name.partition("_")[2] or None

    @property
    def finding(self) -> str:
        """ "better", "worse", or "no evidence" where the interval holds zero."""
        if self.low is None or self.high is None:
            return "not measured"
        if self.low <= 0 <= self.high:
            return "no evidence"
        return "better" if (self.low > 0) == self.higher_is_better else "worse"


class Difference(NamedTuple):
    """Both values, and the interval of b minus a."""

    a: float
    b: float
    low: float
    high: float


def resampled(measures: Sequence[Measure], rows: int, level: float, seed: int) -> list[Difference]:
    """Each measure of both runs on the data, with the paired interval of the difference."""
    if not measures or not rows:
        return []
    blocks = [
        [[m.of(weights, *m.a), m.of(weights, *m.b)] for m in measures]
        for weights in _weights(rows, seed)
    ]
    values = np.concatenate(blocks, axis=2)  # (measures, 2, 1 + draws)
    ends = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(values[:, 1, 1:] - values[:, 0, 1:], ends, axis=1)
    lines = zip(values[:, 0, 0], values[:, 1, 0], low, high, strict=True)
    return [Difference(*map(float, line)) for line in lines]


def _weights(n: int, seed: int) -> Iterator[Floats]:
    """How often each row counts: once each in the data themselves, then in blocks of resamples."""
    yield np.ones((1, n))
    rng, block = np.random.default_rng(seed), max(1, BLOCK // n)
    for start in range(0, DRAWS, block):
        size = min(block, DRAWS - start)
        yield rng.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)


def delta_of(name: str, title: str, found: Difference, up: bool) -> Delta:
    a, b, low, high = found
    return Delta(name, title, a, b, b - a, low, high, up)


def mean(weights: Floats, values: Floats) -> Floats:
    return weights @ values / weights.sum(1)


def share_of(weights: Floats, values: Floats, counted: Floats) -> Floats:
    """The mean of the rows that are counted, in each resample."""
    return weights @ values / (weights @ counted)


def ece(weights: Floats, right: Floats, sure: Floats) -> Floats:
    """Each row's gap stands in the column of its bin, so that one product sums all bins."""
    gaps = np.zeros((len(sure), BINS))
    bins = np.searchsorted(np.arange(1, BINS) / BINS, sure, side="left")
    gaps[np.arange(len(sure)), bins] = right - sure
    return np.abs(weights @ gaps).sum(1) / weights.sum(1)
