"""A data set as blocks of gradients: kept in memory while they fit the budget, else on disk, or
made again.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vicinal.capture.batches import Batch, row_count, samples
from vicinal.checks import InputError
from vicinal.neighbors.product import product_rate
from vicinal.similarity.block import Block, joined
from vicinal.similarity.places import disk_room, room

if TYPE_CHECKING:
    from vicinal.similarity.kernel import GradientKernel

WORKING_BYTES = 512 << 20  # of factors, patches and activations while one block is made
WORKING_COPIES = 2  # of the factors among these
TILE_ROWS = 1024  # of the largest block
Progress = Callable[[int, int], object]  # is called with the rows done, and how many there are
MANY_STEPS, LONG = 10, 30.0  # of which pairs may take more, and seconds, before one is told


class Blocks:
    """Iterates over a data set's blocks, again and again.

    Each is made once and kept: in memory while the budget lasts, then on disk. What is looked at
    ``once``, and what is only to be summed (twice), is made again instead; so is, with a warning,
    what the disk has no room for.
    """

    def __init__(
        self,
        kernel: GradientKernel,
        data: Any,
        form: str,
        *,
        budget: int,
        name: str = "data",
        once: bool = False,
    ) -> None:
        self.kernel, self.data, self.form, self.name = kernel, data, form, name
        self.count = count(data, name)
        self.progress: Progress | None = None
        self._kept: dict[int, Block] = {}
        self._left = budget
        self._each = max(kernel.bytes_each(next(samples(data, 3, name))), 1)
        working = min(WORKING_BYTES, kernel.memory_budget // 4)
        self.rows = max(1, min(TILE_ROWS, working // (WORKING_COPIES * self._each)))
        needed = self._each * self.count
        self.fits = needed <= budget
        self.turns = -(-needed // max(budget, 1))  # how often memory is filled
        lasting = not (self.fits or once or form == "sum" or kernel.cached)
        self._on_disk = lasting and shutil.disk_usage(tempfile.gettempdir()).free > 2 * needed
        if lasting and not self._on_disk:
            self._warn(needed, budget)
        # Captured batches are joined where sums over places are then carried out once for many
        # pairs; nothing else is worth the copy, nor are sums over the samples.
        parts = kernel.engine.known.values()
        worth = form != "sum" and any(part.factor.form_flops() for part in parts)
        most = TILE_ROWS if self.fits or self._on_disk else min(TILE_ROWS, budget // self._each)
        self._step = max(1, most // self.rows) if worth else 1

    def _warn(self, needed: int, budget: int) -> None:
        warnings.warn(
            f"the gradients of `{self.name}` take {needed / 2**20:.0f} MiB, of which "
            f"{budget / 2**20:.0f} MiB are held at a time, and {tempfile.gettempdir()} has no room "
            f"for them, so each sample is captured about {1 + (self.turns - 1) / 2:.0f} times. "
            "Raise memory_budget, or give a folder as `cache`: gradients are then captured once.",
            stacklevel=3,
        )

    def __len__(self) -> int:
        return -(-self.count // (self.rows * self._step))

    def __iter__(self) -> Iterator[Block]:
        return self.since(0)

    def since(self, first: int) -> Iterator[Block]:
        """The blocks from number ``first`` on."""
        batches = self.batches() if len(self._kept) < len(self) else iter(())
        for number in range(len(self)):
            some = list(islice(batches, self._step))
            if number >= first:
                yield self._kept.get(number) or self._made(number, some)

    def batches(self) -> Iterator[Batch]:
        """The inputs as they are captured."""
        return samples(self.data, self.rows, self.name)

    def _made(self, number: int, batches: list[Batch]) -> Block:
        rows = sum(batch.rows for batch in batches)
        held = rows * self._each <= self._left
        raw = (self.kernel.block(batch) for batch in batches)
        parts = (block.formed(self.form, spent=True) for block in raw)
        to_disk = self._on_disk and not held
        single = len(batches) == 1 and not to_disk
        block = next(parts) if single else joined(parts, rows, disk_room if to_disk else room)
        last = number == len(self) - 1  # still in hand when the next pass begins
        if held or to_disk or last:
            self._left -= rows * self._each if held else 0
            self._kept[number] = block
        if self.progress is not None:
            self.progress(block.stop, self.count)
        return block


class Held:
    """Rows whose gradients are made once for all that is asked of them: see ``kernel.held``."""

    def __init__(
        self, kernel: GradientKernel, data: Any, budget: int, progress: Progress | None
    ) -> None:
        self.kernel, self.data, self.budget, self.progress = kernel, data, budget, progress
        self._raw: Blocks | None = None
        self._plan: Any = None

    def formed(self, form: str) -> Formed:
        """Their blocks; made anew when the kernel has learned of other ways through the model."""
        if self._raw is None or self._plan is not self.kernel.engine.plan:
            self._raw = Blocks(self.kernel, self.data, "raw", budget=self.budget)
            self._raw.progress = self.progress
            self._plan = self.kernel.engine.plan
        return Formed(self._raw, form)


class Formed(Blocks):
    """Blocks that are kept raw, in another form, which is made in every pass."""

    def __init__(self, raw: Blocks, form: str) -> None:
        vars(self).update(vars(raw))  # all the same but for what a pass yields
        self.raw, self.form = raw, form

    def since(self, first: int) -> Iterator[Block]:
        return (block.formed(self.form) for block in self.raw.since(first))


def pairs(left: Blocks, right: Blocks) -> Iterator[tuple[Block, Block]]:
    """Every pair of blocks; of a data set with itself, half of them: as many of the left at a time
    as the budget allows, and the rest of the data passes by.
    """
    same = left is right
    _warn_of_time(left, right)
    size = -(-len(left) // left.turns)
    for first in range(0, len(left), size):
        group = list(islice(left.since(first), size))
        if same:
            yield from ((one, other) for i, one in enumerate(group) for other in group[i:])
        for other in right.since(first + len(group) if same else 0):
            yield from ((one, other) for one in group)


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
