"""One search for several heads on the same rows."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import Search


class SharedSearch:
    """A search that is built once and remembers its answers, for heads fitted on the same rows."""

    def __init__(self, inner: Search) -> None:
        self.inner, self.metric = inner, inner.metric
        self.answers: list[tuple[Tensor, bool, Neighborhood]] = []

    @property
    def support(self) -> Tensor:
        return self.inner.support

    def __len__(self) -> int:
        return len(self.inner)

    def build(self, support: Any) -> Self:
        if len(self.inner) == 0 or not torch.equal(self.inner.support, support):
            self.inner.build(support)
            self.answers.clear()
        return self

    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        within = exclude is not None
        for rows, was_within, found in self.answers:
            if was_within == within and found.indices.shape[1] >= k and torch.equal(rows, x):
                return Neighborhood(found.distances[:, :k], found.indices[:, :k])
        found = self.inner.query(x, k, exclude=exclude)
        self.answers.append((x, within, found))
        return found

    def add(self, rows: Any) -> None:
        raise InputError("a shared search cannot be edited.")

    remove = add
