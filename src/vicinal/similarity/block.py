"""The gradients of some consecutive samples, in the form that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.similarity.factors import Dense, Factor, laid, select
from vicinal.similarity.places import Room
from vicinal.similarity.whitening import InverseRoot


@dataclass(frozen=True)
class Block:
    """The gradients of some consecutive samples.

    ``factors`` times ``scale(x)`` are one of these forms: ``raw`` G; ``white`` K^-½ G;
    ``unit`` K^-½ G / √r, of norm 1; ``sum`` the same, to be summed and multiplied with sums;
    ``dual`` K⁻¹ G.
    """

    start: int
    factors: list[Factor]
    gram: Float[Tensor, "n d d"]
    whitening: InverseRoot
    outputs: Float[Tensor, "n d"]
    target: Tensor | None
    scale: Float[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def stop(self) -> int:
        return self.start + len(self)

    def formed(self, form: str, *, spent: bool = False) -> Block:
        """In another form; one output is scaled, several are mixed. ``spent``: this block will not
        be used again, its gradients may be written over.
        """
        if form == "raw":
            return self
        root, scale = self.whitening.root, None
        if form in ("unit", "sum"):  # K^-½ / √r makes gradients of norm 1
            root = root / self.whitening.rank.clamp_min(1).to(root).sqrt()[:, None, None]
        elif form == "dual":
            root = root @ root
            scale = None if self.scale is None else 1 / self.scale
        if root.shape[-1] == 1:
            alone = root[:, 0, 0].to(self.outputs.dtype)
            return replace(self, scale=alone if scale is None else alone * scale)
        found: list[Factor] = []
        written: dict[Any, Tensor] = {}  # where gradients of two maps are the same
        for f in self.factors:
            if isinstance(f, Dense) or not spent:
                found.append(f.remixed(root) if spent else f.mixed(root))
            elif (at := (f.b.data_ptr(), f.b.shape)) in written:
                found.append(replace(f, b=written[at]))
            else:
                found.append(mixed := f.remixed(root))
                written[at] = mixed.b
        return replace(self, factors=found, scale=scale)

    def rows(self, index: slice) -> Block:
        return Block(
            self.start + index.indices(len(self))[0],
            select(self.factors, index),
            self.gram[index],
            InverseRoot(*(t[index] for t in self.whitening)),
            self.outputs[index],
            None if self.target is None else self.target[index],
            None if self.scale is None else self.scale[index],
        )


def joined(parts: Iterable[Block], rows: int, room: Room) -> Block:
    """Consecutive blocks of ``rows`` samples together as one, each moved to its room as it comes:
    their gradients are never all there twice.
    """
    factors: list[Factor] = []
    blocks: list[Block] = []
    for part in parts:
        at = part.start - blocks[0].start if blocks else 0
        so_far: Sequence[Factor | None] = factors or [None for _ in part.factors]
        each = zip(so_far, part.factors, strict=True)
        factors = [laid(whole, f, at, rows, room) for whole, f in each]
        blocks.append(replace(part, factors=[]))
    scales = [b.outputs.new_ones(len(b)) if b.scale is None else b.scale for b in blocks]
    targets = [b.target for b in blocks if b.target is not None]
    return Block(
        blocks[0].start,
        factors,
        torch.cat([b.gram for b in blocks]),
        InverseRoot(*map(torch.cat, zip(*(b.whitening for b in blocks), strict=True))),
        torch.cat([b.outputs for b in blocks]),
        torch.cat(targets) if targets else None,
        None if all(b.scale is None for b in blocks) else torch.cat(scales),
    )
