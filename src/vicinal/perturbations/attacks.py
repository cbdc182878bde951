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

An attack that fails proves nothing: a saturated head (a small temperature) hides its gradients.
``apgd`` chooses its own step sizes, ``square`` needs no gradient, and
``vicinal.studies.attack_audit`` takes the worst of them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vicinal.checks import check_whole
from vicinal.perturbations.apgd import apgd
from vicinal.perturbations.climb import (
    Ball,
    Bounds,
    Model,
    ascent,
    by_batch,
    check_size,
    harm_of,
    project,
    random_point,
    slope,
)


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
    ball = Ball(epsilon, norm, bounds)

    def move(net: Model, a: Tensor, b: Tensor) -> Tensor:
        length = epsilon / 5 if step is None else step
        return _Climb(ball, length, steps, loss)(net, a, a, b)

    return by_batch(move, model, x, y, ball, steps=steps, loss=loss, batch_size=batch_size)


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
    check_whole(restarts, "restarts", 1)
    ball = Ball(epsilon, norm, bounds)

    def move(net: Model, a: Tensor, b: Tensor) -> Tensor:
        length = 2.5 * epsilon / steps if step is None else step
        climb = _Climb(ball, length, steps, loss)
        starts = (random_point(a, ball, generator) for _ in range(restarts))
        tries = [climb(net, a, start, b) for start in starts]
        harms = [harm_of(net, moved, b, loss) for moved in tries] if restarts > 1 else [b]
        best = torch.stack(harms).argmax(0)
        return torch.stack(tries)[best, torch.arange(len(b), device=b.device)]

    return by_batch(move, model, x, y, ball, steps=steps, loss=loss, batch_size=batch_size)


ATTACKS: dict[str, Callable[..., Any]] = {"fgsm": fgsm, "bim": bim, "pgd": pgd, "apgd": apgd}


@dataclass(frozen=True)
class _Climb:
    """Steps of one size up the loss, each projected back."""

    ball: Ball
    step: float
    steps: int
    loss: str

    def __post_init__(self) -> None:
        check_size(self.step, "step", "how far one step goes")

    def __call__(self, model: Model, x: Tensor, start: Tensor, y: Tensor) -> Tensor:
        moved = start.detach()
        for _ in range(self.steps):
            _, gradient, _ = slope(model, moved, y, self.loss)
            moved = moved + self.step * ascent(gradient, self.ball.norm)
            moved = project(moved, x, self.ball)
        return moved
