"""The one training loop: rows come in, a loss of these rows goes down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


def batches(rows: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """``steps`` batches of row numbers from shuffled epochs; the short rest of an epoch is left."""
    draws, size = torch.Generator().manual_seed(seed), min(size, rows)
    given = 0
    while given < steps:
        for batch in torch.randperm(rows, generator=draws)[: rows - rows % size].split(size):
            yield batch
            given += 1
            if given == steps:
                return


def fit(
    model: nn.Module,
    loss: Callable[[Tensor, int], Tensor],
    rows: Iterator[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    after: Callable[[int], None] | None = None,
) -> nn.Module:
    """Descend ``loss(batch, step)`` over the batches; the model comes back in evaluation mode.

    ``after(step)`` looks at the model between two steps, for the curves of a training run.
    """
    model.train()
    for step, batch in enumerate(rows):
        optimizer.zero_grad()
        loss(batch, step).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if after is not None:
            after(step)
    return model.eval()


def one_cycle(
    optimizer: torch.optim.Optimizer, peak: float, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.2)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> float:
    return float((outputs(model, x, batch).argmax(1) == y).double().mean())


@torch.no_grad()
def outputs(model: Callable[[Tensor], Tensor], x: Tensor, batch: int = 500) -> Tensor:
    """``model(x)`` in batches, without gradients; set evaluation mode before."""
    return torch.cat([model(rows) for rows in x.split(batch)])
