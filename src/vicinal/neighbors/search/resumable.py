"""A long query in blocks: it tells how far it is, and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from vicinal.checks import as_matrix, check_k
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.protocol import Search

Progress = Callable[[str, int, int | None], None]
BLOCK = 4096  # queries between two reports


class Store(Protocol):
    """Where finished blocks are kept, one after the other: a ``ShardStore`` of ``capture`` is one.

    It belongs to one question: same search, rows, k and rows left out.
    """

    @property
    def rows(self) -> int: ...

    @property
    def complete(self) -> bool: ...

    def append(self, layers: Mapping[str, Tensor], labels: Tensor | None) -> None: ...

    def finish(self) -> None: ...

    def __getitem__(self, layer: str) -> Tensor: ...


def resumable_query(
    search: Search,
    x: Any,
    k: int,
    *,
    exclude: Any = None,
    store: Store | None = None,
    progress: Progress | None = None,
    title: str = "neighbors",
    block: int | None = None,
) -> Neighborhood:
    """``search.query(x, k, exclude=exclude)``, a block of rows at a time.

    Parameters
    ----------
    search : one that holds its support.
    x : rows ``(n, d)`` whose neighbors are asked for.
    k : how many neighbors.
    exclude : for each row the index of a support row to leave out, -1 for none.
    store : keeps finished blocks; what it holds already is not searched again.
    progress : called as ``progress(title, done, total)`` after every block.
    title : what the progress is of; block : queries between two reports.

    >>> import torch
    >>> from vicinal.neighbors.search import ExactSearch
    >>> search = ExactSearch().build(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> resumable_query(search, torch.tensor([[0.9]]), 2, progress=print).indices
    neighbors 1 1
    tensor([[1, 0]])
    """
    x = as_matrix(x, "x", finite=False)  # the search looks at each block

    def ask(some: slice) -> Neighborhood:
        return search.query(x[some], k, exclude=None if exclude is None else exclude[some])

    return _in_blocks(ask, len(x), block or BLOCK, store, progress, title)


def leave_one_out(
    search: Search,
    k: int,
    *,
    store: Store | None = None,
    progress: Progress | None = None,
    title: str = "neighbors",
) -> Neighborhood:
    """The k nearest *other* rows of every row of the support, which is read a block at a time.

    Parameters
    ----------
    search, k : who is asked, and for how many.
    store : keeps finished blocks, so that a stopped call goes on.
    progress, title : called as ``progress(title, done, total)``.

    >>> import torch
    >>> from vicinal.neighbors.search import ExactSearch
    >>> search = ExactSearch().build(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> leave_one_out(search, 1).indices.flatten()
    tensor([1, 0, 1])
    """
    check_k(k, len(search) - 1, "k", "each row of the support")

    def ask(block: slice) -> Neighborhood:
        own = torch.arange(block.start, min(block.stop, len(search)))
        return search.query(search.rows(block), k, exclude=own)

    return _in_blocks(ask, len(search), BLOCK, store, progress, title)


def _in_blocks(
    ask: Callable[[slice], Neighborhood],
    total: int,
    size: int,
    store: Store | None,
    progress: Progress | None,
    title: str,
) -> Neighborhood:
    def blocks(first: int) -> Iterator[Neighborhood]:
        for start in range(first, total, size):
            yield ask(slice(start, start + size))
            if progress is not None:
                progress(title, min(start + size, total), total)

    if store is None:
        return joined(list(blocks(0)))
    if not store.complete:
        for part in blocks(store.rows):
            store.append({"distances": part.distances, "indices": part.indices}, None)
        store.finish()
    return Neighborhood(store["distances"], store["indices"])
