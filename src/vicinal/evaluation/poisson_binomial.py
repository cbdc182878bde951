r"""The law of a sum of independent coins of unequal bias, and how far it strays from its mean.

:math:`S = \sum_i B_i,\; B_i \sim \mathrm{Bernoulli}(p_i)`. Its probabilities are the
coefficients of :math:`\prod_i (1 - p_i + p_i z)`, multiplied here as a tree: blocks of coins at
once, then polynomials in pairs. Coefficients below 1e-22 are cut from the two ends, so a factor has
as many terms as its standard deviation needs, not as many as it has coins. What is cut sums to less
than 1e-15 for any number of coins that fits in memory.
"""

from __future__ import annotations

import numpy as np

from vicinal.evaluation.inputs import FloatArray, exact_sum

_BLOCK = 32
_NEGLIGIBLE = 1e-22


def mean_absolute_deviation(p: FloatArray) -> float:
    r""":math:`\mathbb E\,|S - \sum_i p_i|`, exact to rounding; 0 for no coins.

    >>> mean_absolute_deviation(np.array([0.5, 0.5]))
    0.5
    """
    if len(p) == 0:
        return 0.0
    first, mass = distribution(p)
    # distances from the mean are taken from the window's start: no digits lost at large counts
    mean = exact_sum(np.append(p, -float(first)))
    return exact_sum(mass * np.abs(np.arange(len(mass)) - mean))


def distribution(p: FloatArray) -> tuple[int, FloatArray]:
    """``(first, mass)`` with ``P(S = first + j) = mass[j]``; what is left out is below 1e-15."""
    sure = int((p == 1).sum())
    p = p[(p > 0) & (p < 1)]
    parts = [_cut(0, row) for row in _blocks(p)] or [(0, np.ones(1))]
    while len(parts) > 1:
        parts = [_product(parts[j : j + 2]) for j in range(0, len(parts), 2)]
    first, mass = parts[0]
    return first + sure, mass


def _blocks(p: FloatArray) -> FloatArray:
    """(blocks, coins + 1) coefficients; coins that never fall pad the last block."""
    padded = np.zeros(-(-len(p) // _BLOCK) * _BLOCK)
    padded[: len(p)] = p
    coins = padded.reshape(-1, _BLOCK)
    mass = np.zeros((len(coins), _BLOCK + 1))
    mass[:, 0] = 1
    for j in range(_BLOCK):
        up, down = coins[:, j : j + 1], 1 - coins[:, j : j + 1]
        mass[:, 1:] = mass[:, 1:] * down + mass[:, :-1] * up
        mass[:, :1] *= down
    return mass


def _product(pair: list[tuple[int, FloatArray]]) -> tuple[int, FloatArray]:
    if len(pair) == 1:
        return pair[0]
    (first_a, a), (first_b, b) = pair
    # Direct, not by FFT: its absolute error would fill the tails and undo the cutting.
    return _cut(first_a + first_b, np.convolve(a, b))


def _cut(first: int, mass: FloatArray) -> tuple[int, FloatArray]:
    kept = np.flatnonzero(mass > _NEGLIGIBLE)
    return first + int(kept[0]), mass[kept[0] : kept[-1] + 1]
