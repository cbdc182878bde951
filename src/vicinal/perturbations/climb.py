"""What an attack climbs, the loss of a model's answer, and how far it may go: the ball around each
input, L∞ or L2, inside the range."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vicinal.capture import evaluating
from vicinal.checks import (
    InputError,
    as_tensor,
    check_choice,
    check_finite,
    check_whole,
    same_kind,
)
from vicinal.perturbations.draws import normal, uniform

NORMS = ("linf", "l2")
LOSSES = ("cross_entropy", "margin")
Bounds = tuple[float, float] | None
Model = Callable[[Tensor], Tensor]  # inputs -> logits
Misread = Callable[[Tensor, Tensor], Tensor]  # inputs, labels -> (n,) truth values


def attack_loss(
    output: Float[Tensor, "n c"], labels: Int[Tensor, " n"], loss: str
) -> Float[Tensor, " n"]:
    r"""What is climbed: −log p_y, or the margin max_{c≠y} z_c − z_y, which no softmax flattens."""
    if loss == "cross_entropy":
        return F.cross_entropy(output, labels, reduction="none")
    own = output.gather(1, labels[:, None])[:, 0]
    return output.scatter(1, labels[:, None], -math.inf).amax(1) - own


def differentiable(model: Any) -> Model:
    """The model itself, or the module of a fitted head that has one."""
    if not isinstance(model, nn.Module) and hasattr(model, "module"):
        model = model.module()
    if callable(model):
        return model
    raise InputError(
        f"`model` must map a batch of inputs to logits by a call, got {type(model).__name__}, "
        "a head without gradients. Pass nn.Sequential(net, NEDClassifier(...).fit(...).module())."
    )


def slope(
    model: Model, x: Tensor, y: Tensor, loss: str
) -> tuple[Float[Tensor, " n"], Tensor, Bool[Tensor, " n"]]:
    """The loss of each row, its gradient with respect to the row, and which rows are misread."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        output = model(x)
        _check_output(output, y)
        values = attack_loss(output, y, loss)
        (gradient,) = torch.autograd.grad(values.sum(), x, allow_unused=True)
    if gradient is None:
        raise InputError(
            "`model` has no gradient: its output does not depend on the input through "
            "differentiable steps. A plain k-nearest-neighbor vote is such a head; attack through "
            "NEDClassifier(...).module() or by transfer from another model."
        )
    # A class out of reach has log-probability −inf and no slope: such a row stays where it is.
    gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    return _ranked(values), gradient, output.detach().argmax(1) != y


def harm(values: Float[Tensor, " n"], wrong: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """What orders the tries at a row: misread ones, above 1, before all others; then by the loss.

    >>> harm(torch.tensor([0.0, 3.0]), torch.tensor([True, False]))
    tensor([2.0000, 0.7500])
    """
    return values / (1 + values.abs()) + 2 * wrong


@torch.no_grad()
def harm_of(
    model: Model, x: Tensor, y: Tensor, loss: str, misread: Misread | None = None
) -> Float[Tensor, " n"]:
    """:func:`harm` without a gradient."""
    output = model(x)
    wrong = output.argmax(1) != y if misread is None else misread(x, y)
    return harm(_ranked(attack_loss(output, y, loss)), wrong)


def _ranked(values: Tensor) -> Float[Tensor, " n"]:
    return torch.nan_to_num(values.detach().double(), nan=-1e30, posinf=1e30, neginf=-1e30)


def by_batch(
    move: Callable[[Model, Tensor, Tensor], Tensor],
    model: Any,
    x: Any,
    y: Any,
    ball: Ball,
    *,
    steps: int,
    loss: str,
    batch_size: int,
) -> Any:
    """The inputs after ``move(model, rows, labels)`` of each batch, in evaluation mode, all checked
    before."""
    check_choice(ball.norm, "norm", NORMS)
    check_choice(loss, "loss", LOSSES)
    check_size(ball.epsilon, "epsilon", "the radius within which inputs move")
    check_whole(steps, "steps", 1)
    rows, labels = as_tensor(x, "x"), as_tensor(y, "y")
    if not rows.is_floating_point() or rows.ndim < 2 or len(rows) == 0:
        raise InputError(
            f"`x` must be a batch of floats, got {rows.dtype} of shape {tuple(rows.shape)}. "
            "Pass images.float() / 255 for bytes, image[None] for one image."
        )
    if labels.shape != rows.shape[:1] or labels.is_floating_point():
        raise InputError(
            f"`y` must hold one integer label for each of the {len(rows)} rows of `x`, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}."
        )
    check_finite(rows, "x")
    if ball.bounds is not None:
        _check_bounds(rows, ball.bounds)
    net, labels = differentiable(model), labels.long().to(rows.device)
    batches = zip(rows.detach().split(batch_size), labels.split(batch_size), strict=True)
    with evaluating(net):
        return same_kind(torch.cat([move(net, *batch) for batch in batches]), x)


def check_size(value: float, name: str, meaning: str) -> None:
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise InputError(f"`{name}` must be a finite number ≥ 0 ({meaning}), got {value!r}.")


def _check_output(output: Any, y: Tensor) -> None:
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(y):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"`model` must return logits (n, classes) for n={len(y)}, got {shape}.")
    if not output.requires_grad:
        raise InputError(
            "`model` has no gradient: its output is cut off from the input (a head without "
            "gradients, torch.no_grad, .detach or numpy inside). Attack through "
            "NEDClassifier(...).module(), or by transfer from another model."
        )
    top = int(y.max())
    if int(y.min()) < 0 or top >= output.shape[1]:
        raise InputError(
            f"`y` must hold labels 0 to {output.shape[1] - 1}, the columns of the model's output, "
            f"got labels from {int(y.min())} to {top}."
        )


# ------------------------------------------------------------------ the ball


class Ball(NamedTuple):
    """Where an input may go: no farther than ε in the norm, and inside the range."""

    epsilon: float
    norm: str
    bounds: Bounds


def ascent(gradient: Tensor, norm: str) -> Tensor:
    """The direction of length one, in the norm, that climbs most; zero where the gradient is."""
    if norm == "linf":
        return gradient.sign()
    # By its largest entry first: squares of tiny gradients vanish in float32.
    gradient = gradient / by_row(gradient.flatten(1).abs().amax(1), gradient).clamp(min=1e-38)
    length = by_row(gradient.flatten(1).norm(dim=1), gradient)
    return torch.where(length > 0, gradient / length.clamp(min=1e-38), 0)


def project(moved: Tensor, x: Tensor, ball: Ball) -> Tensor:
    """The nearest point of the ball around x, then of the range.

    Clipping into the range does not leave the ball: x lies in the range, and each clipped entry
    comes nearer to it.
    """
    change = moved - x
    if ball.norm == "linf":
        change = change.clamp(-ball.epsilon, ball.epsilon)
    else:
        length = by_row(change.flatten(1).norm(dim=1), x)
        change = change * (ball.epsilon / length.clamp(min=1e-38)).clamp(max=1)
    inside = x + change
    return inside if ball.bounds is None else inside.clamp(*ball.bounds)


def random_point(x: Tensor, ball: Ball, generator: torch.Generator | None) -> Tensor:
    """A uniform point of the ball (L2: a random direction, its length U^(1/d) ε), in the range."""
    if ball.norm == "linf":
        change = (uniform(x.shape, x, generator) * 2 - 1) * ball.epsilon
    else:
        direction = ascent(normal(x.shape, x, generator), "l2")
        length = uniform((len(x),), x, generator) ** (1 / x[0].numel()) * ball.epsilon
        change = direction * by_row(length, x)
    return project(x + change, x, ball)


def _check_bounds(x: Tensor, bounds: tuple[float, float]) -> None:
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
