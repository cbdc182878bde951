r"""PGD that chooses its own step size (APGD, Croce & Hein 2020, algorithm 1).

.. math::

    z_k = \Pi(x_k + \eta\, d(\nabla \ell(x_k))), \qquad
    x_{k+1} = \Pi\bigl(x_k + \tfrac34 (z_k - x_k) + \tfrac14 (x_k - x_{k-1})\bigr),

from η = 2ε. At checkpoints that come ever closer, a row whose loss rose in fewer than 3/4 of the
steps since the last one, or whose best loss did not move, halves its η and goes on from its best
point. Of all points on the way each row keeps the worst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vicinal.checks import check_whole
from vicinal.perturbations.climb import (
    Ball,
    Bounds,
    Misread,
    Model,
    ascent,
    by_batch,
    by_row,
    harm,
    project,
    random_point,
    slope,
)

_MOMENTUM, _RISING = 0.75, 0.75


def apgd(
    model: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    steps: int = 100,
    restarts: int = 1,
    norm: str = "linf",
    loss: str = "cross_entropy",
    bounds: Bounds = (0.0, 1.0),
    misread: Misread | None = None,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> Any:
    """The worst point on the way of PGD with momentum and its own step sizes.

    Parameters
    ----------
    model, x, y, epsilon, norm, loss, bounds, batch_size
        As for :func:`~vicinal.perturbations.fgsm`.
    steps, restarts
        Steps from each random start, and how many starts there are.
    misread
        Inputs and labels to (n,) truth values: which inputs count as misread, where another
        classifier than ``model`` is to be fooled; once all are, the climb ends. None: ``model``.
    generator
        Draws the starts; None: torch's default generator.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> apgd(model, torch.tensor([[0.5, 0.4]]), torch.tensor([0]), 0.1, steps=5)
    tensor([[0.4000, 0.5000]])
    """
    check_whole(restarts, "restarts", 1)
    ball = Ball(epsilon, norm, bounds)

    def move(net: Model, a: Tensor, b: Tensor) -> Tensor:
        climb = _PacedClimb(net, ball, steps, loss, misread)
        kept, worst = a, torch.full((len(a),), -math.inf, dtype=torch.float64).to(a.device)
        for _ in range(restarts):
            moved, harms = climb(a, random_point(a, ball, generator), b)
            kept = torch.where(by_row(harms > worst, a), moved, kept)
            worst = torch.maximum(harms, worst)
        return kept

    return by_batch(move, model, x, y, ball, steps=steps, loss=loss, batch_size=batch_size)


def checkpoints(steps: int) -> list[int]:
    """The steps after which step sizes are reconsidered: parts .22, .41, .57, … of them all.

    >>> checkpoints(100)
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    part, gap, places = 0.22, 0.22, []
    while part < 1:
        places.append(math.ceil(round(part * steps, 9)))
        gap = max(gap - 0.03, 0.06)
        part += gap
    return sorted(set(places))


@dataclass
class _Rows:
    """Where each row is, was, and was best, and how far it steps."""

    here: Tensor
    before: Tensor
    value: Float[Tensor, " n"]
    gradient: Tensor
    best: Tensor
    best_value: Float[Tensor, " n"]
    best_gradient: Tensor
    step: Float[Tensor, " n"]

    def improve(self) -> None:
        wide = by_row(self.value > self.best_value, self.here)
        self.best = torch.where(wide, self.here, self.best)
        self.best_gradient = torch.where(wide, self.gradient, self.best_gradient)
        self.best_value = torch.maximum(self.value, self.best_value)

    def restart(self, rows: Bool[Tensor, " n"]) -> None:
        """Half the step, from the best point so far."""
        self.step = torch.where(rows, self.step / 2, self.step)
        wide = by_row(rows, self.here)
        self.here = torch.where(wide, self.best, self.here)
        self.gradient = torch.where(wide, self.best_gradient, self.gradient)
        self.value = torch.where(rows, self.best_value, self.value)


@dataclass(frozen=True)
class _PacedClimb:
    net: Model
    ball: Ball
    steps: int
    loss: str
    misread: Misread | None

    def __call__(
        self, x: Tensor, start: Tensor, y: Int[Tensor, " n"]
    ) -> tuple[Tensor, Float[Tensor, " n"]]:
        """The most harmful point on the way from the start, and its harm."""
        value, gradient, wrong = self._slope(start, y)
        size = torch.full((len(x),), 2 * self.ball.epsilon, dtype=x.dtype, device=x.device)
        rows = _Rows(start, start, value, gradient, start, value, gradient, size)
        kept, worst = start, harm(value, wrong)
        halved, settled = torch.ones_like(wrong), value
        rises, last, ends = torch.zeros_like(value), 0, checkpoints(self.steps)
        for k in range(1, self.steps + 1):
            if self.misread is not None and bool((worst > 1).all()):
                break
            self._move(rows, x, 1.0 if k == 1 else _MOMENTUM)
            value, rows.gradient, wrong = self._slope(rows.here, y)
            rises = rises + (value > rows.value)
            rows.value = value
            rows.improve()
            harms = harm(value, wrong)
            kept = torch.where(by_row(harms > worst, x), rows.here, kept)
            worst = torch.maximum(harms, worst)
            if k in ends:
                slow = rises < _RISING * (k - last)
                halved = slow | (~halved & (rows.best_value <= settled))
                rows.restart(halved)
                rises, last, settled = torch.zeros_like(rises), k, rows.best_value
        return kept, worst

    def _move(self, rows: _Rows, x: Tensor, weight: float) -> None:
        aim = rows.here + by_row(rows.step, x) * ascent(rows.gradient, self.ball.norm)
        aim = project(aim, x, self.ball)
        pull = weight * (aim - rows.here) + (1 - weight) * (rows.here - rows.before)
        moved = project(rows.here + pull, x, self.ball)
        rows.before, rows.here = rows.here, moved

    def _slope(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, wrong = slope(self.net, x, y, self.loss)
        return value, gradient, wrong if self.misread is None else self.misread(x, y)
