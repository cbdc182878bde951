"""Rows against all columns, a block of rows at a time: exact log-sum-exp whatever the scale.

This is the engine's general path: queries against references, and the rows that the symmetric tiles
(:mod:`vicinal.neighbors.tiles.symmetric`) could not hold in one common shift.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vicinal.neighbors.tiles.block import Pull, Sums, block_gradient, block_masses
from vicinal.neighbors.tiles.pairs import Kernel, Side, Tile, new_buffers, tile

BLOCK = 1 << 19  # pairs formed at a time


def stream_masses(left: Side, right: Side, kernel: Kernel, rows: Tensor) -> Tensor:
    """Log-masses (3, rows), all, own and other, of ``rows`` of ``left`` over all of ``right``."""
    blocks = _blocks(left, right, kernel, rows)
    return torch.cat([block_masses(pairs, part, right) for _, part, pairs in blocks], 1)


def stream_gradient(
    left: Side, right: Side, kernel: Kernel, rows: Tensor, pull: Pull
) -> tuple[Sums, Sums]:
    """Gradient sums of both sides for ``rows``; ``pull`` covers every row of ``left``."""
    total = Sums.zeros(left), Sums.zeros(right)
    for index, part, pairs in _blocks(left, right, kernel, rows):
        gl, gr = block_gradient(pairs, part, right, pull.part(index))
        total[0].products.index_add_(0, index, gl.products)
        total[0].weights.index_add_(0, index, gl.weights)
        total[1].products.add_(gr.products)
        total[1].weights.add_(gr.weights)
    return total


def _blocks(
    left: Side, right: Side, kernel: Kernel, rows: Tensor
) -> Iterator[tuple[Tensor, Side, Tile]]:
    height = min(max(BLOCK // len(right.rows), 1), len(rows))
    buffers = new_buffers(height, len(right.rows), left.rows)
    for index in rows.split(height):
        part = left.part(index)
        yield index, part, tile(part, right, kernel, buffers, index if right is left else None)
