r"""Inputs moved a little, on purpose, to be misread: FGSM, BIM and PGD under L∞ or L2.

All three climb the loss of the true label by the gradient with respect to the input,

.. math::

    x_{t+1} = \Pi_{\|x' - x\| \le \varepsilon,\; x' \in \text{bounds}}
              \bigl(x_t + \eta\, d(\nabla_x \ell(f(x_t), y))\bigr),

with d the sign (L∞) or the unit vector (L2). FGSM (Goodfellow 2015) takes one step of size ε, BIM
(Kurakin 2017) several from x, PGD (Madry 2018) several from a random point of the ball, again and
again. ``model`` is any differentiable map from inputs to logits or log-probabilities: a network, or
a network followed by a neighbor head, ``nn.Sequential(net, ned.module())``; a fitted head alone is
attacked on embeddings. What is made against one model and shown to another is a transfer attack.

An attack that fails proves nothing: a saturated head (a small temperature) hides its gradients. See
``vicinal.studies.attack_audit``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vicinal.capture import evaluating
from vicinal.checks import InputError, as_tensor, check_choice, check_finite, same_kind
from vicinal.perturbations.balls import NORMS, ascent, check_bounds, project, random_point

LOSSES = ("cross_entropy", "margin")
Bounds = tuple[float, float] | None


def fgsm(
    model: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    norm: str = "linf",
    loss: str = "cross_entropy",
    bounds: Bounds = (0.0, 1.0),
    batch_size: int = 256,
) -> Any:
    """One step of size ε up the loss (Goodfellow et al. 2015).

    Parameters
    ----------
    model
        Any differentiable map from inputs to logits or log-probabilities: a network, a network
        followed by a neighbor head, or a fitted head (then ``x`` are embeddings).
    x
        A batch of floats inside ``bounds``.
    y
        The true labels, integers ``(n,)``.
    epsilon
        How far an input may move, in the norm.
    norm
        ``"linf"`` or ``"l2"``.
    loss
        ``"cross_entropy"``, or ``"margin"``, which no softmax flattens.
    bounds
        The range of the inputs; None: no range.
    batch_size
        Inputs moved at a time.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> fgsm(model, torch.tensor([[0.5, 0.4]]), torch.tensor([0]), 0.1)
    tensor([[0.4000, 0.5000]])
    """
    return bim(
        model, x, y, epsilon, step=epsilon, steps=1,
        norm=norm, loss=loss, bounds=bounds, batch_size=batch_size,
    )  # fmt: skip


def bim(
    model: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    step: float | None = None,
    steps: int = 10,
    norm: str = "linf",
    loss: str = "cross_entropy",
    bounds: Bounds = (0.0, 1.0),
    batch_size: int = 256,
) -> Any:
    """Steps up the loss from x, each projected back (Kurakin et al. 2017).

    Parameters
    ----------
    model, x, y, epsilon, norm, loss, bounds, batch_size
        As for :func:`fgsm`.
    step
        How far one step goes; None: ε/5.
    steps
        How many there are.
    """
    climb = _Climb(epsilon, step, steps, norm, loss, bounds, rate=steps / 5)
    net, rows, labels = _checked(model, x, y, climb)
    with evaluating(net):
        parts = [
            climb(net, a, a, b)
            for a, b in zip(rows.split(batch_size), labels.split(batch_size), strict=True)
        ]
    return same_kind(torch.cat(parts), x)


def pgd(
    model: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    step: float | None = None,
    steps: int = 40,
    restarts: int = 1,
    norm: str = "linf",
    loss: str = "cross_entropy",
    bounds: Bounds = (0.0, 1.0),
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> Any:
    """BIM from random points of the ball (Madry et al. 2018).

    Parameters
    ----------
    model, x, y, epsilon, norm, loss, bounds, batch_size
        As for :func:`fgsm`.
    step
        How far one step goes; None: 2.5 ε/steps.
    steps
        How many there are.
    restarts
        Random starts; each example keeps one that is misread, else the one of the highest loss.
    generator
        Draws the starts; None: torch's default generator.
    """
    climb = _Climb(epsilon, step, steps, norm, loss, bounds, rate=2.5)
    net, rows, labels = _checked(model, x, y, climb)
    _check_count(restarts, "restarts")
    parts = []
    with evaluating(net):
        for a, b in zip(rows.split(batch_size), labels.split(batch_size), strict=True):
            starts = (random_point(a, epsilon, norm, bounds, generator) for _ in range(restarts))
            tries = [climb(net, a, start, b) for start in starts]
            parts.append(tries[0] if restarts == 1 else _most_harmful(net, tries, b, loss))
    return same_kind(torch.cat(parts), x)


ATTACKS: dict[str, Callable[..., Any]] = {"fgsm": fgsm, "bim": bim, "pgd": pgd}


def attack_loss(
    output: Float[Tensor, "n c"], labels: Int[Tensor, " n"], loss: str
) -> Float[Tensor, " n"]:
    r"""What is climbed: −log p_y, or the margin max_{c≠y} z_c − z_y, which no softmax flattens."""
    if loss == "cross_entropy":
        return F.cross_entropy(output, labels, reduction="none")
    own = output.gather(1, labels[:, None])[:, 0]
    others = output.scatter(1, labels[:, None], -math.inf)
    return others.amax(1) - own


def differentiable(model: Any) -> Callable[[Tensor], Tensor]:
    """The model itself, or the module of a fitted head that has one."""
    if not isinstance(model, nn.Module) and hasattr(model, "module"):
        model = model.module()
    if callable(model):
        return model
    raise InputError(
        f"`model` must map a batch of inputs to logits by a call, got {type(model).__name__}, "
        "a head without gradients. Pass nn.Sequential(net, NEDClassifier(...).fit(...).module())."
    )


@dataclass(frozen=True)
class _Climb:
    """Steps up the loss, each projected back; without a step given, ``rate`` ε/steps."""

    epsilon: float
    given_step: float | None
    steps: int
    norm: str
    loss: str
    bounds: Bounds
    rate: float

    @property
    def step(self) -> float:
        return self.rate * self.epsilon / self.steps if self.given_step is None else self.given_step

    def __call__(
        self, model: Callable[[Tensor], Tensor], x: Tensor, start: Tensor, y: Tensor
    ) -> Tensor:
        moved = start.detach()
        for _ in range(self.steps):
            gradient = _gradient(model, moved, y, self.loss)
            moved = moved + self.step * ascent(gradient, self.norm)
            moved = project(moved, x, self.epsilon, self.norm, self.bounds)
        return moved


def _gradient(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, loss: str) -> Tensor:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        output = model(x)
        _check_output(output, y)
        total = attack_loss(output, y, loss).sum()
        (gradient,) = torch.autograd.grad(total, x, allow_unused=True)
    if gradient is None:
        raise InputError(
            "`model` has no gradient: its output does not depend on the input through "
            "differentiable steps. A plain k-nearest-neighbor vote is such a head; attack through "
            "NEDClassifier(...).module() or by transfer from another model."
        )
    # A class out of reach has log-probability −inf and no slope: such a row stays where it is.
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)


def _most_harmful(
    model: Callable[[Tensor], Tensor], tries: list[Tensor], y: Tensor, loss: str
) -> Tensor:
    """Of each example the try with the highest loss, any misread one before all others."""
    harms = []
    with torch.no_grad():
        for moved in tries:
            output = model(moved)
            value = torch.nan_to_num(attack_loss(output, y, loss).double(), nan=0.0, posinf=1e30)
            harms.append(value + (output.argmax(1) != y) * 1e31)
    best = torch.stack(harms).argmax(0)
    return torch.stack(tries)[best, torch.arange(len(y), device=y.device)]


def _checked(
    model: Any, x: Any, y: Any, climb: _Climb
) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    check_choice(climb.norm, "norm", NORMS)
    check_choice(climb.loss, "loss", LOSSES)
    _check_size(climb.epsilon, "epsilon", "the radius within which inputs move")
    _check_count(climb.steps, "steps")
    _check_size(climb.step, "step", "how far one step goes")
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
    if climb.bounds is not None:
        check_bounds(rows, climb.bounds)
    return differentiable(model), rows.detach(), labels.long().to(rows.device)


def _check_count(value: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{name}` must be a whole number of at least 1, got {value!r}.")


def _check_size(value: float, name: str, meaning: str) -> None:
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
