r"""The temperature at which neighbors predict labels best, each row from the others alone.

With :math:`\beta = 1/T`, weights :math:`w_{ij} = e^{-\beta d_{ij}}` and :math:`s_{ij}` the share of
label that i and j have in common, the loss is the soft nearest neighbor loss (Frosst et al. 2019),
the leave-one-out log-loss of NED (Karpusha et al. 2020, section 2):

.. math:: f(\beta) = \mathrm{mean}_i \; \log \sum_j w_{ij} - \log \sum_j s_{ij} w_{ij}
.. math:: f' = \mathrm{mean}_i \; E_{own}[d] - E_{all}[d], \qquad
          f'' = \mathrm{mean}_i \; \mathrm{Var}_{all}[d] - \mathrm{Var}_{own}[d].

A difference of convex functions, which can have two minima: a grid over log T finds the basins,
then Newton's method finishes. Grid and first steps look at a sample of the rows (each with all its
neighbors), the rest at all rows; the last steps are float64. Rows come in blocks, from cached
distances or formed on the way; a row's own distance 0 is never among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vicinal.checks import InputError, as_matrix, as_tensor, check_finite, check_same_rows

BLOCK = 1 << 17  # distances weighed at a time: they stay in the cache
SAMPLE = 1024  # rows that locate the basins
ALONE = (
    "no row has a neighbor that shares its label, so no temperature can be fitted. "
    "Pass more neighbors (k), or labels of which at least two rows share one."
)


class TemperatureFit(NamedTuple):
    """The best temperature and its loss.

    ``at_bound``: the loss is still falling, or flat, at the end of the range that the distances
    span, so the data do not determine T. A support on which the embedding was trained does this.
    """

    temperature: float
    loss: float
    at_bound: bool


def fit_temperature(
    distances: Float[Tensor, "n k"],
    same: Bool[Tensor, "n k"] | Float[Tensor, "n k"],
    weight: Float[Tensor, " n"] | None = None,
) -> TemperatureFit:
    """The temperature of least mean surprise on cached distances to neighbors, self not among them.

    ``same`` marks the neighbors that share the row's label, or holds the share of it. Rows without
    such a neighbor are left out; ``weight`` weighs the rows.

    >>> d = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> same = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
    >>> round(fit_temperature(d, same).temperature, 3)
    1.36
    """
    distances, same, weight = _checked(distances, same, weight)
    step = block_rows(distances.shape[1])

    def blocks(rows: Tensor, dtype: torch.dtype) -> list[Gaps]:
        everyone = len(rows) > 2 * SAMPLE or len(rows) == len(distances)  # others weigh 0
        parts = [p if everyone else p[rows] for p in (distances, same, weight)]
        return [
            gaps_of(*(p[start : start + step].to(dtype) for p in parts))
            for start in range(0, len(parts[0]), step)
        ]

    return fit_blocks(blocks, ((same > 0).any(1) & (weight > 0)).nonzero()[:, 0])


def fit_blocks(
    blocks: Callable[[Tensor, torch.dtype], Iterable[Gaps]], valid: Tensor
) -> TemperatureFit:
    """Basins on a sample, Newton on the sample, then on all rows, then in float64.

    ``blocks`` readies the given rows in the given precision, to be gone through many times.
    """
    if not len(valid):
        raise InputError(ALONE)
    with torch.no_grad():
        stride = max(len(valid) // SAMPLE, 1)
        sample = blocks(valid[::stride], torch.float64)
        low, high = _span(sample)
        if high == 0:  # every row's neighbors are all at one distance
            return TemperatureFit(1.0, losses(sample, [1.0])[0], True)
        stages = [lambda beta: slopes(sample, beta)]
        if stride > 1:
            # float32 on all rows, where its range suffices, then float64 to finish.
            if low > 1e-30 and high < 1e30:
                single = blocks(valid, torch.float32)
                stages.append(lambda beta: slopes(single, beta))
            double = blocks(valid, torch.float64)
            stages.append(lambda beta: slopes(double, beta))
        ends = 1 / (128 * high), 64 / low
        beta, loss, at_bound = lowest_minimum(lambda at: losses(sample, at), stages, *ends)
    return TemperatureFit(1 / beta, loss, at_bound)


def _span(rows: Iterable[Gaps]) -> tuple[float, float]:
    """A small and the largest difference of distances within a row; (0, 0) if all are equal.

    Well below the first a kernel sees only nearest neighbors, well above the second it sees none.
    """
    gaps = [r.gaps[:, :: -(-r.gaps.shape[1] // 512)].flatten() for r in rows]
    some = torch.cat([g[g > 0] for g in gaps])
    if not len(some):
        return 0.0, 0.0
    return float(some.kthvalue(1 + len(some) // 100).values), max(float(r.gaps.max()) for r in rows)


def _checked(distances: Any, same: Any, weight: Any) -> tuple[Tensor, Tensor, Tensor]:
    d = as_matrix(distances, "distances").detach()
    s = as_tensor(same, "same").detach()
    if s.shape != d.shape or (s.is_floating_point() and bool(((s < 0) | (s > 1)).any())):
        raise InputError(
            f"`same` must hold, for each of the {tuple(d.shape)} distances, whether the neighbor "
            f"shares the row's label (or which share of it, in 0..1); got {s.dtype} of shape "
            f"{tuple(s.shape)}. Pass labels[indices] == labels[:, None]."
        )
    if weight is None:
        return d, s, torch.ones(len(d), device=d.device)
    w = as_tensor(weight, "weight").detach()
    check_same_rows(w, d, "weight", "distances")
    check_finite(w, "weight")
    if w.ndim != 1 or bool((w < 0).any()):
        raise InputError("`weight` must be one number of at least 0 for each row of `distances`.")
    return d, s, w


# ------------------------------------------------------------------ the loss and its slopes


class Gaps(NamedTuple):
    """How much farther each neighbor of some rows is than the row's nearest."""

    gaps: Tensor  # (n, k)
    share: Tensor  # (n, k) of the row's label that the neighbor has
    peer: Tensor  # (n,) the gap of the nearest neighbor that has any
    weight: Tensor  # (n,) 0 for a row without such a neighbor


def block_rows(width: int) -> int:
    """Rows of so many distances that are weighed at a time."""
    return max(1, BLOCK // width)


class Slope(NamedTuple):
    """f, f' and f'' at one β."""

    value: float
    slope: float
    bend: float


def slopes(rows: Iterable[Gaps], beta: float) -> Slope:
    """f, f' = E_own[d] - E_all[d] and f'' = Var_all[d] - Var_own[d] at β, in one pass."""
    total = torch.zeros(4, dtype=torch.float64)
    for gaps, share, peer, weight in rows:
        all_, own, lead = _weights(gaps, share, peer, beta)
        mass, own_mass = all_.sum(1), own.sum(1)
        loss = lead + mass.log() - own_mass.log()
        far, own_far = all_.mul_(gaps), own.mul_(gaps)
        mean, own_mean = far.sum(1) / mass, own_far.sum(1) / own_mass
        square = far.mul_(gaps).sum(1) / mass - mean.square()
        own_square = own_far.mul_(gaps).sum(1) / own_mass - own_mean.square()
        terms = torch.stack([loss, own_mean - mean, square - own_square, torch.ones_like(loss)])
        total += (terms @ weight).double().cpu()
    f, g, h = (total[:3] / total[3]).tolist()
    return Slope(f, g, h)


def losses(rows: Iterable[Gaps], betas: Sequence[float]) -> list[float]:
    """f at several β, each block of distances formed once."""
    total, count = torch.zeros(len(betas), dtype=torch.float64), 0.0
    for gaps, share, peer, weight in rows:
        for i, beta in enumerate(betas):
            all_, own, lead = _weights(gaps, share, peer, beta)
            loss = lead + all_.sum(1).log() - own.sum(1).log()
            total[i] += float(loss @ weight)
        count += float(weight.sum())
    return (total / count).tolist()


def _weights(gaps: Tensor, share: Tensor, peer: Tensor, beta: float) -> tuple[Tensor, ...]:
    """Weights relative to the nearest, those of peers, and the log by which these are too large:
    where they would underflow they are relative to the nearest peer. (What is nearer is no peer.)
    """
    all_, lead = gaps * -beta, beta * peer
    if float(lead.max()) < -0.5 * math.log(torch.finfo(gaps.dtype).tiny):
        return all_.exp_(), all_ * share, torch.zeros_like(peer)
    own = (all_ + lead[:, None]).clamp_max_(0).exp_().mul_(share)
    return all_.exp_(), own, lead


def gaps_of(distances: Tensor, share: Tensor, weight: Tensor) -> Gaps:
    gaps = distances - distances.amin(1, keepdim=True)
    # 0 for a peer and infinity for others, added: a fifth of the time of filling by a mask
    peer = (share > 0).to(gaps).reciprocal_().sub_(1).add_(gaps).amin(1)
    alone = peer.isinf()
    if bool(alone.any()):  # any finite stand-in will do, its weight is 0
        share = share.masked_fill(alone[:, None], 1.0)
        peer, weight = peer.masked_fill(alone, 0.0), weight.masked_fill(alone, 0.0)
    return Gaps(gaps, share, peer, weight)


# ------------------------------------------------------------------ the lowest minimum


def lowest_minimum(
    values: Callable[[Sequence[float]], list[float]],
    stages: Sequence[Callable[[float], Slope]],
    low: float,
    high: float,
) -> tuple[float, float, bool]:
    """Where in [low, high] a smooth function has its lowest minimum, its value, and whether the
    function still falls, or is flat, where the range ends.

    ``values`` gives the first stage's function at many points at once. With one stage only the
    lowest basin is gone down; with more, the first is a stand-in for the last, and so every basin
    that it puts within a tenth of the lowest.
    """
    count = min(max(math.ceil(math.log2(high / low)), 4), 96)
    grid = [low * (high / low) ** (i / count) for i in range(count + 1)]
    heights = values(grid)
    best, tiny = min(heights), 1e-12 * (1 + abs(min(heights)))
    if max(heights) - best <= tiny:  # flat: the middle is as good as any
        return math.sqrt(low * high), best, True
    slack = tiny if len(stages) == 1 else 0.1 * abs(best) + tiny
    found = []
    for i in _basins(heights, tiny):
        if heights[i] > best + slack:
            continue
        u, ends = math.log(grid[i]), (math.log(low), math.log(high))
        for stage in stages[:-1]:
            u, _ = _descend(stage, u, ends, tolerance=1e-3)
        u, value = _descend(stages[-1], u, ends, tolerance=1e-9)
        found.append((math.exp(u), value, min(u - ends[0], ends[1] - u) < 1e-6))
    return min(found, key=lambda minimum: minimum[1])


def _basins(heights: Sequence[float], tiny: float) -> list[int]:
    """Places no higher than both neighbors; a floor that reaches an end of the range is the end."""
    last = len(heights) - 1

    def place(i: int) -> int:
        if max(heights[i:]) - heights[i] <= tiny:
            return last
        return 0 if max(heights[: i + 1]) - heights[i] <= tiny else i

    beside = [(heights[max(i - 1, 0)], heights[min(i + 1, last)]) for i in range(last + 1)]
    return sorted({place(i) for i, h in enumerate(heights) if h <= min(beside[i])})


def _descend(
    stage: Callable[[float], Slope], u: float, ends: tuple[float, float], tolerance: float
) -> tuple[float, float]:
    """Newton on u = log β; a step is at most a halving or doubling, and never uphill."""
    here = stage(math.exp(u))
    for _ in range(60):
        beta = math.exp(u)
        slope = beta * here.slope
        curvature = beta * beta * here.bend + slope
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
