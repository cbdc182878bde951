"""How much of the exact answer an approximate search gives: measured, never promised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from vicinal.neighbors.neighborhood import Neighborhood


@dataclass(frozen=True)
class Recall:
    """Of the k nearest, the mean ``share`` that was found, with its standard ``error``."""

    k: int
    rows: int  # exact rows it was measured on
    share: float
    error: float

    def __str__(self) -> str:
        return f"recall@{self.k} {self.share:.3f} ± {self.error:.3f} on {self.rows:,} exact rows"


def recall_of(found: Neighborhood, true: Neighborhood) -> Recall:
    """Share of what was found that is as near as the true k nearest: ties are no miss.

    >>> found = Neighborhood(torch.tensor([[0.0, 3.0]]), torch.tensor([[4, 1]]))
    >>> true = Neighborhood(torch.tensor([[0.0, 2.0]]), torch.tensor([[4, 7]]))
    >>> recall_of(found, true).share
    0.5
    """
    hits = (found.distances <= true.distances[:, -1:]).double().mean(1)
    error = float(hits.std()) / len(hits) ** 0.5 if len(hits) > 1 else 0.0
    return Recall(true.k, len(hits), float(hits.mean()), error)


def drawn_rows(size: int, count: int, seed: int = 0) -> Int[Tensor, " m"]:
    """So many different rows of 0..size-1, in order; all of them where there are no more."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return order[: min(count, size)].sort().values
