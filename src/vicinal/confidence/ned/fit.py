r"""Fitting NED on one cached neighbor graph: temperature, sharpness, background, class bandwidths.

The graph is the support's own leave-one-out graph (self removed by index) or held-out rows against
the support. Either way no row ever sees itself, and no search is repeated: the objective is

.. math::
   \frac1n \sum_i -\log p(y_i \mid z_i)
   + \lambda \, \overline{\log^2(T_c/T)}
   + \frac{\log^2 \gamma + (\operatorname{logit} \epsilon + 4)^2}{2 n}

with :math:`\lambda = 0.1` (a class with few rows borrows the common bandwidth) and unit normal
priors on :math:`\log\gamma` and :math:`\operatorname{logit}\epsilon` (an easy set with a handful of
errors would send :math:`\gamma` to infinity, and :math:`\epsilon` after it).

Eq. 3's temperature is fitted first, exactly as if it were alone: the objective is then the soft
nearest neighbor loss. More parameters always fit better on the rows that chose them, so the further
ones climb a ladder (sharpness and background, then class bandwidths) and stay only where they lower
the loss of rows that did not choose them; where they do not help, the result *is* eq. 3. (Only a
background that was to be fitted never falls below 1/(n + 1), which n rows cannot tell from 0.)

Inside, the parameters are one vector ``v``, each on the scale where it is unbounded:
log T, the log(T_c / T), the effective dimension m, log γ, logit ε.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from vicinal.confidence.minimum import Vector, minimum
from vicinal.confidence.ned.posterior import FITTED, NEDParameters, Recipe
from vicinal.confidence.support import Evidence, less_own

SHRINKAGE = 0.1
USUAL_LOGIT = -4.0  # of the background: ε = 0.018
NO_LOGIT = -40.0  # ε = 0
FOLDS = 3
MAX_ROWS = 1_500  # so few parameters need no more (20 per class at least); T alone uses all rows
_TINY = 1e-200
Mask = NDArray[np.bool_]  # which of a vector's parameters are free
Notes = tuple[str, ...]


class RecipeFit(NamedTuple):
    parameters: NEDParameters
    kept: tuple[str, ...]
    warnings: Notes


def fit_recipe(
    recipe: Recipe, evidence: Evidence | None, num_classes: int, dimensions: int
) -> RecipeFit:
    """The parameters a recipe asks for.

    Parameters
    ----------
    recipe : what is given and what is to be fitted.
    evidence : the rows to fit on; None where nothing is fitted.
    num_classes : of the support.
    dimensions : of its rows, an upper bound for the effective one.
    """
    gamma = 1.0 if recipe.sharpness is None else recipe.sharpness
    eps = 0.0 if recipe.background is None else recipe.background
    if not recipe.names:
        assert recipe.temperature is not None
        return RecipeFit(NEDParameters(recipe.temperature, gamma, eps), (), ())
    assert evidence is not None
    t, g, e = (given is None for given in recipe[:3])
    v, step, notes = np.zeros(num_classes + 4), 0, Notes()
    v[-2:] = math.log(gamma), math.log(eps / (1 - eps)) if eps > 0 else NO_LOGIT
    usable = reachable(evidence, eps > 0)
    if recipe.temperature is None:
        v[0], notes = _plain_temperature(v, usable, evidence, dimensions)
    else:
        v[0] = math.log(recipe.temperature)
    ladder = [(t, False, g, e)] * (g or e) + [(t, True, g, e)] * recipe.per_class
    if ladder and bool(usable.any()) and num_classes > 1:
        rows = evidence.some(max(MAX_ROWS, 20 * num_classes), reachable(evidence, eps > 0 or e))
        masks = [fit_mask(num_classes, *free) for free in ladder]
        v, step = fit_jointly(v, rows, masks, dimensions)
    own = v[1:-3]
    parameters = NEDParameters(
        temperature=math.exp(v[0]) if recipe.temperature is None else recipe.temperature,
        sharpness=math.exp(v[-2]),
        background=max(_sigmoid(v[-1]), least_background(evidence)) if e else eps,
        effective_dimension=float(v[-3]),
        log_bandwidths=torch.from_numpy(own.copy()) if own.any() else None,
    )
    kept = t, g and step > 0, e and step > 0, step > 0 and ladder[step - 1][1]
    return RecipeFit(parameters, tuple(compress(FITTED, kept)), notes)


def least_background(evidence: Evidence) -> float:
    """1 / (n + 1): that the next row is unlike all n so far is a chance they cannot rule out.

    A small support without a single error says nothing against ε = 0, and the first error then
    costs as many nats as the kernel has digits.
    """
    return 1 / (float(evidence.counts.sum()) + 1)


def fit_mask(num_classes: int, t: bool, bandwidths: bool, gamma: bool, eps: bool) -> Mask:
    """Which parameters are free."""
    return np.array([t, *[bandwidths] * (num_classes + 1), gamma, eps])


def _plain_temperature(
    v: Vector, usable: Bool[Tensor, " n"], evidence: Evidence, dimensions: int
) -> tuple[float, Notes]:
    """log T of eq. 3, and what to say about it; ``usable`` are the rows in reach."""
    far = evidence.distances[:, -1][usable]
    scale = float(far.median()) if len(far) else 0.0
    fallback = math.log(scale) if scale > 0 else 0.0
    if len(far) == 0:
        return fallback, (
            "temperature cannot be fitted: no row has a neighbor of its own class. The median "
            "distance to the k-th neighbor is used; pass temperature= or more rows per class.",
        )
    if evidence.targets.ndim == 2 or v[-2] != 0 or v[-1] > NO_LOGIT:
        rows, free = evidence.rows(usable), fit_mask(len(v) - 4, True, False, False, False)
        return float(descend(coarse(v, rows), rows, free, dimensions)[0][0]), ()
    found = evidence.plain_temperature
    if found is None:
        return fallback, (
            "temperature cannot be fitted: rows have neighbors of their own class only or none, so "
            "any temperature gives the same answer. The median distance to the k-th is used. "
            "If the support is what the embedding was trained on, fit on held-out rows of all "
            "classes: calibrate(X, y), calib= or --calib.",
        )
    at = found.temperature
    if not found.at_bound:
        return math.log(at), ()
    if at > scale:
        return math.log(at), (
            f"the temperature ran into its upper bound ({at:.3g}): the distances of the k "
            "neighbors say nothing about their labels beyond the plain vote. Try a larger k, or "
            "check that rows and labels belong together.",
        )
    wide = _widest(v, evidence.rows(usable), math.log(at), fallback)
    return wide, (
        f"the temperature ran into its lower bound ({at:.3g}): the classes have collapsed, as when "
        "the support is the embedding's own training set, and confidence will be too high on new "
        f"rows. {math.exp(wide):.3g} is used, the largest that fits these rows about as well. "
        "Fit on held-out rows of all classes: calibrate(X, y), calib= or --calib.",
    )


def _widest(v: Vector, rows: Evidence, low: float, high: float) -> float:
    """The largest log T that costs all n rows together less than a nat more than T = 0 does.

    Rows that are all nearest to their own class say T = 0, the nearest neighbor's certainty, and
    the first new row that is not costs as many nats as the kernel has digits. Up to here no T is
    less likely by more than the odds of one row in n + 1.
    """
    n, enough = len(rows), rows.some(3_000)

    def fits(log_t: float) -> bool:
        return float(row_losses(np.array([log_t, *v[1:]]), enough).mean()) * (n + 1) <= 1

    if fits(high):
        return max(low, high)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def reachable(evidence: Evidence, background: bool) -> Bool[Tensor, " n"]:
    """Rows that any setting of the parameters can give a probability above zero."""
    labels, targets = evidence.labels, evidence.targets
    if targets.ndim == 1:
        found = (labels == targets[:, None]).any(1)
        prior = (evidence.priors.gather(1, targets[:, None]) > 0)[:, 0] if background else found
    else:
        found = ((labels.sum(1) > 0) | (targets <= 0)).all(1)
        prior = ((evidence.priors > 0) | (targets <= 0)).all(1) if background else found
    return found | prior


def row_losses(v: Vector, evidence: Evidence) -> Float[Tensor, " n"]:
    """-log p of each row's own label (soft labels: the cross-entropy)."""
    found = (_pass(v, block)[0] for block in evidence.blocks)
    return torch.cat([torch.zeros(0).double(), *found])  # a fold may have no rows


def loss_and_gradient(v: Vector, evidence: Evidence, free: Mask) -> tuple[float, Vector]:
    """The penalized mean loss and its gradient."""
    total, gradient, n = 0.0, np.zeros_like(v), max(len(evidence), 1)  # a fold may have no rows
    for block in evidence.blocks:
        losses, slope = _pass(v, block)
        total += float(losses.sum())
        gradient += slope()
    width, (log_gamma, logit) = v[1:-3], v[-2:]
    off = logit - USUAL_LOGIT if free[-1] else 0.0
    total += (log_gamma**2 + off**2) / 2
    gradient[-2:] += log_gamma, off
    total, gradient = total / n, gradient / n
    if free[1]:
        total += SHRINKAGE * float(np.mean(width**2))
        gradient[1:-3] += 2 * SHRINKAGE * width / len(width)
    return total, gradient


def descend(
    start: Vector, evidence: Evidence, free: Mask, dimensions: int, steps: int = 40
) -> tuple[Vector, float]:
    """The local minimum below ``start`` in the free parameters, and its penalized loss."""

    def placed(values: Vector) -> Vector:
        v = start.copy()
        v[free] = values
        return v

    def objective(values: Vector) -> tuple[float, Vector]:
        loss, gradient = loss_and_gradient(placed(values), evidence, free)
        return loss, gradient[free]

    reach = [(start[0] - 8, start[0] + 8), *[(-4.0, 4.0)] * (len(start) - 4)]
    reach += [(0.0, 4.0 * dimensions), (-3.0, 5.0), (-16.0, 0.0)]
    stops = {"maxiter": steps, "ftol": 1e-8, "gtol": 1e-6}
    found = minimum(objective, start[free], stops, list(compress(reach, free)))
    return placed(found.x), float(found.fun)


def coarse(v: Vector, evidence: Evidence, points: int = 23) -> Vector:
    """T from a grid around the k-th distance: the loss may have two minima in T."""
    scale = float(evidence.distances[:, -1].median())
    if scale <= 0:
        return v
    grid = [np.array([math.log(scale) + u, *v[1:]]) for u in np.linspace(-8, 3, points)]
    return min(grid, key=lambda at: float(row_losses(at, evidence).mean()))


def fit_jointly(
    start: Vector, evidence: Evidence, ladder: Sequence[Mask], dimensions: int
) -> tuple[Vector, int]:
    """Climb a ladder of ever more free parameters while held-out rows of the graph agree.

    ``start`` is the plain fit. Returns the parameters and how many steps of the ladder were kept.
    """
    fold = torch.arange(len(evidence)) % FOLDS
    best, kept, lowest, v = start, 0, row_losses(start, evidence), start
    for step, free in enumerate(ladder, 1):
        v = descend(_valley(v, evidence, free, dimensions), evidence, free, dimensions)[0]
        losses = torch.empty_like(lowest)
        for f in range(FOLDS):  # each starts at the common minimum and has a short way to its own
            own = descend(v, evidence.rows(fold != f), free, dimensions, steps=12)[0]
            losses[fold == f] = row_losses(own, evidence.rows(fold == f))
        gain = lowest - losses
        # Lower by half a standard error, and by a nat in all: neither a coin's toss nor rows that
        # are all certain should buy parameters.
        if float(gain.sum()) > max(1.0, 0.5 * float(gain.std()) * math.sqrt(len(gain))):
            best, kept, lowest = v, step, losses
    return best, kept


def _valley(start: Vector, evidence: Evidence, free: Mask, dimensions: int) -> Vector:
    """Where to descend from: a few steps on some rows tell which of two valleys is the deeper one,
    that of the plain fit or that of a wider, sharper kernel."""
    starts = [start.copy()]
    if free[-1] and start[-1] == NO_LOGIT:
        starts[0][-1] = USUAL_LOGIT
    if not (free[-2] and free[0] and start[-2] == 0):
        return starts[0]
    starts.append(starts[0].copy())
    starts[1][[0, -2]] += 1.0
    some = evidence.rows(slice(None, None, max(len(evidence) // 500, 1)))
    return min((descend(v, some, free, dimensions, steps=12) for v in starts), key=itemgetter(1))[0]


def _pass(v: Vector, evidence: Evidence):  # type: ignore[no-untyped-def]  # (n,), a thunk
    """Losses of a block of rows, and a function that gives the summed gradient.

    With mass m_c, M = Σ m_c, S = m/M, B = επ + (1-ε)S, q = log B, p = softmax(γq) and target t:
    ∂L/∂q = γ(p - t), ∂L/∂B = ∂L/∂q / B, ∂L/∂m_c = ((1-ε)∂L/∂B_c - Σ(1-ε)∂L/∂B·S) / M, and
    ∂m_c/∂log T = R_c/T_c with the moment R_c = Σ_{i∈c} w_i d_i.
    """
    width = torch.from_numpy(v[1:-3])
    t_c, half_m = (v[0] + width).exp(), 0.5 * v[-3]
    mass, moment = _masses(evidence, t_c, half_m * width)
    total, prior = mass.sum(1, keepdim=True), evidence.priors
    share, eps, gamma = mass / total, _sigmoid(v[-1]), math.exp(v[-2])
    mixed = (eps * prior).add_(share, alpha=1 - eps).clamp_min_(_TINY)
    q = mixed.log()
    log_p = (gamma * q).log_softmax(1)
    targets = evidence.targets
    if targets.ndim == 1:
        losses = -log_p.gather(1, targets[:, None])[:, 0]
    else:
        losses = -(targets * log_p).sum(1)

    def slope() -> NDArray[np.float64]:
        error = less_own(log_p.exp_(), targets)
        by_gamma = gamma * torch.dot(error.flatten(), q.flatten())
        by_mixed = error.mul_(gamma).div_(mixed)
        against = (by_mixed * share).sum(1, keepdim=True)
        by_eps = eps * (1 - eps) * ((by_mixed * prior).sum() - against.sum())
        by_mass = by_mixed.sub_(against).mul_((1 - eps) / total)
        weight = (by_mass * mass).sum(0)
        stretch = by_mass.mul_(moment).sum(0) / t_c
        by_width = stretch - half_m * weight
        tail = [-0.5 * (width * weight).sum(), by_gamma, by_eps]
        return torch.cat([stretch.sum()[None], by_width, torch.stack(tail)]).numpy()

    return losses, slope


def _masses(evidence: Evidence, t_c: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Class masses and their moments in the distance, each row scaled by its top weight."""
    d, labels = evidence.distances, evidence.labels
    if labels.ndim == 2:
        shared = bool((t_c == t_c[0]).all()) and not bool(offset.any())
        own = (v.expand(len(d), -1).gather(1, labels) for v in (-1 / t_c, offset))
        w = d / -t_c[0] if shared else next(own).mul_(d).sub_(next(own))
        np.exp(w.sub_(w.amax(1, keepdim=True)).numpy(), out=w.numpy())  # half of torch's time
        mass = torch.zeros(len(d), len(t_c), dtype=d.dtype).scatter_add_(1, labels, w)
        return mass, torch.zeros_like(mass).scatter_add_(1, labels, w * d)
    cube = -d[:, :, None] / t_c - offset
    cube = (cube - cube.amax((1, 2), keepdim=True)).exp_() * labels
    return cube.sum(1), torch.einsum("nkc,nk->nc", cube, d)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > NO_LOGIT else 0.0
