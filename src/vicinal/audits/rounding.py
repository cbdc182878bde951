"""Fewer digits, for many numbers at once: a page needs no more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_POWERS = np.array([float(f"1e{place}") for place in range(23)])  # exact in float64, no further


def rounded(values: Any, digits: int = 6) -> NDArray[np.float64]:
    """What ``float(f"{v:.6g}")`` gives for each: the float64 nearest to so many decimal digits.

    >>> rounded([0.0, 2 / 3, -123456.789, 1.23456789e-30]).tolist()
    [0.0, 0.666667, -123457.0, 1.23457e-30]
    """
    v = np.asarray(values, dtype=np.float64)
    size = np.where(v == 0, 1.0, np.abs(v))
    place = (digits - 1 - np.floor(np.log10(size))).astype(np.int64)
    up, down = _POWERS[np.clip(place, 0, 22)], _POWERS[np.clip(-place, 0, 22)]
    found = np.rint(v * up / down) / up * down
    far = np.abs(place) > 22
    found[far] = [float(f"{value:.{digits}g}") for value in v[far].tolist()]
    return found
