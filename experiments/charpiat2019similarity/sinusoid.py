"""Networks that learn a sinusoid of the angle on a circle (appendix D.1): Figures 4, 9 and 10."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from experiments import nets
from torch import Tensor, nn


class Settings(Protocol):
    """What a file's own settings must have."""

    frequencies: tuple[int, ...]
    points: int
    width: int
    hidden: int
    epochs: int
    batch: int
    rate: float


def circle(points: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Angles α in [0, 1) and their places on the circle."""
    alpha = torch.arange(points, device=device) / points
    return alpha, torch.stack([(2 * math.pi * alpha).cos(), (2 * math.pi * alpha).sin()], 1)


def trained(settings: Settings, seed: int, device: str = "cpu") -> list[tuple[nn.Module, float]]:
    """A network per frequency, learnt by L1, and its mean absolute error.

    All are trained side by side, a batched product per layer; Adam acts on each number by itself,
    so none knows of the others.
    """
    with nets.seeded(seed):
        widths = [2, *[settings.width] * settings.hidden, 1]
        models = [nets.mlp(*widths).to(device) for _ in settings.frequencies]
    weights = [
        torch.stack(p).detach().requires_grad_()
        for p in zip(*(m.parameters() for m in models), strict=True)
    ]
    alpha, x = circle(settings.points, device)
    y = torch.stack([(2 * math.pi * f * alpha).sin()[:, None] for f in settings.frequencies])
    optimizer, draws = torch.optim.Adam(weights, settings.rate), torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        for rows in torch.randperm(settings.points, generator=draws).split(settings.batch):
            optimizer.zero_grad()
            (side_by_side(weights, x[rows]) - y[:, rows]).abs().mean((1, 2)).sum().backward()
            optimizer.step()
    with torch.no_grad():
        errors = (side_by_side(weights, x) - y).abs().mean((1, 2))
        for i, model in enumerate(models):
            for p, stacked in zip(model.parameters(), weights, strict=True):
                p.copy_(stacked[i])
    return list(zip(models, errors.tolist(), strict=True))


def side_by_side(weights: list[Tensor], x: Tensor) -> Tensor:
    """The outputs (networks, n, 1) of networks whose weights and biases are stacked."""
    h = x.expand(len(weights[0]), -1, -1)
    for i in range(0, len(weights), 2):
        h = torch.baddbmm(weights[i + 1][:, None], h, weights[i].mT)
        h = h.relu() if i + 2 < len(weights) else h
    return h


def learnt(errors: Sequence[Sequence[float]]) -> list[int]:
    """Places of the frequencies whose mean error, of a curve in -1..1, is below 0.1 in each net."""
    return [at for at, found in enumerate(zip(*errors, strict=True)) if max(found) < 0.1]


def slope(frequencies: Sequence[int], counts: Sequence[float]) -> float:
    """Least-squares slope of log count against log frequency: -1 is 1/f."""
    return float(np.polyfit(np.log(frequencies), np.log(np.maximum(counts, 1e-9)), 1)[0])


def curvature(alpha: np.ndarray, f: int) -> np.ndarray:
    """Of the curve (α, sin 2π f α), as released."""
    w = 2 * np.pi * f
    return w**2 * np.abs(np.sin(w * alpha)) / (1 + (w * np.cos(w * alpha)) ** 2) ** 1.5
