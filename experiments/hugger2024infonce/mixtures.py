"""Gaussian mixtures with modes aligned by degrees, and a linear model of their labels (A.1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from experiments.fit import batches, fit
from torch import Tensor, nn


def mixture(modes: int, points: int, alignment: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (m, d) around 10 θ_k, and the unit modes θ at angle π/2 · (1 − alignment) from θ_1."""
    draws = torch.Generator().manual_seed(seed)
    angle = math.pi / 2 * (1 - alignment / 100)
    theta = math.sin(angle) * torch.eye(modes)
    theta[1:, 0], theta[0, 0] = math.cos(angle), 1.0
    which = torch.randint(modes, (points,), generator=draws)
    return 10 * theta[which] + torch.randn(points, modes, generator=draws), theta


def divergence(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    theta: Tensor,
    labels: int,
    epochs: int,
    seed: int,
) -> float:
    """KL(true ‖ fit), mean over the points, of weights fitted to labels that the model itself drew.

    ``loss(logits, labels, eta)`` is told the frequencies of the labels.
    """
    draws, truth = torch.Generator().manual_seed(seed), F.log_softmax(x @ theta.T, 1)
    rows = torch.randint(len(x), (labels,), generator=draws)
    y = torch.multinomial(truth[rows].exp().cpu(), 1, generator=draws)[:, 0].to(x.device)
    eta = torch.bincount(y, minlength=len(theta)).clamp_min(1).float()
    model = nn.Linear(*theta.shape, bias=False).to(x.device)
    nn.init.zeros_(model.weight)

    def step(batch: Tensor, _: int) -> Tensor:
        return loss(model(x[rows[batch]]), y[batch], eta)

    given = batches(labels, 1024, epochs * max(1, labels // 1024), seed)
    fit(model, step, given, torch.optim.Adam(model.parameters(), lr=1e-3))
    with torch.no_grad():
        found = F.log_softmax(model(x), 1)
    return float(F.kl_div(found, truth, log_target=True, reduction="batchmean"))
