"""Which of NED's parameters are given, which are fitted, and the fit of those that are.

Eq. 3's temperature is fitted first, exactly as if it were alone. The further parameters then climb
a ladder (sharpness and background, then class bandwidths) and stay where cross-validation leaves
them; where they do not help, the result *is* eq. 3.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import InputError, check_choice
from vicinal.confidence.ned.fit import (
    Free,
    Point,
    coarse_temperature,
    descend,
    fit_jointly,
    reachable,
)
from vicinal.confidence.ned.posterior import NEDParameters
from vicinal.confidence.support import Evidence
from vicinal.neighbors.temperature import fit_temperature

_NAMES = ("temperature_", "sharpness_", "background_", "class_temperatures_")


class Recipe(NamedTuple):
    """Given numbers, or None for what is to be fitted."""

    temperature: float | None
    sharpness: float | None
    background: float | None
    per_class: bool

    @classmethod
    def of(cls, temperature: Any, sharpness: Any, background: Any, bandwidth: Any) -> Recipe:
        check_choice(bandwidth, "bandwidth", ("shared", "class"))
        t = None if temperature is None else _number(temperature, "temperature", 0, math.inf)
        gamma = _number_or_fit(sharpness, "sharpness", 0, math.inf)
        eps = _number_or_fit(background, "background", 0, 1)
        if gamma in (0, math.inf):
            raise InputError(f"`sharpness` must be a finite number above 0, got {sharpness!r}.")
        if eps == 1:
            raise InputError("`background` must be below 1: at 1 the neighbors have no say.")
        recipe = cls(t, gamma, eps, bandwidth == "class")
        if t in (0, math.inf) and (recipe.per_class or None in (gamma, eps)):
            raise InputError(
                f"`temperature`={t} is an exact limit, around which nothing else can be fitted. "
                "Pass a number between 0 and infinity, or None."
            )
        return recipe

    @property
    def extras(self) -> bool:
        return self.per_class or self.sharpness is None or self.background is None

    @property
    def anything(self) -> bool:
        return self.temperature is None or self.extras

    @property
    def names(self) -> tuple[str, ...]:
        """Fitted attributes, in the order of the ladder."""
        missing = [given is None for given in self[:3]]
        return tuple(compress(_NAMES, [*missing, self.per_class]))


class RecipeFit(NamedTuple):
    parameters: NEDParameters
    kept: tuple[str, ...]
    warnings: tuple[str, ...]


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
    if evidence is None:
        assert recipe.temperature is not None
        return RecipeFit(NEDParameters(recipe.temperature, gamma, eps), (), ())
    start = Point(0.0, np.zeros(num_classes), 0.0, math.log(gamma), eps)
    usable = evidence.rows(reachable(evidence, eps > 0))
    if recipe.temperature is None:
        log_t, notes = _plain_temperature(start, usable, dimensions)
    else:
        log_t, notes = _log(recipe.temperature), ()
    start = start._replace(log_t=log_t)
    if not recipe.extras or len(usable) == 0 or num_classes < 2:
        kept = recipe.names[:1] if recipe.temperature is None else ()
        return RecipeFit(_parameters(start, recipe.temperature), kept, notes)
    rows = evidence.rows(reachable(evidence, eps > 0 or recipe.background is None))
    t, g, e = recipe.temperature is None, recipe.sharpness is None, recipe.background is None
    steps = [Free(t, False, False, False)]
    steps += [Free(t, False, g, e)] if g or e else []
    steps += [Free(t, True, g, e)] if recipe.per_class else []
    point, step = fit_jointly(start, rows, steps, dimensions)
    some = compress(_NAMES, [t, g and step > 0, e and step > 0, steps[step].bandwidths])
    exact = recipe.temperature if point.log_t == log_t else None
    return RecipeFit(_parameters(point, exact), tuple(some), notes)


def with_prior(parameters: NEDParameters, counts: Tensor, prior: Any) -> NEDParameters:
    """The support's class shares, and the shift from them to the ``prior`` that is expected."""
    shares = counts / counts.sum()
    if isinstance(prior, str) and prior == "support":
        return replace(parameters, prior=shares, log_prior_shift=None)
    count = len(shares)
    if isinstance(prior, str):
        target = torch.full((count,), 1 / count, dtype=torch.float64)
    else:
        target = torch.as_tensor(np.asarray(prior, dtype=np.float64))
    if target.shape != (count,) or bool((target <= 0).any()) or abs(target.sum() - 1) > 1e-3:
        raise InputError(
            f"`prior` must be {count} probabilities above 0 that sum to 1, one per class of "
            f"classes_, got {np.asarray(prior)!r}."
        )
    shift = torch.where(shares > 0, (target / target.sum()).log() - shares.log(), 0.0)
    return replace(parameters, prior=shares, log_prior_shift=shift)


def collapse_sentence(accuracy: float) -> str:
    return (
        f"leave-one-out accuracy is {accuracy:.4f}: either the task is easy, or the support is "
        "what the embedding was trained on and its classes have collapsed, so that new rows will "
        "be less certain than these. Call calibrate(X, y) with held-out rows."
    )


def _plain_temperature(
    start: Point, rows: Evidence, dimensions: int
) -> tuple[float, tuple[str, ...]]:
    """log T of eq. 3, and what to say about it."""
    scale = float(rows.distances[:, -1].median()) if len(rows) else 0.0
    fallback = math.log(scale) if scale > 0 else 0.0
    if len(rows) == 0:
        return fallback, (
            "temperature cannot be fitted: no row has a neighbor of its own class. The median "
            "distance to the k-th neighbor is used; pass temperature= or more rows per class.",
        )
    plain = rows.targets.ndim == 1 and start.log_gamma == 0 and start.background == 0
    if not plain:
        coarse = start._replace(log_t=coarse_temperature(rows, start))
        free = Free(True, False, False, False)
        return descend(coarse, rows, free, dimensions)[0].log_t, ()
    same = rows.labels == rows.targets[:, None]
    if not bool((same.any(1) & ~same.all(1)).any()):
        return fallback, (
            "temperature cannot be fitted: rows have neighbors of their own class only or none, so "
            "any temperature gives the same answer. The median distance to the k-th is used. "
            "If the support is what the embedding was trained on, call calibrate(X, y) with "
            "held-out rows.",
        )
    found = fit_temperature(rows.distances, same)
    if not found.at_bound:
        return _log(found.temperature), ()
    return _log(found.temperature), (_bound_sentence(found.temperature, rows.distances),)


def _bound_sentence(temperature: float, distances: Tensor) -> str:
    if temperature > float(distances[:, -1].median()):
        return (
            f"the temperature ran into its upper bound ({temperature:.3g}): the distances of the k "
            "neighbors say nothing about their labels beyond the plain vote. Try a larger k, or "
            "check that rows and labels belong together."
        )
    return (
        f"the temperature ran into its lower bound ({temperature:.3g}): the classes have "
        "collapsed, as when the support is the embedding's own training set, and confidence will "
        "be too high on new rows. Call calibrate(X, y) with held-out rows."
    )


def _parameters(point: Point, exact_temperature: float | None) -> NEDParameters:
    own = point.log_bandwidths
    return NEDParameters(
        temperature=math.exp(point.log_t) if exact_temperature is None else exact_temperature,
        sharpness=1.0 if point.log_gamma == 0 else math.exp(point.log_gamma),
        background=point.background,
        effective_dimension=point.dimension,
        log_bandwidths=torch.from_numpy(own.copy()) if own.any() else None,
    )


def _log(temperature: float) -> float:
    return math.log(temperature) if temperature > 0 else -math.inf


def _number_or_fit(value: Any, name: str, low: float, high: float) -> float | None:
    if isinstance(value, str):
        check_choice(value, name, ("fit",))
        return None
    return _number(value, name, low, high)


def _number(value: Any, name: str, low: float, high: float) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, bool) or not low <= float(value) <= high:
        raise InputError(f"`{name}` must be a number from {low} to {high}, got {value!r}.")
    return float(value)
