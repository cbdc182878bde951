r"""Fitting NED on one cached neighbor graph: temperature, sharpness, background, class bandwidths.

The graph is the support's own leave-one-out graph (self removed by index) or held-out rows against
the support. Either way no row ever sees itself, and no search is repeated: the objective is

.. math::
   \frac1n \sum_i -\log p(y_i \mid z_i)
   + \lambda \, \overline{\log^2(T_c/T)}
   + \frac{\log^2 \gamma + (\operatorname{logit} \epsilon + 4)^2}{2 n}

with :math:`\lambda = 0.1` (a class with few rows borrows the common bandwidth) and unit normal
priors on :math:`\log\gamma` and :math:`\operatorname{logit}\epsilon` (an easy set with a handful of
errors would send :math:`\gamma` to infinity, and :math:`\epsilon` after it). Even so, more
parameters always fit better on the rows that chose them; the extra ones are kept only if they
lower the loss on rows that did not (cross-validated over the graph's rows).

For eq. 3 alone the objective is the soft nearest neighbor loss of the support, and
:func:`vicinal.neighbors.temperature.fit_temperature` minimizes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from vicinal.confidence.support import Evidence

SHRINKAGE = 0.1
USUAL_LOGIT = -4.0  # of the background: ε = 0.018
FOLDS = 3
MAX_ROWS = 3_000  # so few parameters need no more (20 per class at least); T alone uses all rows
_ELEMENTS = 1 << 22  # of a block, whatever the number of classes
_TINY = 1e-200


class Point(NamedTuple):
    """A point in the space of parameters, each on the scale where it is unbounded."""

    log_t: float
    log_bandwidths: NDArray[np.float64]
    dimension: float
    log_gamma: float
    background: float  # ε itself, in [0, 1]

    def vector(self) -> NDArray[np.float64]:
        tail = (self.dimension, self.log_gamma, _logit(self.background))
        return np.concatenate([[self.log_t], self.log_bandwidths, tail])

    @classmethod
    def of(cls, v: NDArray[np.float64]) -> Point:
        return cls(float(v[0]), v[1:-3], float(v[-3]), float(v[-2]), _sigmoid(float(v[-1])))


class Free(NamedTuple):
    """Which of the parameters are to be fitted."""

    temperature: bool
    bandwidths: bool
    sharpness: bool
    background: bool

    def mask(self, num_classes: int) -> NDArray[np.bool_]:
        head = [self.temperature, *[self.bandwidths] * num_classes]
        return np.array([*head, self.bandwidths, self.sharpness, self.background])


def reachable(evidence: Evidence, background: bool) -> Tensor:
    """Rows that any setting of the parameters can give a probability above zero."""
    labels, targets = evidence.labels, evidence.targets
    if labels.ndim == 2:
        found = (labels == targets[:, None]).any(1)
    else:
        found = ((labels.sum(1) > 0) | (targets <= 0)).all(1)
    if background:
        prior = _priors(evidence)
        if targets.ndim == 1:
            return found | (prior.gather(1, targets[:, None])[:, 0] > 0)
        return found | ((prior > 0) | (targets <= 0)).all(1)
    return found


def row_losses(point: Point, evidence: Evidence) -> Float[Tensor, " n"]:
    """-log p of each row's own label (soft labels: the cross-entropy)."""
    blocks = _blocks(evidence)
    return torch.cat([_pass(point, block)[0] for block in blocks])


def loss_and_gradient(
    point: Point, evidence: Evidence, free: Free
) -> tuple[float, NDArray[np.float64]]:
    """The penalized mean loss and its gradient in ``Point.vector()``'s coordinates."""
    total, gradient, n = 0.0, np.zeros(len(point.log_bandwidths) + 4), len(evidence)
    for block in _blocks(evidence):
        losses, slope = _pass(point, block)
        total += float(losses.sum())
        gradient += slope()
    total, gradient = total / n, gradient / n
    total += point.log_gamma**2 / (2 * n)
    gradient[-2] += point.log_gamma / n
    if free.background:
        off = _logit(point.background) - USUAL_LOGIT
        total += off**2 / (2 * n)
        gradient[-1] += off / n
    if free.bandwidths:
        total += SHRINKAGE * float(np.mean(point.log_bandwidths**2))
        gradient[1:-3] += 2 * SHRINKAGE * point.log_bandwidths / len(point.log_bandwidths)
    return total, gradient


def descend(
    start: Point, evidence: Evidence, free: Free, dimensions: int, steps: int = 40
) -> tuple[Point, float]:
    """The local minimum below ``start`` in the free coordinates, and its penalized loss."""
    base, mask = start.vector(), free.mask(len(start.log_bandwidths))

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        v = base.copy()
        v[mask] = values
        loss, gradient = loss_and_gradient(Point.of(v), evidence, free)
        return loss, gradient[mask]

    reach = [(base[0] - 8, base[0] + 8), *[(-4.0, 4.0)] * len(start.log_bandwidths)]
    reach += [(0.0, 4.0 * dimensions), (-3.0, 5.0), (-16.0, 0.0)]
    bounds = [pair for pair, is_free in zip(reach, mask, strict=True) if is_free]
    found = minimize(
        objective, base[mask], jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": steps, "ftol": 1e-8, "gtol": 1e-6},
    )  # fmt: skip
    v = base.copy()
    v[mask] = found.x
    return Point.of(v), float(found.fun)


def coarse_temperature(evidence: Evidence, start: Point) -> float:
    """log T on a grid around the k-th distance: the loss may have two minima in T."""
    scale = float(evidence.distances[:, -1].median())
    if scale <= 0:
        return start.log_t
    grid = math.log(scale) + np.linspace(-8, 3, 23)
    losses = [float(row_losses(start._replace(log_t=u), evidence).mean()) for u in grid]
    return float(grid[int(np.argmin(losses))])


def fit_jointly(
    start: Point, evidence: Evidence, steps: Sequence[Free], dimensions: int
) -> tuple[Point, int]:
    """Climb a ladder of ever more free parameters while held-out rows of the graph agree.

    ``steps[0]`` is the plain fit (already at its minimum in ``start``). Returns the point and the
    number of the step kept.
    """
    evidence = _thinned(evidence)
    fold = torch.arange(len(evidence)) % FOLDS
    best, kept, lowest = start, 0, row_losses(start, evidence)
    point = start
    for step, free in enumerate(steps[1:], 1):
        point = _best(point, evidence, free, dimensions)
        # Each fold starts at the common minimum and has a short way to its own.
        others = [evidence.rows(fold != f) for f in range(FOLDS)]
        folds = [descend(point, rows, free, dimensions, steps=12)[0] for rows in others]
        losses = _validated(folds, evidence, fold)
        if _clearly_lower(losses, lowest):
            best, kept, lowest = point, step, losses
    return best, kept


def _best(start: Point, evidence: Evidence, free: Free, dimensions: int) -> Point:
    """The better of two descents: from the plain fit, and from a wider, sharper kernel."""
    starts = [start]
    if free.background and start.background == 0:
        starts = [start._replace(background=_sigmoid(USUAL_LOGIT))]
    if free.sharpness and free.temperature and start.log_gamma == 0:
        starts.append(starts[0]._replace(log_t=start.log_t + 1.0, log_gamma=start.log_gamma + 1.0))
    ends = [descend(point, evidence, free, dimensions) for point in starts]
    return min(ends, key=lambda end: end[1])[0]


def _validated(points: Sequence[Point], evidence: Evidence, fold: Tensor) -> Tensor:
    """Loss of each row under the fit of the folds it was not in."""
    losses = torch.empty(len(fold), dtype=torch.float64)
    for f, point in enumerate(points):
        losses[fold == f] = row_losses(point, evidence.rows(fold == f))
    return losses


def _clearly_lower(losses: Tensor, than: Tensor) -> bool:
    """Lower in the mean by half a standard error: a coin's toss should not buy parameters."""
    gain = than - losses
    return float(gain.mean()) > 0.5 * float(gain.std()) / math.sqrt(len(gain))


def _pass(point: Point, evidence: Evidence):  # type: ignore[no-untyped-def]  # (n,), a thunk
    """Losses of a block of rows, and a function that gives the summed gradient.

    With mass m_c, M = Σ m_c, S = m/M, B = επ + (1-ε)S, q = log B, p = softmax(γq) and target t:
    ∂L/∂q = γ(p - t), ∂L/∂B = ∂L/∂q / B, ∂L/∂m_c = ((1-ε)∂L/∂B_c - Σ(1-ε)∂L/∂B·S) / M, and
    ∂m_c/∂log T = R_c/T_c with the moment R_c = Σ_{i∈c} w_i d_i.
    """
    width = torch.from_numpy(point.log_bandwidths)
    t_c, half_m = (point.log_t + width).exp(), 0.5 * point.dimension
    mass, moment = _masses(evidence, t_c, half_m * width)
    total, prior = mass.sum(1, keepdim=True), _priors(evidence)
    share, eps, gamma = mass / total, point.background, math.exp(point.log_gamma)
    mixed = (eps * prior + (1 - eps) * share).clamp_min(_TINY)
    q = mixed.log()
    log_p = (gamma * q).log_softmax(1)
    hard = evidence.targets.ndim == 1
    if hard:
        losses = -log_p.gather(1, evidence.targets[:, None])[:, 0]
    else:
        losses = -(evidence.targets * log_p).sum(1)

    def slope() -> NDArray[np.float64]:
        error = log_p.exp()
        if hard:
            error.scatter_add_(1, evidence.targets[:, None], -torch.ones_like(error[:, :1]))
        else:
            error -= evidence.targets
        by_mixed = gamma * error / mixed
        by_share = (1 - eps) * by_mixed
        by_mass = (by_share - (by_share * share).sum(1, keepdim=True)) / total
        stretch, weight = (by_mass * moment / t_c).sum(0), (by_mass * mass).sum(0)
        by_width = stretch - half_m * weight
        by_eps = eps * (1 - eps) * (by_mixed * (prior - share)).sum()
        tail = [-0.5 * (width * weight).sum(), gamma * (error * q).sum(), by_eps]
        return torch.cat([stretch.sum()[None], by_width, torch.stack(tail)]).numpy()

    return losses, slope


def _masses(evidence: Evidence, t_c: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Class masses and their moments in the distance, each row scaled by its top weight."""
    d, labels = evidence.distances, evidence.labels
    if labels.ndim == 2:
        shared = bool((t_c == t_c[0]).all()) and not bool(offset.any())
        logs = d / -t_c[0] if shared else -d / t_c[labels] - offset[labels]
        w = (logs - logs.amax(1, keepdim=True)).exp_()
        mass = torch.zeros(len(d), len(t_c), dtype=d.dtype).scatter_add_(1, labels, w)
        return mass, torch.zeros_like(mass).scatter_add_(1, labels, w * d)
    cube = -d[:, :, None] / t_c - offset
    cube = (cube - cube.amax((1, 2), keepdim=True)).exp_() * labels
    return cube.sum(1), torch.einsum("nkc,nk->nc", cube, d)


def _priors(evidence: Evidence) -> Tensor:
    """Class shares each row may know: its own label is not among them when it is in the support."""
    counts, targets = evidence.counts, evidence.targets
    if not evidence.leave_one_out:
        return (counts / counts.sum()).expand(len(targets), -1)
    rows = counts.expand(len(targets), -1).clone()
    if targets.ndim == 1:
        rows.scatter_add_(1, targets[:, None], -torch.ones_like(rows[:, :1]))
    else:
        rows -= targets
    return rows.clamp_min_(0) / (counts.sum() - 1).clamp_min(1)


def _blocks(evidence: Evidence) -> list[Evidence]:
    soft = evidence.targets.ndim == 2  # then the neighbors' labels are (n, k, c)
    cells = evidence.neighborhood.k * (len(evidence.counts) if soft else 1) + len(evidence.counts)
    rows = max(_ELEMENTS // cells, 1)
    return [evidence.rows(slice(at, at + rows)) for at in range(0, len(evidence), rows)]


def _thinned(evidence: Evidence) -> Evidence:
    n, enough = len(evidence), max(MAX_ROWS, 20 * len(evidence.counts))
    return evidence if n <= enough else evidence.rows(torch.linspace(0, n - 1, enough).long())


def _logit(p: float) -> float:
    return math.log(p / (1 - p)) if 0 < p < 1 else (-40.0 if p <= 0 else 40.0)


def _sigmoid(x: float) -> float:
    if x <= -40:
        return 0.0
    return 1 / (1 + math.exp(-x))
