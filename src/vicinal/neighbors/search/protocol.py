r"""What every search answers, and what the engines share.

All of them answer the same question in the same way: distances ascend, equal distances are in order
of index, each returned distance is computed from the difference of the two rows, and a row to leave
out is left out by its index, never by its place.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import Tensor

from vicinal.checks import InputError, as_matrix, as_tensor, check_same_width
from vicinal.neighbors.distances import zero_rows
from vicinal.neighbors.neighborhood import Neighborhood

SPARE = 16  # candidates kept beyond k, so that the product's rounding seldom matters at the k-th
_GATHER = 1 << 17  # elements of differences formed at a time


class Search(Protocol):
    """What the rest of the library asks of a search."""

    metric: str

    @property
    def support(self) -> Tensor: ...

    def build(self, support: Any) -> Self:
        """Remember the rows to search; returns itself."""
        ...

    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows to each row of x; ``exclude``: an index per query, -1 for none."""
        ...

    def add(self, rows: Any) -> None:
        """Append rows; they get the next indices."""
        ...

    def remove(self, indices: Any) -> None:
        """Delete rows; later rows move up, so indices stay 0..n-1."""
        ...

    def __len__(self) -> int: ...


def squared_distances(q: Tensor, base: Tensor, indices: Tensor, metric: str) -> Tensor:
    """Squared distances of compared rows ``q`` to ``base[indices]``, from the differences.

    Under the cosine a zero row is at 2 from everything, as if orthogonal to it.
    """
    step = max(1, _GATHER // (indices.shape[1] * q.shape[1]))
    dtype = torch.promote_types(q.dtype, base.dtype)
    parts = []
    for start in range(0, len(q), step):
        part, picked = q[start : start + step], indices[start : start + step]
        gathered = base.index_select(0, picked.reshape(-1)).to(dtype).view(*picked.shape, -1)
        gathered.sub_(part[:, None])  # in place: gathering is what costs, a copy would double it
        squared = gathered.mul_(gathered).sum(2)
        if metric == "cosine":
            # A unit row is at squared distance 1 from a zero row, which few pairs come near.
            suspects = ((squared - 1).abs() < 1e-3) | (squared == 0)
            row, column = suspects.nonzero(as_tuple=True)
            zero = zero_rows(part)[row] | zero_rows(base[picked[row, column]])
            squared[row[zero], column[zero]] = 2.0
        parts.append(squared)
    return torch.cat(parts) if parts else q.new_empty(indices.shape)


def checked_rows(x: Any, name: str, support: Tensor) -> Tensor:
    x = as_matrix(x, name).detach()
    check_same_width(x, support, name, "support")
    return x


def checked_exclude(exclude: Any, rows: int, size: int, device: torch.device) -> Tensor | None:
    """One index per query, -1 for none; None if nothing is excluded."""
    if exclude is None:
        return None
    out = as_tensor(exclude, "exclude").to(device)
    if out.is_floating_point() or tuple(out.shape) != (rows,):
        raise InputError(
            f"`exclude` must hold one support index for each of the {rows} queries (-1: none), "
            f"got {out.dtype} of shape {tuple(out.shape)}."
        )
    if len(out) and (int(out.min()) < -1 or int(out.max()) >= size):
        raise InputError(
            f"`exclude` must lie in -1..{size - 1}, got {int(out.min())}..{int(out.max())}."
        )
    return out.long() if bool((out >= 0).any()) else None


def kept_mask(indices: Any, size: int, device: torch.device) -> Tensor:
    """True for the rows that stay when ``indices`` go."""
    gone = as_tensor(indices, "indices").to(device).flatten()
    if gone.is_floating_point() and gone.numel():
        raise InputError(f"`indices` must be whole numbers, got {gone.dtype}.")
    if gone.numel() and (int(gone.min()) < 0 or int(gone.max()) >= size):
        raise InputError(
            f"`indices` must lie in 0..{size - 1} (the support has {size} rows), "
            f"got {int(gone.min())}..{int(gone.max())}."
        )
    keep = torch.ones(size, dtype=torch.bool, device=device)
    keep[gone.long()] = False
    if not bool(keep.any()):
        raise InputError("`indices` would remove every row. Build a new search instead.")
    return keep
