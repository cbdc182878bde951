r"""Does a confidence of 0.8 come true eight times in ten?

.. math::

    \mathrm{ECE} = \sum_{b=1}^{M} \frac{n_b}{n}\,|\operatorname{acc}(b) - \operatorname{conf}(b)|
    = \frac1n \sum_b \Bigl|\sum_{i \in b} (\text{correct}_i - c_i)\Bigr|

(Guo et al. 2017; Karpusha 2020, eq. 6 and 7). Bins are right-closed, :math:`((b-1)/M,\; b/M]`, and
the first also holds 0. Neighbor heads give exact multiples of 1/k, so the convention decides the
number: :class:`ReliabilityBins` carries it. Equal-mass bins never split rows of equal confidence.

Even a perfectly calibrated predictor shows an ECE above zero on n rows; :func:`noise_floor` says
how much, exactly, and an ECE without it cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vicinal.checks import InputError, as_tensor, check_choice
from vicinal.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    as_columns,
    as_confidence,
    as_correct,
    as_probabilities,
    exact_sum,
)
from vicinal.evaluation.intervals import (
    check_fraction,
    clopper_pearson_interval,
    wilson_interval,
)
from vicinal.evaluation.poisson_binomial import mean_absolute_deviation

SCHEMES = ("width", "mass")
MODES = ("top_label", "positive", "classwise")
INTERVALS = {"wilson": wilson_interval, "clopper-pearson": clopper_pearson_interval}


class MaximumGap(NamedTuple):
    """The worst bin among those with ``min_count`` rows; ``None`` where no bin has so many."""

    gap: float | None
    bin: int | None
    rows: int
    min_count: int


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """One entry per bin ``(lower, upper]``; ``nan`` where a bin is empty.

    ``accuracy`` lies in ``[low, high]`` at ``level``; ``gap`` is accuracy − confidence, so that
    negative means overconfident. For ``scheme="mass"`` the edges are the confidences the bin holds.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray
    correct: IntArray
    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray
    scheme: str
    level: float
    ece: float
    closed: str = "right"

    @property
    def gap(self) -> FloatArray:
        return self.accuracy - self.confidence

    @property
    def share(self) -> FloatArray:
        return self.count / self.count.sum()

    def mce(self, min_count: int = 10) -> MaximumGap:
        """The largest |gap| among bins of at least ``min_count`` rows: one row proves nothing."""
        rows = np.where(self.count >= max(min_count, 1), np.abs(self.gap), -1.0)
        worst = int(np.argmax(rows))
        if rows[worst] < 0:
            return MaximumGap(None, None, 0, min_count)
        return MaximumGap(float(rows[worst]), worst, int(self.count[worst]), min_count)

    def __str__(self) -> str:
        head = f"{'bin':>16} {'rows':>7} {'conf':>7} {'acc':>7}  {self.level:.0%} interval"
        filled = np.flatnonzero(self.count)
        lines = [
            f"({self.lower[b]:.4f}, {self.upper[b]:.4f}] {self.count[b]:>6} "
            f"{self.confidence[b]:>7.4f} {self.accuracy[b]:>7.4f}  "
            f"[{self.low[b]:.4f}, {self.high[b]:.4f}]"
            for b in filled
        ]
        return "\n".join([head, *lines, f"ECE {self.ece:.4f} ({self.scheme}, right-closed)"])


def expected_calibration_error(
    confidence: Any, correct: Any, *, bins: int = 15, scheme: str = "width", mode: str = "top_label"
) -> float:
    """Mean |accuracy − confidence| over bins, weighted by their rows.

    Parameters
    ----------
    confidence, correct
        Confidences (n,) and whether each came true, or probabilities (n, c) and labels (n,).
    bins, scheme
        How many bins; of equal ``"width"``, or of equal ``"mass"``, that is, numbers of rows.
    mode
        Of probabilities: ``"top_label"`` takes the largest, ``"positive"`` column 1 of two,
        ``"classwise"`` every column, averaged over classes (Kull 2019).

    >>> expected_calibration_error([1.0, 1.0, 1.0, 0.5], [True, True, False, True])
    0.375
    """
    views = _views(confidence, correct, mode)
    return float(np.mean([_ece(*_sorted(*view), bins, scheme) for view in views]))


def maximum_calibration_error(
    confidence: Any, correct: Any, *, bins: int = 15, scheme: str = "width", min_count: int = 10
) -> MaximumGap:
    """The worst bin, which it is, and how many rows say so.

    Parameters
    ----------
    confidence, correct, bins, scheme
        As in :func:`expected_calibration_error`.
    min_count
        Bins of fewer rows do not count.
    """
    return reliability(confidence, correct, bins=bins, scheme=scheme).mce(min_count)


def reliability(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    scheme: str = "width",
    mode: str = "top_label",
    interval: str = "wilson",
    level: float = 0.95,
) -> ReliabilityBins:
    """The reliability diagram's numbers: per bin rows, confidence, accuracy and its interval.

    Parameters
    ----------
    confidence, correct, bins, scheme
        As in :func:`expected_calibration_error`.
    mode
        ``"top_label"`` or ``"positive"``.
    interval, level
        ``"wilson"`` or ``"clopper-pearson"``, and how often it shall hold the accuracy.

    >>> table = reliability([0.3, 0.3, 0.9, 0.9], [False, True, True, True], bins=10)
    >>> table.count.nonzero()[0].tolist(), table.accuracy[[2, 8]].tolist()
    ([2, 8], [0.5, 1.0])
    """
    check_choice(mode, "mode", MODES[:2])
    check_choice(interval, "interval", tuple(INTERVALS))
    ((c, hit),) = _views(confidence, correct, mode)
    c, hit = _sorted(c, hit)
    slices = _slices(c, bins, scheme)
    count = np.array([part.stop - part.start for part in slices], dtype=np.int64)
    right = np.array([int(hit[part].sum()) for part in slices], dtype=np.int64)
    total = np.array([exact_sum(c[part]) for part in slices])
    low, high = INTERVALS[interval](right, count, level)
    empty, rows = count == 0, np.maximum(count, 1)
    lower, upper = _edges(c, slices, bins, scheme)
    nan = np.nan
    return ReliabilityBins(
        lower, upper, count, right,
        np.where(empty, nan, total / rows), np.where(empty, nan, right / rows),
        np.where(empty, nan, low), np.where(empty, nan, high),
        scheme, level, _ece(c, hit, bins, scheme),
    )  # fmt: skip


def noise_floor(
    confidence: Any, *, bins: int = 15, scheme: str = "width", mode: str = "top_label"
) -> float:
    r"""The ECE that a perfectly calibrated predictor with these confidences shows on average.

    :math:`\frac1n\sum_b \mathbb E\bigl|\sum_{i\in b} (B_i - c_i)\bigr|` with independent
    :math:`B_i \sim \mathrm{Bernoulli}(c_i)`: exact, from the Poisson-binomial law of each bin.

    Parameters
    ----------
    confidence
        Confidences (n,) or probabilities (n, c); what came true does not matter.
    bins, scheme, mode
        As in :func:`expected_calibration_error`.

    >>> noise_floor([0.5, 0.5])     # 0, 1 or 2 right of 2: gaps 1/2, 0, 1/2
    0.25
    """
    p = as_tensor(confidence, "confidence")
    if p.ndim == 1:
        views = [as_confidence(confidence)]
    else:  # the classes that came true do not matter for the floor
        views = [c for c, _ in _views(p, np.zeros(len(p), dtype=np.int64), mode)]
    floors = []
    for view in views:
        c = np.sort(view)
        slices = _slices(c, bins, scheme)
        spread = [mean_absolute_deviation(c[part].astype(float)) for part in slices]
        floors.append(exact_sum(np.array(spread)) / len(c))
    return float(np.mean(floors))


def bootstrap_interval(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    scheme: str = "width",
    mode: str = "top_label",
    level: float = 0.95,
    resamples: int = 500,
    random_state: int = 0,
) -> Interval:
    """An interval for the ECE of the population: rows resampled, quantiles reflected.

    ECE is biased upward, and a resample doubles the bias, so plain percentiles may not even hold
    the estimate; reflecting (2·ECE − quantile, the basic bootstrap) takes the bias off once.
    Cut at 0.

    Parameters
    ----------
    confidence, correct, bins, scheme, mode
        As in :func:`expected_calibration_error`.
    level
        How often the interval shall hold the ECE.
    resamples, random_state
        How many resamples, and the seed they are drawn with.
    """
    check_fraction(level, "level")
    rng = np.random.default_rng(random_state)
    estimate, drawn = 0.0, np.zeros(resamples)
    views = _views(confidence, correct, mode)
    for view in views:
        c, hit = _sorted(*view)
        member = np.concatenate(
            [np.full(part.stop - part.start, b) for b, part in enumerate(_slices(c, bins, scheme))]
        )
        gap = hit - c
        for r in range(resamples):
            rows = rng.integers(0, len(c), len(c))
            sums = np.bincount(member[rows], weights=gap[rows])
            drawn[r] += np.abs(sums).sum() / len(c) / len(views)
        estimate += _ece(c, hit, bins, scheme) / len(views)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(max(2 * estimate - float(high), 0.0), max(2 * estimate - float(low), 0.0))


def _views(confidence: Any, correct: Any, mode: str) -> list[tuple[FloatArray, BoolArray]]:
    """The (confidence, came true) vectors that a mode compares."""
    check_choice(mode, "mode", MODES)
    p = as_tensor(confidence, "confidence")
    if p.ndim == 1 and mode != "classwise":
        c = as_confidence(p)
        return [(c, as_correct(correct, len(c)))]
    rows = as_probabilities(p, "confidence")
    classes = rows.shape[1]
    y = as_columns(correct, len(rows), classes, "correct")
    if mode == "top_label":
        return [(as_confidence(rows.max(1)), np.equal(rows.argmax(1), y))]
    if mode == "positive" and classes != 2:
        raise InputError(
            f"`mode`='positive' needs two classes, `confidence` has {classes} columns. "
            "Pass one column as (n,) with correct = (labels == that class), or mode='classwise'."
        )
    columns = range(classes) if mode == "classwise" else (1,)
    return [(as_confidence(rows[:, j]), np.equal(y, j)) for j in columns]


def _sorted(c: FloatArray, hit: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Rows by confidence, then truth: one order for every permutation of the input."""
    order = np.lexsort((hit, c))
    return c[order], hit[order]


def _slices(c: FloatArray, bins: int, scheme: str) -> list[slice]:
    """Where each bin starts and ends in the sorted confidences."""
    check_choice(scheme, "scheme", SCHEMES)
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 1:
        raise InputError(f"`bins` must be a whole number of at least 1, got {bins!r}.")
    if scheme == "width":
        # b/M rounded to the confidences' own kind: 3/10 in float32 is an edge, not just above it
        inner = (np.arange(1, bins) / bins).astype(c.dtype)
        stops = np.searchsorted(c, inner, side="right")
    else:
        # A group of equal confidences goes whole where its middle rank falls; all in integers.
        starts = np.flatnonzero(np.concatenate([[True], c[1:] != c[:-1]]))
        ends = np.append(starts[1:], len(c))
        home = bins * (starts + ends) // (2 * len(c))
        stops = np.append(starts, len(c))[np.searchsorted(home, np.arange(1, bins))]
    bounds = [0, *stops.tolist(), len(c)]
    return [slice(a, b) for a, b in pairwise(bounds)]


def _edges(
    c: FloatArray, slices: list[slice], bins: int, scheme: str
) -> tuple[FloatArray, FloatArray]:
    if scheme == "width":
        edges = np.arange(bins + 1) / bins
        return edges[:-1], edges[1:]
    tops = [float(c[s.stop - 1]) if s.stop > s.start else np.nan for s in slices]
    lows = [float(c[s.start - 1]) if s.start else 0.0 for s in slices]
    return np.where(np.isnan(tops), np.nan, lows), np.array(tops)


def _ece(c: FloatArray, hit: BoolArray, bins: int, scheme: str) -> float:
    gaps = [abs(int(hit[s].sum()) - exact_sum(c[s])) for s in _slices(c, bins, scheme)]
    return exact_sum(np.array(gaps)) / len(c)
