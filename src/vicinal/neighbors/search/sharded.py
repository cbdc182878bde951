r"""The k nearest rows of a support that is read in blocks: of each block its k nearest, merged.

.. math:: \text{top}_k(A \cup B) = \text{top}_k(\text{top}_k(A) \cup \text{top}_k(B))

holds under one order of all rows, by distance and, where distances are equal, by index. Both are
the same whatever the block: a distance is computed from the difference of the two rows, an index is
the row's number in the whole support. So the answer is that of a search with all rows in memory,
bit for bit, with ties and duplicates. ``on_ray.py`` asks blocks that live in other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.exact import ExactSearch, checked_query, merged
from vicinal.neighbors.spaces import Space

MEMORY = 1 << 29  # bytes that a block and its search may take
_COPIES = 4  # of a block: as read, centered, compared, and one on the way


class Source(Protocol):
    """Rows that are read in blocks; :mod:`vicinal.capture.sources` has some."""

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def blocks(
        self, size: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Tensor]]: ...


@dataclass(frozen=True, eq=False)
class Mapped:
    """The same rows in a space, or scaled; each block is mapped when it is read."""

    source: Source
    space: Space | Callable[[Tensor], Tensor]

    @property
    def width(self) -> int:
        matrix = getattr(self.space, "matrix", None)
        return self.source.width if matrix is None or matrix.ndim == 1 else matrix.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    def __len__(self) -> int:
        return len(self.source)

    def blocks(
        self, size: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        for at, block in self.source.blocks(size, start, stop):
            yield at, self.space(block)


def rows_at(source: Source, indices: Tensor | slice, size: int) -> Float[Tensor, "m d"]:
    """Some rows, in one pass over the blocks between the first and the last of them."""
    if isinstance(indices, slice):
        start, stop, step = indices.indices(len(source))
        indices = torch.arange(start, max(start, stop), step)
    found = torch.empty(len(indices), source.width, dtype=source.dtype)
    if not len(indices):
        return found
    order = indices.argsort(stable=True)
    ascending = indices[order].contiguous()
    for at, block in source.blocks(size, int(ascending[0]), int(ascending[-1]) + 1):
        low, high = torch.searchsorted(ascending, torch.tensor([at, at + len(block)])).tolist()
        found[order[low:high]] = block[ascending[low:high] - at]
    return found


def nearest_in_block(
    ask: Callable[[Tensor, int], Neighborhood],
    block: range,
    x: Float[Tensor, "m d"],
    k: int,
    exclude: Int[Tensor, " m"],
) -> Neighborhood:
    """The k nearest of the rows with these numbers, whom to ``ask``; infinity where it has fewer.

    ``exclude`` holds numbers in the whole support. A row that is left out is asked for as well and
    dropped after: in a block of one row the others still want it.
    """
    inside = (exclude >= block.start) & (exclude < block.stop)
    distances, indices = ask(x, min(k + bool(inside.any()), len(block)))
    indices = indices + block.start
    if bool(inside.any()):
        out = indices == exclude[:, None]
        distances = distances.masked_fill(out, torch.inf)
        indices = indices.masked_fill(out, NOWHERE)
    return Neighborhood(distances, indices)


NOWHERE = 0xFFFFFFFF  # an index after all others, in 32 bits as the sort wants them


def nothing(x: Float[Tensor, "m d"], k: int, dtype: torch.dtype) -> Neighborhood:
    """The lists that every block's neighbors are merged into."""
    distances = torch.full((len(x), k), torch.inf, dtype=torch.promote_types(x.dtype, dtype))
    return Neighborhood(distances, torch.full((len(x), k), NOWHERE))


def merged_lists(a: Neighborhood, b: Neighborhood, k: int) -> Neighborhood:
    """The k nearest of both, equal distances by index."""
    distances, indices = merged((a.distances, a.indices), (b.distances, b.indices), k)
    return Neighborhood(distances.contiguous(), indices.contiguous())


class ShardedSearch:
    """The k nearest rows of a source that is read in blocks, block by block in this process.

    Parameters
    ----------
    metric : as of :class:`ExactSearch`.
    memory : bytes that a block and its search may take.

    >>> from vicinal.capture.sources import ArrayRows
    >>> search = ShardedSearch().build(ArrayRows(torch.tensor([[0.0], [1.0], [3.0]])))
    >>> search.query(torch.tensor([[0.9]]), k=2).indices
    tensor([[1, 0]])
    """

    exact = True
    title = "exact, in blocks"

    def __init__(self, metric: str = "sqeuclidean", *, memory: int = MEMORY) -> None:
        check_choice(metric, "metric", METRICS)
        self.metric = metric
        self.memory = memory
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        if self._source is None:
            raise InputError("the search has no support yet. Call build(source) first.")
        return self._source

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def block(self) -> int:
        """Rows that are in memory at once."""
        row = self.width * torch.finfo(self.dtype).bits // 8
        return max(1, self.memory // (_COPIES * row))

    def __len__(self) -> int:
        return 0 if self._source is None else len(self._source)

    def build(self, support: Source) -> Self:
        """Remember where the rows are; none is read yet."""
        self._source = support
        return self

    def rows(self, indices: Tensor | slice) -> Float[Tensor, "m d"]:
        """These rows, read from their blocks."""
        return rows_at(self.source, indices, self.block)

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows to each row of x; every block is read once for all of them."""
        x, out = checked_query(self, x, k, exclude)
        best = nothing(x, k, self.dtype)
        for start, rows in self.source.blocks(self.block):
            search, block = ExactSearch(self.metric).build(rows), range(start, start + len(rows))
            best = merged_lists(best, nearest_in_block(search.query, block, x, k, out), k)
            del search, rows  # before the next one is read
        return best

    def add(self, rows: Any) -> None:
        raise fixed_support()

    def remove(self, indices: Any) -> None:
        raise fixed_support()


def fixed_support() -> InputError:
    return InputError(
        "a support in shards is read, not edited. Write a new shard, or leave one out of the "
        "pattern."
    )
