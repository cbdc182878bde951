"""The default engine: the k nearest rows, exactly, in torch alone, from rows in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from vicinal.checks import InputError, as_matrix, as_tensor, check_choice, check_k, check_same_width
from vicinal.neighbors.distances import (
    METRICS,
    compared_rows,
    in_unit,
    squared_lengths,
    squared_unit,
    zero_rows,
)
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.protocol import Search
from vicinal.neighbors.search.smallest import by_distance_then_index, smallest_scores

SPARE = 16  # candidates kept beyond k, so that the product's rounding seldom matters at the k-th
_GATHER = 1 << 17  # elements of differences formed at a time
_QUERIES = 512  # answered at a time


class ExactSearch:
    """The k nearest rows, exactly: no approximation, no dependence on blocks or threads.

    A blocked matrix product finds k and a few spare candidates; their distances are then computed
    directly. Where the product's rounding could have hidden a true neighbor (many rows tied with
    the k-th, say), every row within the rounding error is compared directly as well.

    The support is kept as passed (not copied): do not change it in place.

    >>> search = ExactSearch().build(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> search.query(torch.tensor([[0.9]]), k=2).indices
    tensor([[1, 0]])
    """

    exact = True
    title = "exact"

    def __init__(self, metric: str = "sqeuclidean", *, spare: int = SPARE) -> None:
        check_choice(metric, "metric", METRICS)
        self.metric, self.spare = metric, spare
        self._support: Tensor | None = None

    @property
    def support(self) -> Tensor:
        """All rows; of this engine, whose rows are in memory, and not of the protocol."""
        if self._support is None:
            raise InputError("the search has no support yet. Call build(support) first.")
        return self._support

    def __len__(self) -> int:
        return 0 if self._support is None else len(self._support)

    @property
    def width(self) -> int:
        return self.support.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.support.dtype

    def rows(self, indices: Tensor | slice) -> Tensor:
        """These rows, as they were given; a slice shares their memory."""
        if isinstance(indices, slice):
            return self.support[indices]
        return self.support.index_select(0, indices.to(self.support.device))

    def build(self, support: Any) -> Self:
        """Center the rows, so that the product loses no digits to a common offset."""
        rows = as_matrix(support, "support").detach()
        base = compared_rows(rows, self.metric)
        self._shift = base.mean(0, dtype=torch.float64).to(base.dtype)
        self._work, self._bias = self._prepare(base, "support")
        _check_squares(self._work, self._bias)
        self._eps = torch.finfo(self._work.dtype).eps  # unit of rounding of candidates' scores
        self._support, self._base = rows, base
        return self

    def add(self, rows: Any) -> None:
        rows = checked_rows(rows, "rows", self.width).to(self.support.dtype)
        base = compared_rows(rows, self.metric)
        work, bias = self._prepare(base, "rows")
        self._work, self._bias = torch.cat([self._work, work]), torch.cat([self._bias, bias])
        self._support = torch.cat([self.support, rows])
        self._base = torch.cat([self._base, base]) if self.metric == "cosine" else self._support

    def remove(self, indices: Any) -> None:
        keep = kept_mask(indices, len(self), self.support.device)
        self._work, self._bias = self._work[keep], self._bias[keep]
        self._support = self.support[keep]
        self._base = self._base[keep] if self.metric == "cosine" else self._support

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows of the support to each row of ``x``."""
        return self._answered(x, k, exclude, self._exact)

    def _answered(
        self, x: Any, k: int, exclude: Any, answer: Callable[[Tensor, int, Tensor], Neighborhood]
    ) -> Neighborhood:
        x, left_out = checked_query(self, x, k, exclude)
        parts = zip(x.split(_QUERIES), left_out.split(_QUERIES), strict=True)
        with torch.autocast(x.device.type, enabled=False):
            return joined([answer(rows, k, out) for rows, out in parts])

    def _exact(self, x: Tensor, k: int, exclude: Tensor) -> Neighborhood:
        q, count = compared_rows(x, self.metric), min(len(self), k + self.spare)
        work, offset = self._prepare(q, "x")
        scores, indices = self._candidates(work, count)
        squared = squared_distances(q, self._base, indices, self.metric)
        squared.masked_fill_(indices == exclude[:, None], torch.inf)
        distances, indices = by_distance_then_index(in_unit(squared, self.metric), indices)
        distances, indices = distances[:, :k].contiguous(), indices[:, :k].contiguous()
        if count < len(self):
            # A row that was not kept scores at least the largest kept score, less the rounding.
            # (Only rows with ‖x‖ ≤ ‖q‖ + √d_k can be nearer than d_k: that bounds the rounding.)
            kth = squared_unit(distances[:, -1], self.metric).to(offset.dtype)
            reach = 2 * work.norm(dim=1) + kth.sqrt()
            error = (4 * math.sqrt(work.shape[1]) + 8) * self._eps * (reach.square() + kth)
            unsure = (~(scores.amax(1) + offset - error > kth)).nonzero()[:, 0]
            limit = (kth - offset + 2 * error)[:, None]
            for rows in unsure.split(64) if len(unsure) else ():
                best = self._exhaust(q[rows], work[rows], limit[rows], k, exclude[rows])
                distances[rows], indices[rows] = best
        return Neighborhood(distances, indices)

    def _candidates(self, work: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Scores (squared distances less the query's own square) and indices of the nearest."""
        return smallest_scores(work, self._work, self._bias, count)

    def _exhaust(
        self, q: Tensor, work: Tensor, limit: Tensor, k: int, exclude: Tensor
    ) -> Neighborhood:
        """Compare directly with every row that scores within ``limit``, in order of index."""
        n, dtype = len(q), torch.promote_types(q.dtype, self._base.dtype)
        distances = torch.full((n, k), torch.inf, dtype=dtype, device=q.device)
        indices = torch.full((n, k), len(self), device=q.device)
        open_ = torch.arange(n, device=q.device)
        for start in range(0, len(self), 4096):
            tile = slice(start, start + 4096)
            scores = torch.addmm(self._bias[tile], work[open_], self._work[tile].T, alpha=-2)
            row, column = (~(scores > limit[open_])).nonzero(as_tuple=True)  # NaN is below
            row, column = open_[row], column + start
            stays = column != exclude[row]
            row, column = row[stays], column[stays]
            squared = squared_distances(q[row], self._base, column[:, None], self.metric)
            new = _ragged(row, in_unit(squared[:, 0], self.metric), column, n, len(self))
            distances, indices = merged((distances, indices), new, k)
            open_ = (distances[:, -1] > 0).nonzero()[:, 0]  # nothing is nearer than 0
            if not len(open_):
                break
        return Neighborhood(distances, indices)

    def _prepare(self, base: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Centered rows and their squared lengths (plus 1 for a zero row under the cosine)."""
        work = (base - self._shift).to(self._shift.dtype)
        squares = squared_lengths(work, base, self.metric)
        fits = (squares * 1024).isfinite()  # sums of distances are formed as well
        if not bool(fits.all()):
            row = int((~fits).nonzero()[0])
            wider = "" if work.dtype == torch.float64 else f", or pass {name}.double()"
            raise InputError(
                f"row {row} of `{name}` is too large to square in {work.dtype}. "
                f"Rescale the rows{wider}."
            )
        return work, squares


def squared_distances(q: Tensor, base: Tensor, indices: Tensor, metric: str) -> Tensor:
    """Of compared rows to ``base[indices]``, from differences; a zero row's cosine: 2 to all."""
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


def checked_rows(x: Any, name: str, width: int) -> Tensor:
    x = as_matrix(x, name).detach()
    check_same_width(x, x.new_empty(0, width), name, "support")
    return x


def checked_query(search: Search, x: Any, k: int, exclude: Any) -> tuple[Tensor, Tensor]:
    """Rows of the support's width, and for each the index of one to leave out, -1 for none."""
    x, size = checked_rows(x, "x", search.width), len(search)
    out = torch.full((len(x),), -1) if exclude is None else as_tensor(exclude, "exclude")
    if out.is_floating_point() or out.shape != x.shape[:1]:
        raise InputError(
            f"`exclude` must hold one support index for each of the {len(x)} queries (-1: none), "
            f"got {out.dtype} of shape {tuple(out.shape)}."
        )
    if len(out) and (int(out.min()) < -1 or int(out.max()) >= size):
        raise InputError(
            f"`exclude` must lie in -1..{size - 1}, got {int(out.min())}..{int(out.max())}."
        )
    check_k(k, size - bool((out >= 0).any()), "k", "the support")
    return x, out.to(x.device).long()


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


def merged(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of each row's two lists, each of distances and indices."""
    both = [torch.cat(pair, 1) for pair in zip(a, b, strict=True)]
    distances, indices = by_distance_then_index(*both)
    return distances[:, :k], indices[:, :k]


def _ragged(
    rows: Tensor, distances: Tensor, indices: Tensor, n: int, none: int
) -> tuple[Tensor, Tensor]:
    """Lists of unequal length as a matrix, padded with infinity; ``rows`` ascend."""
    counts = torch.bincount(rows, minlength=n)
    slot = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (n, int(counts.max()))
    d, i = distances.new_full(shape, torch.inf), indices.new_full(shape, none)
    d[rows, slot], i[rows, slot] = distances, indices
    return d, i


def _check_squares(work: Tensor, squares: Tensor) -> None:
    """Rows that differ must not be at distance 0 because their squares vanish."""
    info = torch.finfo(squares.dtype)
    if float(squares.max()) < info.tiny / info.eps and bool(work.any()):
        raise InputError(
            f"the rows of `support` differ by {float(work.abs().max()):.0e} at most, too little "
            f"to square in {work.dtype}. Multiply all rows by a constant."
        )
