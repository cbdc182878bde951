"""The reliability diagram's numbers: in each bin the confidence, the accuracy and its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vicinal.checks import check_choice
from vicinal.evaluation.calibration import MODES, bin_slices, by_confidence, views_of
from vicinal.evaluation.inputs import FloatArray, IntArray, exact_sum
from vicinal.evaluation.intervals import clopper_pearson_interval, wilson_interval

INTERVALS = {"wilson": wilson_interval, "clopper-pearson": clopper_pearson_interval}


class MaximumGap(NamedTuple):
    """The worst bin among those with ``min_count`` rows; ``None`` where no bin has so many."""

    gap: float | None
    bin: int | None
    rows: int
    min_count: int


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
        """The largest ``|gap|`` in bins of at least ``min_count`` rows: one row proves nothing."""
        rows = np.where(self.count >= max(min_count, 1), np.abs(self.gap), -1.0)
        worst = int(np.argmax(rows))
        if rows[worst] < 0:
            return MaximumGap(None, None, 0, min_count)
        return MaximumGap(float(rows[worst]), worst, int(self.count[worst]), min_count)

    def __str__(self) -> str:
        head = f"{'bin':>16} {'rows':>7} {'conf':>7} {'acc':>7}  {self.level:.0%} interval"
        lines = [
            f"({self.lower[b]:.4f}, {self.upper[b]:.4f}] {self.count[b]:>6} "
            f"{self.confidence[b]:>7.4f} {self.accuracy[b]:>7.4f}  "
            f"[{self.low[b]:.4f}, {self.high[b]:.4f}]"
            for b in np.flatnonzero(self.count)
        ]
        return "\n".join([head, *lines, f"ECE {self.ece:.4f} ({self.scheme}, right-closed)"])


def maximum_calibration_error(
    confidence: Any, correct: Any, *, bins: int = 15, scheme: str = "width", min_count: int = 10
) -> MaximumGap:
    """The worst bin, which it is, and how many rows say so.

    Parameters
    ----------
    confidence, correct, bins, scheme : as in :func:`expected_calibration_error`.
    min_count : bins of fewer rows do not count.
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
    confidence, correct, bins, scheme : as in :func:`expected_calibration_error`.
    mode : ``"top_label"`` or ``"positive"``.
    interval, level : ``"wilson"`` or ``"clopper-pearson"``, and how often it shall hold the
        accuracy.

    >>> table = reliability([0.3, 0.3, 0.9, 0.9], [False, True, True, True], bins=10)
    >>> table.count.nonzero()[0].tolist(), table.accuracy[[2, 8]].tolist()
    ([2, 8], [0.5, 1.0])
    """
    check_choice(mode, "mode", MODES[:2])
    check_choice(interval, "interval", tuple(INTERVALS))
    ((c, hit),) = views_of(confidence, correct, mode)
    c, hit = by_confidence(c, hit)
    slices = bin_slices(c, bins, scheme)
    count = np.array([part.stop - part.start for part in slices], dtype=np.int64)
    right = np.array([int(hit[part].sum()) for part in slices], dtype=np.int64)
    total = np.array([exact_sum(c[part]) for part in slices])
    low, high = INTERVALS[interval](right, count, level)
    empty, rows = count == 0, np.maximum(count, 1)
    lower, upper = _edges(c, slices, bins, scheme)
    return ReliabilityBins(
        lower, upper, count, right,
        np.where(empty, np.nan, total / rows), np.where(empty, np.nan, right / rows),
        np.where(empty, np.nan, low), np.where(empty, np.nan, high),
        scheme, level, exact_sum(np.abs(right - total)) / len(c),
    )  # fmt: skip


def _edges(
    c: FloatArray, slices: list[slice], bins: int, scheme: str
) -> tuple[FloatArray, FloatArray]:
    if scheme == "width":
        edges = np.arange(bins + 1) / bins
        return edges[:-1], edges[1:]
    tops = [float(c[s.stop - 1]) if s.stop > s.start else np.nan for s in slices]
    lows = [float(c[s.start - 1]) if s.start else 0.0 for s in slices]
    return np.where(np.isnan(tops), np.nan, lows), np.array(tops)
