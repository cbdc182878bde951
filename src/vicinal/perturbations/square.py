r"""An attack that asks for answers only, never for gradients (Square, Andriushchenko et al. 2020).

From stripes of ±ε, one square window at a time is filled with ±ε of new signs, and kept where the
margin :math:`\max_{c \ne y} z_c - z_y` grew. The windows shrink as the queries are spent. No
gradient can be hidden from it, which makes it the check on the attacks that climb one.

Rows that are no images are a line, their windows stretches of it. Under L2 a window is filled to
the radius of the ball and the whole put back on it: a plainer proposal than the paper's exchange
of windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.perturbations.climb import (
    Ball,
    Bounds,
    Misread,
    Model,
    by_batch,
    by_row,
    harm_of,
    project,
)
from vicinal.perturbations.draws import uniform

# The share of an image that a window covers is halved after these parts of the queries.
_HALVED = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
_FIRST = 0.8


def square(
    model: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    queries: int = 1000,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    misread: Misread | None = None,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> Any:
    """The worst of ``queries`` points, each a window away from the worst before it.

    Parameters
    ----------
    model
        Any map from inputs to logits or log-probabilities, differentiable or not.
    x, y, epsilon, norm, bounds, batch_size
        As for :func:`~vicinal.perturbations.fgsm`.
    queries
        How often the model is asked about a row; a row that is misread is left alone.
    misread
        As for :func:`~vicinal.perturbations.apgd`.
    generator
        Draws windows and signs; None: torch's default generator.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> x, y = torch.tensor([[0.5, 0.4]]), torch.tensor([0])
    >>> moved = square(model, x, y, 0.1, generator=torch.Generator().manual_seed(0))
    >>> bool(model(moved).argmax(1) != y)
    True
    """
    ball = Ball(epsilon, norm, bounds)

    def move(net: Model, a: Tensor, b: Tensor) -> Tensor:
        return _Search(net, ball, queries, misread, generator)(a, b)

    return by_batch(move, model, x, y, ball, steps=queries, loss="margin", batch_size=batch_size)


def window_share(spent: float) -> float:
    """The share of the image under one window when ``spent`` (0 to 1) of the queries are.

    >>> window_share(0.0), window_share(0.05), window_share(1.0)
    (0.8, 0.1, 0.0015625)
    """
    return _FIRST / 2 ** sum(spent > part for part in _HALVED)


@dataclass(frozen=True)
class _Search:
    net: Model
    ball: Ball
    queries: int
    misread: Misread | None
    generator: torch.Generator | None

    def __call__(self, x: Tensor, y: Int[Tensor, " n"]) -> Tensor:
        moved = self._inside(x, self._stripes(x))
        worst = self._harm(moved, y)
        for query in range(1, self.queries):
            left = (worst <= 1).nonzero()[:, 0]
            if not len(left):
                break
            share = window_share(query / self.queries)
            tried = self._inside(x[left], self._window(moved[left] - x[left], share))
            harms = self._harm(tried, y[left])
            moved[left] = torch.where(by_row(harms > worst[left], tried), tried, moved[left])
            worst[left] = torch.maximum(harms, worst[left])
        return moved

    def _harm(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        return harm_of(self.net, x, y, "margin", self.misread)

    def _stripes(self, x: Tensor) -> Tensor:
        n, c, _, w = _picture(x).shape
        stripes = self._signs((n, c, 1, w), x) * self.ball.epsilon
        return stripes.expand(_picture(x).shape).reshape_as(x)

    def _window(self, change: Tensor, share: float) -> Tensor:
        """The change with one window of each row filled anew."""
        picture = _picture(change)
        n, c, h, w = picture.shape
        side = math.sqrt(share * h * w)
        high, wide = (h, share * w) if h == 1 else (min(round(side), h), min(side, w))
        high, wide = max(high, 1), max(round(wide), 1)
        size = self.ball.epsilon
        size = size if self.ball.norm == "linf" else size / math.sqrt(c * high * wide)
        top = (uniform((n, 1, 1), change, self.generator) * (h - high + 1)).floor()
        left = (uniform((n, 1, 1), change, self.generator) * (w - wide + 1)).floor()
        down = torch.arange(h, device=change.device)[:, None]
        right = torch.arange(w, device=change.device)
        inside = (down >= top) & (down < top + high) & (right >= left) & (right < left + wide)
        signs = self._signs((n, c, 1, 1), change)
        return torch.where(inside[:, None], size * signs, picture).reshape_as(change)

    def _signs(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return (uniform(shape, like, self.generator) < 0.5).to(like.dtype) * 2 - 1

    def _inside(self, x: Tensor, change: Tensor) -> Tensor:
        return project(x + change, x, self.ball)


def _picture(x: Tensor) -> Float[Tensor, "n c h w"]:
    return x if x.ndim == 4 else x.reshape(len(x), 1, 1, -1)
