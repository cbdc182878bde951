r"""The law of a sum of independent coins of unequal bias, and how far it strays from its mean.

:math:`S = \sum_i B_i,\; B_i \sim \mathrm{Bernoulli}(p_i)`. Its probabilities are the
coefficients of :math:`\prod_i (1 - p_i + p_i z)`, multiplied here as a tree: blocks of coins at
once, then polynomials in pairs. Coefficients below 1e-22 are cut from the two ends, so a factor has
as many terms as its standard deviation needs, not as many as it has coins. What is cut sums to less
than 1e-15 for any number of coins that fits in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vicinal.evaluation.inputs import FloatArray, exact_sum

_BLOCK = 96
_NEGLIGIBLE = 1e-22
Law = tuple[int, FloatArray]  # ``(first, mass)`` with ``P(S = first + j) = mass[j]``


def mean_absolute_deviations(groups: Sequence[FloatArray]) -> list[float]:
    r""":math:`\mathbb E\,|S - \sum_i p_i|` of each group, exact to rounding; 0 for no coins.

    >>> mean_absolute_deviations([np.array([0.5, 0.5])])
    [0.5]
    """
    found = []
    for p, (first, mass) in zip(groups, distributions(groups), strict=True):
        # distances from the mean are taken from the window's start: no digits lost at large counts
        mean = exact_sum(np.append(p, -float(first)))
        found.append(exact_sum(mass * np.abs(np.arange(len(mass)) - mean)))
    return found


def distributions(groups: Sequence[FloatArray]) -> list[Law]:
    """The law of each group's sum; what is left out is below 1e-15. Blocks of all at once."""
    open_ = [p[(p > 0) & (p < 1)] for p in groups]
    laws = iter(_blocks(np.concatenate([np.pad(p, (0, -len(p) % _BLOCK)) for p in open_])))
    found = []
    for p, coins in zip(groups, open_, strict=True):
        parts = [next(laws) for _ in range(0, len(coins), _BLOCK)] or [(0, np.ones(1))]
        while len(parts) > 1:
            parts = [_product(parts[j : j + 2]) for j in range(0, len(parts), 2)]
        found.append((parts[0][0] + int((p == 1).sum()), parts[0][1]))
    return found


def _blocks(p: FloatArray) -> list[Law]:
    """Of so many coins each, side by side; coins that never fall pad the last block of a group."""
    coins = p.reshape(-1, _BLOCK).T.copy()
    mass = np.zeros((_BLOCK + 1, coins.shape[1]))
    mass[0] = 1
    for j, up in enumerate(coins):
        more = mass[: j + 1] * up
        mass[: j + 1] *= 1 - up
        mass[1 : j + 2] += more
    return [_cut(0, row) for row in mass.T.copy()]


def _product(pair: list[Law]) -> Law:
    if len(pair) == 1:
        return pair[0]
    (first_a, a), (first_b, b) = pair
    # Direct, not by FFT: its absolute error would fill the tails and undo the cutting.
    return _cut(first_a + first_b, np.convolve(a, b))


def _cut(first: int, mass: FloatArray) -> Law:
    kept = mass > _NEGLIGIBLE
    start = int(kept.argmax())
    return first + start, mass[start : len(mass) - int(kept[::-1].argmax())]
