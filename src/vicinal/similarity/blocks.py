"""A data set as blocks of gradients: kept while they fit the memory budget, else read or made
again.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vicinal.capture.batches import Batch, row_count, samples
from vicinal.checks import InputError
from vicinal.neighbors.product import product_rate
from vicinal.similarity.block import Block, joined
from vicinal.similarity.store import FactorStore, ScratchStore

if TYPE_CHECKING:
    from vicinal.similarity.kernel import GradientKernel

WORKING_BYTES = 512 << 20  # of factors, patches and activations while one block is made
WORKING_COPIES = 2  # of the factors among these
TWICE = 2.0  # from more captures of a sample on, gradients are kept on disk
TILE_ROWS = 1024  # of the largest block
MANY_STEPS, LONG = 10, 30.0  # of which pairs may take more, and seconds, before one is told


class Blocks:
    """Iterates over a data set's blocks, again and again; what fits the budget is made once."""

    def __init__(
        self, kernel: GradientKernel, data: Any, form: str, *, budget: int, name: str = "data"
    ) -> None:
        self.kernel, self.data, self.form, self.name = kernel, data, form, name
        self.count = count(data, name)
        self._left = self._budget = budget
        self._kept: dict[int, Block] = {}
        self._seen: dict[int, Block] = {}  # without gradients: outputs, K(x, x) and whitening
        self._room = kernel.memory_budget // 8  # for these
        sample = next(samples(data, 3, name))
        self._each = max(kernel.bytes_each(sample), 1)
        room = min(WORKING_BYTES, kernel.memory_budget // 4)
        self.rows = max(1, min(TILE_ROWS, room // (WORKING_COPIES * self._each)))
        self._fits = self._each * self.count <= budget
        self._all: list[Block] = []  # if they fit
        self._scratch: FactorStore | None = None

    def __iter__(self) -> Iterator[Block]:
        return self.since(0)

    def since(self, first: int) -> Iterator[Block]:
        """The blocks from number ``first`` on."""
        if self._fits:
            yield from self._whole()[first:]
            return
        for number, batch in enumerate(self.batches()):
            if number >= first:
                yield self._block(number, batch)

    def again(self) -> Iterator[Block]:
        """The blocks once more: what was not kept is captured anew, with the whitening known by
        now, from whose rows the backward passes start.
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

    def groups(self) -> Iterator[list[Block]]:
        """The data in lists of blocks as long as the budget allows, each made when asked for."""
        size = max(1, self._budget // self._each // self.rows)
        waiting: list[Block] = []
        for batch in self.batches():
            waiting.append(self._raw(batch).formed(self.form, spent=True))
            if len(waiting) == size:
                yield self._larger(waiting)
                waiting = []
        if waiting:
            yield self._larger(waiting)

    def _raw(self, batch: Batch) -> Block:
        return self.kernel.block(batch, self._scratch)

    @contextmanager
    def kept_for(self, passes: float) -> Iterator[None]:
        """Where so many passes are to come, keep on disk what memory does not hold.

        So that a sample is captured twice at most; where the disk has no room either, it is
        captured in every pass, and one is told before.
        """
        if passes <= TWICE or self._fits or self.kernel.cached:
            yield
            return
        needed = self._each * self.count
        with ExitStack() as after:
            if shutil.disk_usage(tempfile.gettempdir()).free > 2 * needed:
                folder = after.enter_context(tempfile.TemporaryDirectory(prefix="vicinal-"))
                self._scratch = ScratchStore(Path(folder), self.kernel.engine)
            else:
                self._warn(needed, passes)
            try:
                yield
            finally:
                self._scratch = None

    def _warn(self, needed: int, passes: float) -> None:
        warnings.warn(
            f"the gradients of `{self.name}` take {needed / 2**20:.0f} MiB, of which "
            f"{self._budget / 2**20:.0f} MiB are held at a time, and {tempfile.gettempdir()} has "
            f"no room for them, so each sample is captured about {passes:.0f} times. Raise "
            "memory_budget, or give a folder as `cache`: gradients are then captured once.",
            stacklevel=2,
        )

    def turns(self) -> int:
        """How many groups there are."""
        return -(-self._each * self.count // max(self._budget, 1))

    def after(self, row: int) -> Iterator[Block]:
        """The blocks from sample ``row`` on, where one begins."""
        for batch in self.batches():
            if batch.start >= row:
                yield self._raw(batch).formed(self.form, spent=True)

    def __len__(self) -> int:
        rows = self.rows * self._step() if self._fits else self.rows
        return -(-self.count // rows)

    def kept(self) -> bool:
        """Whether all blocks fit the budget; makes them if they do."""
        return self._fits and bool(self._whole())

    def batches(self) -> Iterator[Batch]:
        """The inputs of each block as it is captured."""
        return samples(self.data, self.rows, self.name)

    def _whole(self) -> list[Block]:
        if not self._all:
            raw = map(self.kernel.block, self.batches())
            self._all = self._larger([block.formed(self.form, spent=True) for block in raw])
        return self._all

    def _larger(self, blocks: list[Block]) -> list[Block]:
        """Several blocks as one, and the next several."""
        found, step = [], self._step()
        while blocks:
            found.append(joined(blocks[:step]))
            del blocks[:step]
        return found

    def _step(self) -> int:
        """How many blocks are joined: sums over places are then carried out once for many pairs;
        nothing else is worth the copy, nor are sums over the samples.
        """
        parts = self.kernel.engine.known.values()
        worth = self.form != "sum" and any(part.factor.form_flops() for part in parts)
        return max(1, TILE_ROWS // self.rows) if worth else 1

    def _block(self, number: int, batch: Batch) -> Block:
        if number in self._kept:
            return self._kept[number]
        raw = self._raw(batch)
        block = raw.formed(self.form, spent=True)
        last = number == len(self) - 1  # still in hand when the next pass begins
        if last or block.nbytes <= self._left:
            self._left -= block.nbytes
            self._kept[number] = block
        elif self.form == "sum" and not self.kernel.cached and raw.scale is None:
            small = replace(block, factors=[], scale=None)
            needed = small.gram.nbytes + small.whitening.root.nbytes + small.outputs.nbytes
            if needed <= self._room:
                self._room -= needed
                self._seen[number] = small
        return block


def pairs(left: Blocks, right: Blocks) -> Iterator[tuple[Block, Block]]:
    """Every pair of blocks; of a data set with itself, half of them.

    What does not fit the budget is captured in groups that do, and the rest of the data passes by
    each: from memory, from a temporary folder, or captured again where that is once more at most.
    """
    same = left is right
    _warn_of_time(left, right)
    if left.kept():
        for i, one in enumerate(left):
            for other in right.since(i if same else 0):
                yield one, other
        return
    with right.kept_for(passes(left.turns()) if same else left.turns()):
        for group in left.groups():
            if same:
                yield from ((one, other) for i, one in enumerate(group) for other in group[i:])
            for other in right.after(group[-1].stop) if same else right:
                yield from ((one, other) for one in group)


def passes(groups: int) -> float:
    """How often a sample is looked at for all pairs, in so many groups: once for its own and once
    for each before it.
    """
    return 1 + (groups - 1) / 2


def _warn_of_time(left: Blocks, right: Blocks) -> None:
    """Say so before pairs that are expected to take many times the passes of their samples."""
    engine, same = left.kernel.engine, left is right
    number = left.count * (left.count / 2 if same else right.count)
    flops = number * sum(part.factor.pair_flops() for part in engine.known.values())
    step = engine.seconds * (left.count if same else left.count + right.count)
    expected = step + flops / product_rate()
    if expected > MANY_STEPS * step and expected > LONG:
        warnings.warn(
            f"the pairs of `{left.name}` are expected to take about {expected:.0f} s of CPU time, "
            f"{expected / step:.0f} times the forward and backward passes of their samples. Pass "
            "fewer rows, choose fewer `params`, or look into a SketchedIndex.",
            stacklevel=2,
        )


def all_pairs(left: Blocks, right: Blocks, tile: Callable[[Block, Block], Tensor]) -> Tensor:
    """``tile`` of every pair of blocks as one matrix; of a data set with itself, half of them."""
    same = left is right
    out: Tensor | None = None
    for one, other in pairs(left, right):
        diagonal = same and other.start == one.start
        found = symmetric(one, tile) if diagonal else tile(one, other)
        if out is None:
            _check_size(left, right, found)
            out = found.new_empty(left.count, right.count, *found.shape[2:])
        out[one.start : one.stop, other.start : other.stop] = found
        if same and not diagonal:
            out[other.start : other.stop, one.start : one.stop] = _swapped(found)
    assert out is not None
    return out


def symmetric(block: Block, tile: Callable[[Block, Block], Tensor]) -> Tensor:
    """A block against itself: halved until little but a triangle is left to compute."""
    if len(block) <= 64:
        return tile(block, block)
    middle = len(block) // 2
    first, second = block.rows(slice(0, middle)), block.rows(slice(middle, len(block)))
    corner = tile(first, second)
    found = corner.new_empty(len(block), len(block), *corner.shape[2:])
    found[:middle, middle:], found[middle:, :middle] = corner, _swapped(corner)
    found[:middle, :middle] = symmetric(first, tile)
    found[middle:, middle:] = symmetric(second, tile)
    return found


def _swapped(tile: Tensor) -> Tensor:
    """The kernel of (x', x) from that of (x, x'): transposed, and so is each d×d matrix."""
    return tile.transpose(0, 1) if tile.ndim == 2 else tile.transpose(0, 1).mT


def _check_size(left: Blocks, right: Blocks, tile: Tensor) -> None:
    needed = left.count * right.count * tile[0, 0].numel() * tile.element_size()
    budget = left.kernel.memory_budget
    if needed > budget:
        raise InputError(
            f"a Gram matrix of {left.count} x {right.count} samples takes {needed / 2**20:.0f} MiB,"
            f" more than memory_budget={budget / 2**20:.0f} MiB. Use topk, histogram or neighbors, "
            "which never hold it, pass fewer rows, or raise the budget."
        )


def count(data: Any, name: str) -> int:
    """Rows of a data set, without reading it."""
    rows = row_count(data)
    if rows is None:
        raise InputError(
            f"`{name}` must have a length (a tensor, a pair with targets, a map-style Dataset, a "
            f"DataLoader), got {type(data).__name__}. Collect an iterable into a tensor first."
        )
    return rows
