"""The ball around each input within which an attack may move it: L∞ or L2, and inside the range."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.perturbations.draws import normal, uniform

NORMS = ("linf", "l2")


def ascent(gradient: Tensor, norm: str) -> Tensor:
    """The direction of length one, in the norm, that climbs most; zero where the gradient is."""
    if norm == "linf":
        return gradient.sign()
    # By its largest entry first: squares of tiny gradients vanish in float32.
    gradient = gradient / by_row(gradient.flatten(1).abs().amax(1), gradient).clamp(min=1e-38)
    length = by_row(gradient.flatten(1).norm(dim=1), gradient)
    return torch.where(length > 0, gradient / length.clamp(min=1e-38), 0)


def project(
    moved: Tensor, x: Tensor, epsilon: float, norm: str, bounds: tuple[float, float] | None
) -> Tensor:
    """The nearest point of the ball around x, then of the range.

    Clipping into the range does not leave the ball: x lies in the range, and each clipped entry
    comes nearer to it.
    """
    change = moved - x
    if norm == "linf":
        change = change.clamp(-epsilon, epsilon)
    else:
        length = by_row(change.flatten(1).norm(dim=1), x)
        change = change * (epsilon / length.clamp(min=1e-38)).clamp(max=1)
    inside = x + change
    return inside if bounds is None else inside.clamp(*bounds)


def random_point(
    x: Tensor,
    epsilon: float,
    norm: str,
    bounds: tuple[float, float] | None,
    generator: torch.Generator | None,
) -> Tensor:
    """A uniform point of the ball (L2: a random direction, its length U^(1/d) ε), in the range."""
    if norm == "linf":
        change = (uniform(x.shape, x, generator) * 2 - 1) * epsilon
    else:
        direction = ascent(normal(x.shape, x, generator), "l2")
        length = uniform((len(x),), x, generator) ** (1 / x[0].numel()) * epsilon
        change = direction * by_row(length, x)
    return project(x + change, x, epsilon, norm, bounds)


def check_bounds(x: Tensor, bounds: tuple[float, float]) -> None:
    """The inputs lie in their range, or the attack would move them there."""
    low, high = bounds
    least, most = float(x.min()), float(x.max())
    if least < low or most > high:
        raise InputError(
            f"`x` must lie in its range bounds=({low:g}, {high:g}), got values from {least:.4g} to "
            f"{most:.4g}. Pass the range the model was trained on, or bounds=None for no range."
        )


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """One value a row, shaped to meet the rows of ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))
