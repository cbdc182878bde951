"""A data set as blocks of gradients: kept while they fit the memory budget, else read or made
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.capture import Batch, batches, is_shuffled, row_count
from vicinal.checks import InputError, check_finite
from vicinal.similarity.factors import Dense, Factor, mixed, select, self_gram
from vicinal.similarity.whitening import Whitening, whiten

if TYPE_CHECKING:
    from vicinal.similarity.kernel import GradientKernel

FORMS = ("raw", "unit", "sum", "white", "dual")


@dataclass(frozen=True)
class Block:
    """The gradients of some consecutive samples.

    ``factors`` stand for ``scale(x) · G(x)`` in one of these forms: ``raw`` G; ``white`` K^-½ G;
    ``unit`` K^-½ G / √r, of norm 1; ``sum`` the same, to be summed and multiplied with sums (large
    gradients are mixed on the way); ``dual`` K⁻¹ G.
    """

    start: int
    factors: list[Factor]
    gram: Float[Tensor, "n d d"]
    whitening: Whitening
    outputs: Float[Tensor, "n d"]
    target: Tensor | None
    scale: Float[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def stop(self) -> int:
        return self.start + len(self)

    @property
    def nbytes(self) -> int:
        return sum(factor.nbytes for factor in self.factors)

    def formed(self, form: str) -> Block:
        """In another form; one output is scaled, several are mixed."""
        if form == "raw":
            return self
        root = self.whitening.root
        if form in ("unit", "sum"):
            root = self.unit_root()
        elif form == "dual":
            root = root @ root
        if root.shape[-1] == 1:
            return replace(self, scale=root[:, 0, 0].to(self.outputs.dtype))
        if form == "sum":
            return replace(
                self,
                factors=[
                    f.to_mix(root) if isinstance(f, Dense) else f.mixed(root) for f in self.factors
                ],
            )
        return replace(self, factors=mixed(self.factors, root))

    def unit_root(self) -> Float[Tensor, "n d d"]:
        """``K^-½ / √r``: makes gradients of norm 1."""
        root, rank = self.whitening
        return root / rank.clamp_min(1).to(root).sqrt()[:, None, None]

    def rows(self, index: slice) -> Block:
        return Block(
            self.start + index.indices(len(self))[0],
            select(self.factors, index),
            self.gram[index],
            Whitening(*(t[index] for t in self.whitening)),
            self.outputs[index],
            None if self.target is None else self.target[index],
            None if self.scale is None else self.scale[index],
        )


class Blocks:
    """Iterates over a data set's blocks, again and again; what fits the budget is made once."""

    def __init__(
        self, kernel: GradientKernel, data: Any, form: str, *, budget: int, name: str = "data"
    ) -> None:
        self.kernel, self.data, self.form, self.name = kernel, data, form, name
        self.count = count(data, name)
        self._left = budget
        self._kept: dict[int, Block] = {}
        self._seen: dict[int, Block] = {}  # without gradients: outputs, K(x, x) and whitening
        self._room = kernel.memory_budget // 8  # for these
        sample = next(samples(data, 3, name))
        self.rows = kernel.rows_per_block(sample)
        self._fits = kernel.bytes_each(sample) * self.count <= budget

    def __iter__(self) -> Iterator[Block]:
        return self.since(0)

    def since(self, first: int) -> Iterator[Block]:
        """The blocks from number ``first`` on."""
        if len(self._kept) == len(self):
            yield from (self._kept[i] for i in range(first, len(self)))
            return
        for number, batch in enumerate(self.batches()):
            if number >= first:
                yield self._block(number, batch)

    def again(self) -> Iterator[Block]:
        """The blocks once more, to be multiplied with sums and for nothing else.

        What was not kept is captured anew, with the whitening known by now: the backward passes
        start from its rows, and no convolution's gradient is formed.
        """
        if not self._seen:
            yield from self
            return
        for number, batch in enumerate(self.batches()):
            seen = self._seen.get(number)
            if seen is None:
                yield self._block(number, batch)
            else:
                yield self.kernel.block_again(batch, seen)

    def __len__(self) -> int:
        return -(-self.count // self.rows)

    def kept(self) -> bool:
        """Whether all blocks fit the budget; makes them if they may."""
        return self._fits and all(number in self._kept for number, _ in enumerate(self))

    def batches(self) -> Iterator[Batch]:
        """The inputs of each block."""
        return samples(self.data, self.rows, self.name)

    def _block(self, number: int, batch: Batch) -> Block:
        if number in self._kept:
            return self._kept[number]
        block = self.kernel.block(batch).formed(self.form)
        last = number == len(self) - 1  # still in hand when the next pass begins
        if last or block.nbytes <= self._left:
            self._left -= block.nbytes
            self._kept[number] = block
        elif self.form == "sum" and not self.kernel.cached and number not in self._seen:
            small = replace(block, factors=[], scale=None)
            needed = small.gram.nbytes + small.whitening.root.nbytes + small.outputs.nbytes
            if needed <= self._room:
                self._room -= needed
                self._seen[number] = small
        return block


def make_block(factors: list[Factor], outputs: Tensor, batch: Batch, *, deficiency: int) -> Block:
    """A raw block with its K(x, x) and their inverse roots."""
    gram = self_gram(factors)
    found = whiten(gram, precision=outputs.dtype, deficiency=deficiency)
    return Block(batch.start, factors, gram, found, outputs, batch.labels)


def count(data: Any, name: str) -> int:
    """Rows of a data set, without reading it."""
    rows = row_count(data)
    if rows is None:
        raise InputError(
            f"`{name}` must have a length (a tensor, a pair with targets, a map-style Dataset, a "
            f"DataLoader), got {type(data).__name__}. Collect an iterable into a tensor first."
        )
    return rows


def samples(data: Any, rows: int, name: str = "data") -> Iterator[Batch]:
    """Batches of one input tensor with just ``rows`` rows, but for the last, in a fixed order.

    >>> [batch.start for batch in samples(torch.zeros(5, 2), 2)]
    [0, 2, 4]
    """
    if is_shuffled(data):  # two passes must meet the same rows
        raise InputError(
            f"`{name}` is a DataLoader that shuffles, so the rows of the result would have no "
            "order. Pass DataLoader(..., shuffle=False) or the data set itself."
        )
    waiting: list[Batch] = []
    held = 0
    for piece in batches(data, rows, name=name):
        if piece.x.is_floating_point():
            check_finite(piece.x, name)
        waiting.append(piece)
        held += piece.rows
        if held >= rows:
            whole = _joined(waiting)
            for first in range(0, held - rows + 1, rows):
                yield whole.take(first, first + rows)
            held %= rows
            waiting = [whole.take(whole.rows - held, whole.rows)] if held else []
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Batch]) -> Batch:
    if len(pieces) == 1:
        return pieces[0]
    labels = [p.labels for p in pieces if p.labels is not None]
    x = torch.cat([p.x for p in pieces])
    return Batch((x,), {}, torch.cat(labels) if labels else None, len(x), pieces[0].start)
