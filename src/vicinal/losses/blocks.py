"""Losses over all pairs, a block of anchors at a time.

Each anchor's loss needs one row of the ``(n, m)`` pairs. Rows go in blocks, and a block's pairs are
computed again in the backward instead of being kept: memory is ``O(block)``, whatever n is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .log_partition import BLOCK


def in_blocks(losses: Callable[[int, int], Tensor], anchors: int, width: int) -> Tensor:
    """``losses(start, stop)`` of consecutive anchors, concatenated along the last axis.

    >>> in_blocks(lambda start, stop: torch.arange(start, stop), 3, 10)
    tensor([0, 1, 2])
    """
    rows = max(1, BLOCK // width)
    if anchors <= rows:
        return losses(0, anchors)
    parts = [
        checkpoint(losses, i, min(i + rows, anchors), use_reentrant=False)
        for i in range(0, anchors, rows)
    ]
    return torch.cat(parts, -1)
