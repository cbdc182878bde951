"""The k nearest rows of a support, exactly, in torch alone: the default engine."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any, Self

import torch
from torch import Tensor

from vicinal.checks import InputError, as_matrix, check_choice, check_k
from vicinal.neighbors.distances import (
    METRICS,
    compared_rows,
    in_unit,
    squared_lengths,
    squared_unit,
)
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.protocol import (
    SPARE,
    Search,
    checked_exclude,
    checked_rows,
    kept_mask,
    squared_distances,
)
from vicinal.neighbors.search.smallest import by_distance_then_index, columns_below, smallest_scores

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

    def __init__(self, metric: str = "sqeuclidean") -> None:
        check_choice(metric, "metric", METRICS)
        self.metric = metric
        self._support: Tensor | None = None

    @property
    def support(self) -> Tensor:
        if self._support is None:
            raise InputError("the search has no support yet. Call build(support) first.")
        return self._support

    def __len__(self) -> int:
        return 0 if self._support is None else len(self._support)

    def build(self, support: Any) -> Self:
        """Center the rows, so that the product loses no digits to a common offset."""
        rows = as_matrix(support, "support").detach()
        base = compared_rows(rows, self.metric)
        self._shift = base.mean(0, dtype=torch.float64).to(base.dtype)
        self._work, self._bias = self._prepare(base, "support")
        self._support, self._base = rows, base
        return self

    def add(self, rows: Any) -> None:
        rows = checked_rows(rows, "rows", self.support).to(self.support.dtype)
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
        x = checked_rows(x, "x", self.support)
        left_out = checked_exclude(exclude, len(x), len(self), x.device)
        check_k(k, len(self) - (left_out is not None), "k", "the support")
        parts = []
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), _QUERIES):
                rows = slice(start, start + _QUERIES)
                out = None if left_out is None else left_out[rows]
                parts.append(self._query(x[rows], k, out))
        return joined(parts)

    def _query(self, x: Tensor, k: int, exclude: Tensor | None) -> Neighborhood:
        q, count = compared_rows(x, self.metric), min(len(self), k + SPARE)
        work, offset = self._prepare(q, "x")
        scores, indices = self._candidates(work, count)
        squared = squared_distances(q, self._base, indices, self.metric)
        if exclude is not None:
            squared = squared.masked_fill(indices == exclude[:, None], torch.inf)
        distances, indices = by_distance_then_index(in_unit(squared, self.metric), indices)
        distances, indices = distances[:, :k].contiguous(), indices[:, :k].contiguous()
        if self.exact and count < len(self):
            # A row that was not kept scores at least the largest kept score, less the rounding.
            # (Only rows with ‖x‖ ≤ ‖q‖ + √d_k can be nearer than d_k: that bounds the rounding.)
            kth = squared_unit(distances[:, -1], self.metric).to(offset.dtype)
            eps = self._eps()
            reach = 2 * work.norm(dim=1) + kth.sqrt()
            error = (4 * math.sqrt(work.shape[1]) + 8) * eps * (reach.square() + kth)
            unsure = (~(scores.amax(1) + offset - error > kth)).nonzero()[:, 0]
            limit = (kth - offset + 2 * error)[:, None]
            for start in range(0, len(unsure), 64):
                rows = unsure[start : start + 64]
                out = None if exclude is None else exclude[rows]
                best = self._exhaust(q[rows], work[rows], limit[rows], k, out)
                distances[rows], indices[rows] = best
        return Neighborhood(distances, indices)

    def _candidates(self, work: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Scores (squared distances less the query's own square) and indices of the nearest."""
        return smallest_scores(work, self._work, self._bias, count)

    def _eps(self) -> float:
        """Unit of rounding of the candidates' scores."""
        return torch.finfo(self._work.dtype).eps

    def _exhaust(
        self, q: Tensor, work: Tensor, limit: Tensor, k: int, exclude: Tensor | None
    ) -> Neighborhood:
        """Compare directly with every row that scores within ``limit``, in order of index."""
        n, dtype = len(q), torch.promote_types(q.dtype, self._base.dtype)
        distances = torch.full((n, k), torch.inf, dtype=dtype, device=q.device)
        indices = torch.full((n, k), len(self), device=q.device)
        open_ = torch.arange(n, device=q.device)
        for start in range(0, len(self), 4096):
            tile = slice(start, start + 4096)
            where = open_, work[open_], limit[open_]
            row, column = columns_below(where[1], self._work[tile], self._bias[tile], where[2])
            row, column = open_[row], column + start
            if exclude is not None:
                row, column = row[column != exclude[row]], column[column != exclude[row]]
            squared = squared_distances(q[row], self._base, column[:, None], self.metric)
            found = in_unit(squared[:, 0], self.metric)
            new = _ragged(row, found, column, n, len(self))
            merged = by_distance_then_index(
                torch.cat([distances, new[0]], 1), torch.cat([indices, new[1]], 1)
            )
            distances, indices = merged[0][:, :k], merged[1][:, :k]
            open_ = (distances[:, -1] > 0).nonzero()[:, 0]  # nothing is nearer than 0
            if not len(open_):
                break
        return Neighborhood(distances, indices)

    def _prepare(self, base: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Centered rows and their squared lengths (plus 1 for a zero row under the cosine)."""
        work = (base - self._shift).to(self._shift.dtype)
        squares = squared_lengths(work, base, self.metric)
        if not bool(squares.isfinite().all()):
            row = int((~squares.isfinite()).nonzero()[0])
            raise InputError(
                f"row {row} of `{name}` is too large to square in {work.dtype}. "
                f"Rescale the rows, or pass {name}.double()."
            )
        return work, squares


def make_search(search: str | Search, metric: str) -> Search:
    """A search by name (``"auto"``: faiss where it is installed, else exact), or the one given.

    >>> make_search("exact", "cosine").metric
    'cosine'
    """
    if not isinstance(search, str):
        if search.metric != metric:
            raise InputError(
                f"`search` compares by {search.metric!r} but `metric` is {metric!r}. "
                f"Pass metric={search.metric!r}, or a search of that metric."
            )
        return search
    check_choice(search, "search", ("exact", "faiss", "auto"))
    if search == "exact" or (search == "auto" and find_spec("faiss") is None):
        return ExactSearch(metric)
    from vicinal.neighbors.search.faiss import FaissSearch  # an extra: imported when asked for

    return FaissSearch(metric)


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
