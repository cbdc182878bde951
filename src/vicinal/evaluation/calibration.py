r"""Does a confidence of 0.8 come true eight times in ten?

.. math::

    \mathrm{ECE} = \sum_{b=1}^{M} \frac{n_b}{n}\,|\operatorname{acc}(b) - \operatorname{conf}(b)|
    = \frac1n \sum_b \Bigl|\sum_{i \in b} (\text{correct}_i - c_i)\Bigr|

(Guo et al. 2017; Karpusha 2020, eq. 6 and 7). Bins are right-closed, :math:`((b-1)/M,\; b/M]`, and
the first also holds 0. Neighbor heads give exact multiples of 1/k, so the convention decides the
number. Equal-mass bins never split rows of equal confidence.

Even a perfectly calibrated predictor shows an ECE above zero on n rows; :func:`noise_floor` says
how much, exactly, and an ECE without it cannot be read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vicinal.checks import InputError, as_tensor, check_choice, check_share, check_whole
from vicinal.evaluation.inputs import (
    BoolArray,
    FloatArray,
    as_columns,
    as_confidence,
    as_correct,
    as_probabilities,
    exact_sum,
)
from vicinal.evaluation.poisson_binomial import mean_absolute_deviations

SCHEMES = ("width", "mass")
MODES = ("top_label", "positive", "classwise")


class Interval(NamedTuple):
    low: float
    high: float


def expected_calibration_error(
    confidence: Any, correct: Any, *, bins: int = 15, scheme: str = "width", mode: str = "top_label"
) -> float:
    """Mean ``|accuracy − confidence|`` over bins, weighted by their rows.

    Parameters
    ----------
    confidence, correct : confidences (n,) and whether each came true, or probabilities (n, c) and
        labels (n,).
    bins, scheme : how many bins; of equal ``"width"``, or of equal ``"mass"``, that is, numbers of
        rows.
    mode : of probabilities: ``"top_label"`` takes the largest, ``"positive"`` column 1 of two,
        ``"classwise"`` every column, averaged over classes (Kull 2019).

    >>> expected_calibration_error([1.0, 1.0, 1.0, 0.5], [True, True, False, True])
    0.375
    """
    views = views_of(confidence, correct, mode)
    return float(np.mean([ece_of_sorted(*by_confidence(*view), bins, scheme) for view in views]))


def noise_floor(
    confidence: Any, *, bins: int = 15, scheme: str = "width", mode: str = "top_label"
) -> float:
    r"""The ECE that a perfectly calibrated predictor with these confidences shows on average.

    :math:`\frac1n\sum_b \mathbb E\bigl|\sum_{i\in b} (B_i - c_i)\bigr|` with independent
    :math:`B_i \sim \mathrm{Bernoulli}(c_i)`: exact, from the Poisson-binomial law of each bin.

    Parameters
    ----------
    confidence : confidences (n,) or probabilities (n, c); what came true does not matter.
    bins, scheme, mode : as in :func:`expected_calibration_error`.

    >>> noise_floor([0.5, 0.5])     # 0, 1 or 2 right of 2: gaps 1/2, 0, 1/2
    0.25
    """
    p = as_tensor(confidence, "confidence")
    floors = []
    for view, _ in views_of(p, np.zeros(len(p), dtype=np.int64), mode):
        c = np.sort(view)
        parts = [c[s].astype(float) for s in bin_slices(c, bins, scheme)]
        floors.append(exact_sum(np.array(mean_absolute_deviations(parts))) / len(c))
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
    confidence, correct, bins, scheme, mode : as in :func:`expected_calibration_error`.
    level : how often the interval shall hold the ECE.
    resamples, random_state : how many resamples, and the seed they are drawn with.
    """
    check_share(level, "level")
    check_whole(resamples, "resamples", 1)
    rng = np.random.default_rng(random_state)
    estimate, drawn = 0.0, np.zeros(resamples)
    views = views_of(confidence, correct, mode)
    for view in views:
        c, hit = by_confidence(*view)
        sizes = [part.stop - part.start for part in bin_slices(c, bins, scheme)]
        member = np.repeat(np.arange(len(sizes)), sizes)
        gap = hit - c
        for r in range(resamples):
            rows = rng.integers(0, len(c), len(c))
            sums = np.bincount(member[rows], weights=gap[rows])
            drawn[r] += np.abs(sums).sum() / len(c) / len(views)
        estimate += ece_of_sorted(c, hit, bins, scheme) / len(views)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(max(2 * estimate - float(high), 0.0), max(2 * estimate - float(low), 0.0))


def views_of(confidence: Any, correct: Any, mode: str) -> list[tuple[FloatArray, BoolArray]]:
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


def by_confidence(c: FloatArray, hit: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Rows by confidence, then truth: one order for every permutation of the input."""
    order = np.lexsort((hit, c))
    return c[order], hit[order]


def bin_slices(c: FloatArray, bins: int, scheme: str) -> list[slice]:
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
    return [slice(a, b) for a, b in pairwise([0, *stops.tolist(), len(c)])]


def ece_of_sorted(c: FloatArray, hit: BoolArray, bins: int, scheme: str) -> float:
    gaps = [abs(int(hit[s].sum()) - exact_sum(c[s])) for s in bin_slices(c, bins, scheme)]
    return exact_sum(np.array(gaps)) / len(c)
