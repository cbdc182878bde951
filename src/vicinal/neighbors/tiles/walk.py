"""Walks over the tiles of a large set of pairs: nothing of size n × n is kept.

Within one batch each unordered pair is formed once, in tiles on and above the diagonal: a tile's
weights serve its rows and, transposed, its columns. That needs one shift for all rows; the rows
whose masses do not fit into the range around it (small temperature, outliers) go the general way:
a block of rows against all columns at a time, exact whatever the scale. So do queries against
references.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vicinal.neighbors.tiles.tile import (
    Index,
    Kernel,
    Pairing,
    Side,
    Sums,
    Tile,
    Upstream,
    add_sums,
    shares,
    tile,
    tile_masses,
    tile_slopes,
)

BLOCK = 1 << 19  # pairs formed at a time
_PROBES = 32  # rows whose masses choose the shift


# ------------------------------------------------------------------ rows against all columns


def stream_masses(pairing: Pairing, rows: Tensor | None = None) -> Tensor:
    """Log-masses (2, rows), own and other, of ``rows`` of the left over all of the right."""
    parts = [tile_masses(pairs, left, pairing.right) for _, left, pairs in _blocks(pairing, rows)]
    return torch.cat(parts, 1)


def stream_sums(
    pairing: Pairing, upstream: Upstream, rows: Tensor | None = None
) -> tuple[Sums, Sums]:
    """Gradient sums of both sides for ``rows``; ``upstream`` covers every row of the left."""
    total = Sums.zeros(pairing.left), Sums.zeros(pairing.right)
    for i, left, pairs in _blocks(pairing, rows):
        m = tile_slopes(pairs.log_weights, left, pairing.right, upstream.part(i))
        mine = Sums.zeros(left)
        add_sums(m, pairs, left, pairing.right, mine, total[1])
        for whole, some in zip(total[0], mine, strict=True):
            whole[i] += some
    return total


def _blocks(pairing: Pairing, rows: Tensor | None) -> Iterator[tuple[Index, Side, Tile]]:
    """Which rows (all of them for None), their side, and their tile with all columns."""
    left, right, kernel, selfless = pairing
    everyone = torch.arange(len(left.rows), device=left.rows.device)
    numbers, width = everyone if rows is None else rows, len(right.rows)
    height = min(max(BLOCK // width, 1), len(numbers))
    for start in range(0, len(numbers), height):
        part = slice(start, start + height)
        i, own_column = part if rows is None else rows[part], numbers[part] if selfless else None
        side = left.part(i)
        yield i, side, tile(side, right, kernel, own_column)


# ------------------------------------------------------------------ each unordered pair once
# Rows come ascending by hard label: most tiles are of one kind, and only those on a class border
# need a mask.


def symmetric_masses(pairing: Pairing, size: int) -> Tensor:
    """Log-masses (2, n) of every row over all others, by tiles of ``size`` rows."""
    side, kernel = pairing.left, pairing.kernel
    n = len(side.rows)
    probes = torch.linspace(0, n - 1, min(_PROBES, n), device=side.rows.device).long()
    shift = _shift(stream_masses(pairing, probes), n)
    sums = side.rows.new_zeros(2, n)
    for i, j, pairs in _upper(side, kernel._replace(shift=shift), size):
        for kind, part in _split(_weights(pairs, shift), side.part(i), side.part(j)):
            sums[kind, i] += part.sum(1)
            if i != j:
                sums[kind, j] += part.sum(0)
    logs = sums.log_().double()
    lost = _lost(logs, _empty(side), side.rows.dtype).nonzero()[:, 0]
    logs.add_(shift)
    if len(lost):
        logs[:, lost] = stream_masses(pairing, lost)
    return logs


def symmetric_sums(pairing: Pairing, size: int, upstream: Upstream) -> tuple[Sums]:
    """Gradient sums: M_ij + M_ji = e^(s_ij) (u_i + u_j) in one tile, u = ∂/∂mass of its kind."""
    side, dtype = pairing.left, pairing.left.rows.dtype
    empty = upstream.grads == 0
    shift = _shift(upstream.logs, len(side.rows))
    relative = upstream.logs - shift
    lost = _lost(relative, empty, dtype)
    u = (upstream.grads * torch.exp(-relative)).masked_fill_(empty | lost, 0).to(dtype)
    total = Sums.zeros(side)
    for i, j, pairs in _upper(side, pairing.kernel._replace(shift=shift), size):
        rows, columns = side.part(i), side.part(j)
        e = _weights(pairs, shift)
        torch.threshold_(e, _smallest(dtype), 0)  # subnormal products crawl
        parts = [
            part.mul_(u[kind, i, None] + u[kind, j]) for kind, part in _split(e, rows, columns)
        ]
        m = parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
        add_sums(m, pairs, rows, columns, total.part(i), None if i == j else total.part(j))
    index = lost.nonzero()[:, 0]
    if len(index):
        for part in stream_sums(pairing, upstream, index):
            total.products.add_(part.products)
            total.weights.add_(part.weights)
    return (total,)


def _upper(side: Side, kernel: Kernel, size: int) -> Iterator[tuple[slice, slice, Tile]]:
    n = len(side.rows)
    everyone = torch.arange(min(size, n), device=side.rows.device)
    parts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    for p, i in enumerate(parts):
        rows = side.part(i)
        for j in parts[p:]:
            own_column = everyone[: len(rows.rows)] if i == j else None
            yield i, j, tile(rows, side.part(j), kernel, own_column)


def _split(e: Tensor, rows: Side, columns: Side) -> list[tuple[int, Tensor]]:
    """A tile's weights by kind (0 own class, 1 others). Labels ascend, rows come before columns."""
    if not rows.soft:
        if int(rows.labels[-1]) < int(columns.labels[0]):
            return [(1, e)]
        if int(rows.labels[0]) == int(columns.labels[-1]):
            return [(0, e)]
    same = shares(rows.labels, columns.labels, e.dtype)
    if rows.soft:
        return [(0, e * same), (1, e * same.neg_().add_(1))]
    own = same.mul_(e)
    return [(0, own), (1, e.sub_(own))]


def _weights(pairs: Tile, shift: float) -> Tensor:
    """e^(s - shift), kept finite: rows it would overflow are lost to the stream in any case."""
    s, ceiling = pairs.log_weights, 0.9 * math.log(torch.finfo(pairs.log_weights.dtype).max)
    return (s if -shift < ceiling else s.clamp_max_(ceiling)).exp_()


def _shift(logs: Tensor, n: int) -> float:
    """The typical log-weight, of log-masses (2, m): exponents near 0 are the most precise."""
    known = logs.logsumexp(0)
    known = known[known.isfinite()]
    return float(known.median()) - math.log(n) if len(known) else 0.0


def _empty(side: Side) -> Tensor:
    """(2, n): which rows have nobody of their own class, or nobody of another, beside them.

    Of soft labels it is not known beforehand: rows that turn out empty are streamed.
    """
    n = len(side.labels)
    if side.soft:
        return torch.zeros(2, n, dtype=torch.bool, device=side.labels.device)
    _, inverse, counts = side.labels.unique_consecutive(return_inverse=True, return_counts=True)
    return torch.stack([counts[inverse] == 1, counts[inverse] == n])


def _lost(relative: Tensor, empty: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows (n,) of which a mass, ``relative`` (2, n) to the shift, under- or overflows."""
    info = torch.finfo(dtype)
    # n weights below the smallest kept one may be missing: less than eps of the mass.
    floor = math.log(_smallest(dtype)) + math.log(relative.shape[1] / info.eps)
    outside = (relative < floor) | (relative > 0.8 * math.log(info.max))
    return (outside & ~empty).any(0)


def _smallest(dtype: torch.dtype) -> float:
    """Weights below are zero: any product with what reaches their mass would be subnormal."""
    return torch.finfo(dtype).tiny ** 0.55
