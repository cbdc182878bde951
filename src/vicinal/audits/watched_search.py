"""A search that tells how far it is, remembers its answers, and goes on where it stopped.

The queries go to the inner search in blocks. The same queries asked again, with as many neighbors
or fewer, are answered from memory; with a folder, finished blocks are checksummed shards there, and
the next process reads them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vicinal.capture import ShardStore
from vicinal.checks import as_matrix
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import Search

Progress = Callable[[str, int, int | None], None]
BLOCK = 4096


class WatchedSearch:
    """``Search`` by delegation; ``progress(title, done, total)`` is called after every block."""

    def __init__(self, inner: Search, folder: Path | None = None, progress: Progress | None = None):
        self.inner = inner
        self.metric = inner.metric
        self.folder = folder
        self.progress = progress
        self._known: dict[str, Neighborhood] = {}

    @property
    def support(self) -> Tensor:
        return self.inner.support

    def __len__(self) -> int:
        return len(self.inner)

    def build(self, support: Any) -> Self:
        self.inner.build(support)
        self._forget()
        return self

    def add(self, rows: Any) -> None:
        self.inner.add(rows)
        self._forget()

    def remove(self, indices: Any) -> None:
        self.inner.remove(indices)
        self._forget()

    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        x = as_matrix(x, "x")
        key = self._key(x, exclude)
        known = self._known.get(key)
        if known is None or known.indices.shape[1] < k:
            known = self._known[key] = self._answer(x, k, exclude, f"{key}-{k}")
        return Neighborhood(known.distances[:, :k], known.indices[:, :k])

    def _answer(self, x: Tensor, k: int, exclude: Any, key: str) -> Neighborhood:
        if self.folder is None:
            parts = list(self._blocks(x, k, exclude))
            return Neighborhood(
                torch.cat([part.distances for part in parts]),
                torch.cat([part.indices for part in parts]),
            )
        settings = {"layers": ["distances", "indices"], "rows": len(x), "k": k}
        store = ShardStore.open_for_writing(self.folder / key, settings)
        if not store.complete:
            for part in self._blocks(x, k, exclude, start=store.rows):
                store.append({"distances": part.distances, "indices": part.indices}, None)
            store.finish()
        return Neighborhood(store["distances"], store["indices"])

    def _blocks(self, x: Tensor, k: int, exclude: Any, start: int = 0) -> Iterator[Neighborhood]:
        title = "neighbors" if exclude is None else "label audit"
        for at in range(start, len(x), BLOCK):
            rows = slice(at, at + BLOCK)
            yield self.inner.query(x[rows], k, exclude=None if exclude is None else exclude[rows])
            if self.progress is not None:
                self.progress(title, min(at + BLOCK, len(x)), len(x))

    def _forget(self) -> None:
        self._known.clear()
        self._support_key = _digest(self.inner.support)

    def _key(self, x: Tensor, exclude: Any) -> str:
        whole = [self.metric, self._support_key, _digest(x)]
        whole += [] if exclude is None else [_digest(torch.as_tensor(exclude))]
        return hashlib.sha256(" ".join(whole).encode()).hexdigest()[:16]


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
