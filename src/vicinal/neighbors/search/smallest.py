r"""The smallest entries of each row of a big product, without ever holding or sorting it.

A search wants, for each query, the few smallest of the scores
:math:`s_{ij} = b_j - 2\, q_i \cdot x_j` (with :math:`b_j = \|x_j\|^2` a squared distance less
:math:`\|q_i\|^2`). The product runs at the speed of a matrix product; selecting from it does not.
So the first tiles estimate a threshold for each row, only scores below it are looked at, and most
tiles have few of them: the minimum of each group of columns, one cheap pass, says where. Where too
many come through, the threshold falls to the largest score worth keeping; where too few did, the
row is done again in full.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.neighbors.product import product, takes_other

TILE = 1 << 19  # scores per tile: with its operands it stays in the shared cache
SMALL = 1 << 14  # rows of support below which groups of columns are enough, without a threshold
SAMPLE = 8192  # rows that a threshold is estimated on
GROUP = 8  # the larger, the smaller the groups: their minima are cheap, their members not
DENSE = 1 << 20  # scores held at once where nothing is to be gained by a threshold: in the cache


def smallest_scores(
    q: Float[Tensor, "n d"], x: Float[Tensor, "m d"], bias: Float[Tensor, " m"], count: int
) -> tuple[Float[Tensor, "n c"], Int[Tensor, "n c"]]:
    """The ``count`` smallest scores of each query and their columns, in no order.

    Tile t is every T-th row from t on: a sample of the support, so that the first tiles estimate
    the threshold even where the support is sorted by class.
    """
    m, q = len(x), -2 * q
    tiles = max(len(q) * m // TILE, 8) | 1  # odd: rows a power of two apart would share cache lines
    if m < SMALL or 8 * count > m:
        return _dense(q, x, bias, count)
    lead = -(-tiles // 16) if m > 16 * SAMPLE else -(-tiles // 8)
    first = [_tile(q, x, bias, t, tiles) for t in range(lead)]
    hits = _Hits(count, _estimated_threshold(first, count, m))
    for t in range(tiles):
        scores = first[t] if t < lead else _tile(q, x, bias, t, tiles, out=first[-1])
        rows, columns, values = _below(scores, hits.threshold, _group_size(m, count))
        hits.take(rows, columns * tiles + t, values)
    values, columns = hits.smallest()
    short = values.isinf().any(1).nonzero()[:, 0]  # rows whose threshold was estimated too low
    if len(short):
        values[short], columns[short] = _dense(q[short], x, bias, count)
    return values, columns


def by_distance_then_index(
    distances: Float[Tensor, "n c"], indices: Int[Tensor, "n c"]
) -> tuple[Float[Tensor, "n c"], Int[Tensor, "n c"]]:
    """Each row sorted by distance, equal distances by index.

    Non-negative float32 order as their bits do, so distance and index make one integer to sort by
    (numpy's sort of integers is ten times as fast as torch's); float64 takes two sorts.
    """
    if distances.dtype == torch.float32:
        keys = (distances + 0.0).view(torch.int32).long().bitwise_left_shift_(32).add_(indices)
        keys = torch.from_numpy(np.sort(keys.numpy(), 1)) if keys.is_cpu else keys.sort(1).values
        return (keys >> 32).int().view(torch.float32), keys & 0xFFFFFFFF
    indices, order = indices.sort(1)
    distances, again = distances.gather(1, order).sort(dim=1, stable=True)
    return distances, indices.gather(1, again)


def _dense(q: Tensor, x: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
    parts = q.split(max(1, DENSE // len(x)))
    found = [_smallest_of(product(part, x, bias), count) for part in parts]
    return torch.cat([values for values, _ in found]), torch.cat([columns for _, columns in found])


def _smallest_of(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """They lie in the ``count`` groups of columns of smallest minima, or behind all groups."""
    group = _group_size(scores.shape[1], count)
    grouped = scores[:, : scores.shape[1] // group * group]
    minima = grouped.unflatten(1, (group, -1)).amin(1)
    columns = (_few(minima, count)[:, :, None] + _steps(group, grouped)).flatten(1)
    rest = torch.arange(grouped.shape[1], scores.shape[1], device=scores.device)
    columns = torch.cat([columns, rest.expand(len(scores), -1)], 1)
    picked = _few(values := scores.gather(1, columns), count)
    return values.gather(1, picked), columns.gather(1, picked)


def _few(scores: Tensor, count: int) -> Tensor:
    """Columns of the smallest, in no order; NumPy selects in a third of torch's time.

    A float32 leaves 29 bits of a float64 free. They hold its column, so that values are selected,
    which takes half of the time of selecting places. (Not in an infinity, which would be a NaN.)
    """
    if not scores.is_cpu:
        return scores.topk(count, 1, largest=False, sorted=False).indices
    if scores.dtype != torch.float32:
        return torch.from_numpy(np.argpartition(scores.numpy(), count - 1, axis=1)[:, :count])
    keys = scores.clamp_max(torch.finfo(torch.float32).max).double().numpy()
    bits = keys.view(np.int64)
    bits |= np.arange(keys.shape[1])
    keys.partition(count - 1, axis=1)
    return torch.from_numpy(bits[:, :count] & ((1 << 29) - 1))


def _steps(group: int, scores: Tensor) -> Tensor:
    return torch.arange(0, scores.shape[1], scores.shape[1] // group, device=scores.device)


def _tile(
    q: Tensor, x: Tensor, bias: Tensor, t: int, tiles: int, out: Tensor | None = None
) -> Tensor:
    """Scores of rows t, t + tiles, …; the width is that of every tile, padded with infinity."""
    part, part_bias = x[t::tiles], bias[t::tiles].contiguous()
    if out is None:
        out = q.new_empty(len(q), -(-(len(x) // tiles + 1) // 32) * 32)
    if takes_other(q, part):
        out[:, : len(part)] = product(q, part, part_bias)
    else:
        torch.addmm(part_bias, q, part.T, out=out[:, : len(part)])
    out[:, len(part) :] = torch.inf
    return out


def _estimated_threshold(scores: list[Tensor], count: int, m: int) -> Tensor:
    """A threshold with at least ``count`` of all m scores below it, almost surely.

    In a sample of s, count·s/m are expected below it; four standard deviations more are allowed
    for. Minima of groups stand in for the scores: fewer to sort, and never lower.
    """
    n, width = scores[0].shape
    s = width * len(scores)
    expected = count * s / m
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    group = 1 << min(max(math.floor(math.log2(s / (8 * rank))), 0), 4)
    minima = torch.cat([part.view(n, group, width // group).amin(1) for part in scores], 1)
    return minima.gather(1, _few(minima, min(rank, minima.shape[1]))).amax(1, keepdim=True)


def _below(scores: Tensor, threshold: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of every score under its row's threshold; rows ascend."""
    n, width = scores.shape
    stride = width // group
    row, column = (scores.view(n, group, stride).amin(1) < threshold).nonzero(as_tuple=True)
    members = scores.view(-1).take((row * width + column)[:, None] + _steps(group, scores))
    hit, member = (members < threshold[row]).nonzero(as_tuple=True)
    return row[hit], member * stride + column[hit], members[hit, member]


def _group_size(m: int, count: int) -> int:
    """Balances reading every group's minimum against reading every member of the groups hit."""
    return 1 << min(max(math.ceil(math.log2(m / (GROUP * count)) / 2), 0), 5)


class _Hits:
    """Scores found below the threshold: lists of (row, column, value), rows ascending in each."""

    def __init__(self, count: int, threshold: Tensor) -> None:
        self.count, self.threshold = count, threshold
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []
        self.total = 0

    def take(self, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        self.found.append((rows, columns, values))
        self.total += len(rows)
        if self.total > 16 * self.count * len(self.threshold):  # estimated too high
            values, columns = self.smallest()
            self.threshold = torch.minimum(self.threshold, values.amax(1, keepdim=True))
            found = values.isfinite()
            rows = found.nonzero()[:, 0]
            self.found, self.total = [(rows, columns[found], values[found])], len(rows)

    def smallest(self) -> tuple[Tensor, Tensor]:
        """The smallest ``count`` of each row, padded with infinity where fewer were found."""
        n = len(self.threshold)
        keys = torch.cat([rows + n * i for i, (rows, _, _) in enumerate(self.found)])
        per_list = torch.bincount(keys, minlength=n * len(self.found)).view(-1, n)
        width = max(int(per_list.sum(0).max()), self.count)
        # Slot of a hit in its row: hits of the row in earlier lists + rank within its own list.
        start = per_list.cumsum(0) - per_list
        start += torch.arange(n, device=keys.device) * width
        start -= (per_list.view(-1).cumsum(0) - per_list.view(-1)).view(-1, n)
        place = start.view(-1)[keys] + torch.arange(len(keys), device=keys.device)
        values = self.threshold.new_full((n, width), torch.inf)
        columns = torch.zeros_like(values, dtype=torch.long)
        values.view(-1)[place] = torch.cat([v for _, _, v in self.found])
        columns.view(-1)[place] = torch.cat([c for _, c, _ in self.found])
        picked = _few(values, self.count)
        return values.gather(1, picked), columns.gather(1, picked)
