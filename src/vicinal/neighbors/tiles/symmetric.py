"""Pairs within one batch, each unordered pair once: tiles on and above the diagonal.

A tile's weights serve its rows and, transposed, its columns: one product and one exponential for
two directions. That needs one shift for all rows; the rows whose masses do not fit into the range
around it (small temperature, outliers) are handed to :mod:`vicinal.neighbors.tiles.stream`. Rows
come ascending by label: most tiles are of one kind, and only those on a class border need a mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vicinal.neighbors.distances import near_gradient
from vicinal.neighbors.tiles.block import Pull, Sums
from vicinal.neighbors.tiles.pairs import Kernel, Own, Side, Tile, agreement, new_buffers, tile
from vicinal.neighbors.tiles.stream import stream_gradient, stream_masses

_PROBES = 32  # rows whose masses choose the shift


def symmetric_masses(side: Side, kernel: Kernel, size: int, empty: Tensor) -> Tensor:
    """Log-masses (3, n) of every row over all others; ``empty`` (2, n) marks what will be -inf."""
    n = len(side.rows)
    probes = torch.linspace(0, n - 1, min(_PROBES, n), device=empty.device).long()
    shift = _shift(stream_masses(side, side, kernel, probes)[0], n)
    sums = side.rows.new_zeros(2, n)
    for i, j, pairs in _upper(side, kernel._replace(shift=shift), size):
        _add_sums(sums, i, j, _weights(pairs, shift), side)
    logs = torch.cat([sums.sum(0)[None], sums]).log_().double()
    lost = _lost(logs[1:], empty, side.rows.dtype).nonzero()[:, 0]
    logs.add_(shift)
    if len(lost):
        logs[:, lost] = stream_masses(side, side, kernel, lost)
    return logs


def symmetric_gradient(side: Side, kernel: Kernel, size: int, pull: Pull) -> Sums:
    """Gradient sums: M_ij + M_ji in one tile, M = e^(s_ij) × what pulls at either mass."""
    empty = pull.grads == 0
    shift = _shift(pull.logs.logsumexp(0), len(side.rows))
    relative = pull.logs - shift
    lost = _lost(relative, empty, side.rows.dtype)
    scaled = (pull.grads * torch.exp(-relative)).masked_fill_(empty | lost, 0)
    scaled = scaled.to(side.rows.dtype)
    total = Sums.zeros(side)
    for i, j, pairs in _upper(side, kernel._replace(shift=shift), size):
        e = _weights(pairs, shift)
        torch.threshold_(e, _smallest(e.dtype), 0)  # subnormal products crawl
        m = _pulled(e, i, j, scaled, side, pairs)
        _add_gradient(total, i, j, m, pairs.near, side)
    rows = lost.nonzero()[:, 0]
    if len(rows):
        for part in stream_gradient(side, side, kernel, rows, pull):
            total.products.add_(part.products)
            total.weights.add_(part.weights)
    return total


def _upper(side: Side, kernel: Kernel, size: int) -> Iterator[tuple[slice, slice, Tile]]:
    n = len(side.rows)
    buffers = new_buffers(min(size, n), min(size, n), side.rows)
    parts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    for p, i in enumerate(parts):
        rows = side.part(i)
        for j in parts[p:]:
            own_column: Own = "diagonal" if i == j else None
            yield i, j, tile(rows, side.part(j), kernel, buffers, own_column)


def _split(e: Tensor, rows: Side, columns: Side) -> list[tuple[int, Tensor]]:
    """A tile's weights by kind (0 own class, 1 others). Labels ascend, rows come before columns."""
    if not rows.soft:
        if int(rows.labels[-1]) < int(columns.labels[0]):
            return [(1, e)]
        if int(rows.labels[0]) == int(columns.labels[-1]):
            return [(0, e)]
    same = agreement(rows, columns)
    if rows.soft:
        return [(0, e * same), (1, e * same.neg_().add_(1))]
    own = same.mul_(e)
    return [(0, own), (1, e.sub_(own))]


def _add_sums(sums: Tensor, i: slice, j: slice, e: Tensor, side: Side) -> None:
    for kind, part in _split(e, side.part(i), side.part(j)):
        sums[kind, i] += part.sum(1)
        if i != j:
            sums[kind, j] += part.sum(0)


def _weights(pairs: Tile, shift: float) -> Tensor:
    """e^(s - shift), kept finite: rows it would overflow are lost to the stream in any case."""
    s, ceiling = pairs.log_weights, 0.9 * math.log(torch.finfo(pairs.log_weights.dtype).max)
    return (s if -shift < ceiling else s.clamp_max_(ceiling)).exp_()


def _pulled(e: Tensor, i: slice, j: slice, scaled: Tensor, side: Side, pairs: Tile) -> Tensor:
    """M_ij + M_ji = e^(s_ij) (u_i + u_j), u of the pair's kind."""
    parts = [
        part.mul_(torch.add(scaled[kind, i, None], scaled[kind, j], out=pairs.scratch))
        for kind, part in _split(e, side.part(i), side.part(j))
    ]
    m = parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
    if pairs.distances is not None:
        m.div_(pairs.distances).masked_fill_(pairs.distances == 0, 0)
    return m


def _add_gradient(total: Sums, i: slice, j: slice, m: Tensor, near: Tensor, side: Side) -> None:
    if len(near):
        steps = near_gradient(m, near, side.raw[i], side.raw[j])
        total.products[i].sub_(steps[0])
        if i != j:
            total.products[j].sub_(steps[1])
    total.products[i].addmm_(m, side.rows[j])
    total.weights[i] += m.sum(1)
    if i != j:
        total.products[j].addmm_(m.T, side.rows[i])
        total.weights[j] += m.sum(0)


def _shift(log_masses: Tensor, n: int) -> float:
    """The typical log-weight: exponents near 0 are the most precise."""
    known = log_masses[log_masses.isfinite()]
    return float(known.median()) - math.log(n) if len(known) else 0.0


def _lost(relative: Tensor, empty: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows (n,) of which a mass, ``relative`` (2, n) to the shift, under- or overflows."""
    info = torch.finfo(dtype)
    # n weights below the smallest kept one may be missing: less than eps of the mass.
    floor = math.log(_smallest(dtype)) + math.log(relative.shape[1] / info.eps)
    outside = (relative < floor) | (relative > 0.8 * math.log(info.max))
    return (outside & ~empty).any(0)


def _smallest(dtype: torch.dtype) -> float:
    """Weights below are zero: any product with what pulls at them would be subnormal."""
    return torch.finfo(dtype).tiny ** 0.55
