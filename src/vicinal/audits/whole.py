"""All of a set whose rows are not all in memory: where they are, and which of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vicinal.audits.linear_view import sample
from vicinal.capture.sources import Rows
from vicinal.files import fingerprint
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.search.sharded import Mapped, Source

READ = 1 << 14  # rows read at a time


@dataclass(frozen=True, eq=False)
class Whole:
    """Rows in blocks and their class codes; ``some`` are those in memory, ``source`` the rows as
    heads are given them, before the space."""

    rows: Rows
    codes: Int[Tensor, " n"] | None
    fingerprint: str
    some: Int[Tensor, " s"]
    source: Source

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sampled(self) -> bool:
        return len(self.some) < len(self)

    def names(self, rows: Sequence[int]) -> tuple[str, ...]:
        """What some rows are called, block by block of the files."""
        found = dict[int, str]()
        for start in sorted({row // READ * READ for row in rows}):
            stop = min(start + READ, len(self))
            block = self.rows.ids(start, stop)
            found |= {row: block[row - start] for row in rows if start <= row < stop}
        return tuple(found[row] for row in rows)


def whole_set(rows: Rows, codes: Tensor | None, most: int, seed: int, normalize: bool) -> Whole:
    """A set with the rows of it that will be in memory, and the checksum of all."""
    if codes is not None:
        some = sample(codes.clamp_min(0), most, seed)
    else:
        order = np.random.default_rng(seed).permutation(len(rows))[:most]
        some = torch.from_numpy(np.sort(order))
    source = Mapped(rows, unit_rows) if normalize else rows
    return Whole(rows, codes, checksum(rows), some, source)


def checksum(rows: Rows) -> str:
    """Of all rows, read once; where one is not finite, this is where it is said."""
    parts = [fingerprint(block) for _, block in rows.blocks(READ)]
    return fingerprint(*parts)[:12]
