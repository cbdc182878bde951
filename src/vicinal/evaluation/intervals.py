"""What a count of successes says about the rate behind it: Wilson and Clopper-Pearson."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from vicinal.checks import InputError, check_share
from vicinal.evaluation.inputs import FloatArray, IntArray


def _counts(successes: Any, trials: Any) -> tuple[IntArray, IntArray]:
    """Whole numbers, and no more successes than trials."""
    s, n = np.asarray(successes), np.asarray(trials)
    if not {s.dtype.kind, n.dtype.kind} <= set("biu") or (s < 0).any() or (s > n).any():
        raise InputError(
            f"`successes` and `trials` must be counts, 0 <= successes <= trials, got {successes!r} "
            f"and {trials!r}."
        )
    return s.astype(np.int64), n.astype(np.int64)


def wilson_interval(
    successes: IntArray, trials: IntArray, level: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    r"""The rates :math:`p` with :math:`|\hat p - p| \le z\sqrt{p(1-p)/n}` (Wilson 1927).

    Near its level on average and never outside [0, 1]; without trials it is [0, 1].

    >>> low, high = wilson_interval(np.array([9]), np.array([10]))
    >>> float(low[0].round(3)), float(high[0].round(3))
    (0.596, 0.982)
    """
    check_share(level, "level")
    successes, trials = _counts(successes, trials)
    z2 = float(special.ndtri((1 + level) / 2)) ** 2
    n, s = np.maximum(trials, 1).astype(float), np.asarray(successes, dtype=float)
    center = (s + z2 / 2) / (n + z2)
    half = np.sqrt(z2) / (n + z2) * np.sqrt(s * (n - s) / n + z2 / 4)
    # exactly 0 and 1 at the ends, where center -+ half only rounds to them
    low = np.where(s == 0, 0.0, np.maximum(center - half, 0.0))
    high = np.where(s == trials, 1.0, np.minimum(center + half, 1.0))
    return np.where(trials == 0, 0.0, low), np.where(trials == 0, 1.0, high)


def clopper_pearson_interval(
    successes: IntArray, trials: IntArray, level: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """The rates that neither one-sided exact binomial test rejects (Clopper and Pearson 1934)."""
    check_share(level, "level")
    successes, trials = _counts(successes, trials)
    tail = (1 - level) / 2
    low = clopper_pearson_lower(successes, trials, tail)
    return low, 1 - clopper_pearson_lower(np.subtract(trials, successes), trials, tail)


def clopper_pearson_lower(successes: IntArray, trials: IntArray, delta: float) -> FloatArray:
    r"""The largest :math:`p_0` with :math:`P_{p_0}(S \ge s) \le \delta`; 0 for no success.

    For any one sample fixed beforehand :math:`P(p \ge p_0) \ge 1 - \delta`, for every n and p.

    >>> lower = clopper_pearson_lower(np.array([10]), np.array([10]), 0.05)
    >>> round(float(lower[0]), 4), round(0.05 ** (1 / 10), 4)
    (0.7411, 0.7411)
    """
    s, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    lower = special.betaincinv(np.maximum(s, 1.0), n - s + 1, delta)
    return np.where(s == 0, 0.0, lower)
