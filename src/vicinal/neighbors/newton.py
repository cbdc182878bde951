r"""The lowest minimum of a smooth function of one positive number that may have several minima.

A geometric grid finds the basins; in each promising one, Newton's method on log β, kept from
running away, goes down stage by stage: first on a cheap stand-in (a sample), last on the exact
function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Slope(NamedTuple):
    """f, f' and f'' at one β."""

    value: float
    first: float
    second: float


class Minimum(NamedTuple):
    """``at_bound``: the function still falls, or is flat, where the range ends."""

    at: float
    value: float
    at_bound: bool


Stage = Callable[[float], Slope]


def lowest_minimum(
    values: Callable[[Sequence[float]], list[float]],
    stages: Sequence[Stage],
    low: float,
    high: float,
) -> Minimum:
    """The lowest minimum in [low, high].

    ``values`` gives the first stage's function at many points at once. With one stage only the
    lowest basin is gone down; with more, the first is a stand-in for the last, and so every basin
    that it puts within a tenth of the lowest.

    >>> def double_well(b):  # in u = log b: (u² - 1)² + u/10, lower on the left
    ...     u = math.log(b)
    ...     f1, f2 = 4 * u * (u * u - 1) + 0.1, 12 * u * u - 4  # in u; now in b
    ...     return Slope((u * u - 1) ** 2 + 0.1 * u, f1 / b, (f2 - f1) / b**2)
    >>> heights = lambda bs: [double_well(b).value for b in bs]
    >>> found = lowest_minimum(heights, [double_well], 0.1, 10)
    >>> round(math.log(found.at), 3)
    -1.012
    """
    count = min(max(math.ceil(math.log2(high / low)), 4), 96)
    grid = [low * (high / low) ** (i / count) for i in range(count + 1)]
    heights = values(grid)
    best, tiny = min(heights), 1e-12 * (1 + abs(min(heights)))
    if max(heights) - best <= tiny:  # flat: the middle is as good as any
        return Minimum(math.sqrt(low * high), best, True)
    slack = tiny if len(stages) == 1 else 0.1 * abs(best) + tiny
    found = []
    for i in _basins(heights, tiny):
        if heights[i] > best + slack:
            continue
        u, ends = math.log(grid[i]), (math.log(low), math.log(high))
        for stage in stages[:-1]:
            u, _ = _descend(stage, u, ends, tolerance=1e-3)
        u, value = _descend(stages[-1], u, ends, tolerance=1e-9)
        found.append(Minimum(math.exp(u), value, min(u - ends[0], ends[1] - u) < 1e-6))
    return min(found, key=lambda m: m.value)


def _basins(heights: Sequence[float], tiny: float) -> list[int]:
    """Places no higher than both neighbors; a floor that reaches an end of the range is the end."""
    last = len(heights) - 1
    places = set()
    for i, h in enumerate(heights):
        if h <= heights[max(i - 1, 0)] and h <= heights[min(i + 1, last)]:
            if max(heights[i:]) - h <= tiny:
                places.add(last)
            elif max(heights[: i + 1]) - h <= tiny:
                places.add(0)
            else:
                places.add(i)
    return sorted(places)


def _descend(
    stage: Stage, u: float, ends: tuple[float, float], tolerance: float
) -> tuple[float, float]:
    """Newton on u = log β; a step is at most a halving or doubling, and never uphill."""
    here = stage(math.exp(u))
    for _ in range(60):
        beta = math.exp(u)
        slope = beta * here.first
        curvature = beta * beta * here.second + slope
        step = -slope / curvature if curvature > 0 else -math.copysign(0.5, slope)
        target = min(max(u + min(max(step, -0.7), 0.7), ends[0]), ends[1])
        if slope == 0 or abs(target - u) < tolerance:
            # Too short a step to pay for another look, unless a later one looks anyway.
            return (target if tolerance > 1e-6 else u), here.value
        there = stage(math.exp(target))
        while there.value > here.value + 1e-6 * abs(here.value) and abs(target - u) > tolerance:
            target = (u + target) / 2
            there = stage(math.exp(target))
        u, here = target, there
    return u, here.value
