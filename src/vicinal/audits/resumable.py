"""A search in blocks that tells how far it is, and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vicinal.capture import ShardStore
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.exact import Search

BLOCK = 4096


def resumable_query(
    search: Search,
    x: Tensor,
    k: int,
    *,
    exclude: Any = None,
    store: ShardStore | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
    title: str = "neighbors",
) -> Neighborhood:
    """``search.query(x, k)``, block by block.

    Parameters
    ----------
    search, x, k, exclude : as of :meth:`vicinal.neighbors.Search.query`.
    store : where finished blocks are kept; those that are there already are not searched again.
    progress : called as ``progress(title, done, total)`` after every block.
    """
    parts = []
    for at in range(0 if store is None else store.rows, len(x), BLOCK):
        rows = slice(at, at + BLOCK)
        part = search.query(x[rows], k, exclude=None if exclude is None else exclude[rows])
        if store is None:
            parts.append(part)
        else:
            store.append({"distances": part.distances, "indices": part.indices}, None)
        if progress is not None:
            progress(title, min(at + BLOCK, len(x)), len(x))
    if store is None:
        return joined(parts)
    if not store.complete:
        store.finish()
    return Neighborhood(store["distances"], store["indices"])
