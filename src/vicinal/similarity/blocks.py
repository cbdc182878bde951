"""A data set as blocks of gradients: kept while they fit the memory budget, else read or made
again.

On disk there is one shard per batch, found again by what it was made from: its name is the
fingerprint of the model's weights, the chosen parameters, what f is, the batch and its place in the
data. So a stopped run goes on where it stopped, and other weights never meet old gradients. A shard
that is not whole is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from vicinal.capture.batches import Batch, row_count, samples
from vicinal.capture.shards import read_shard, write_shard
from vicinal.checks import InputError
from vicinal.files import fingerprint
from vicinal.similarity.engine import Engine
from vicinal.similarity.factors import Dense, Factor, Places, mixed, select
from vicinal.similarity.outputs import describe
from vicinal.similarity.whitening import Whitening

if TYPE_CHECKING:
    from vicinal.similarity.kernel import GradientKernel

WORKING_BYTES = 96 << 20  # of factors and patches while one block is made


@dataclass(frozen=True)
class Block:
    """The gradients of some consecutive samples.

    ``factors`` times ``scale(x)`` are one of these forms: ``raw`` G; ``white`` K^-½ G;
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
        root, scale = self.whitening.root, None
        if form in ("unit", "sum"):
            root = self.unit_root()
        elif form == "dual":
            root = root @ root
            scale = None if self.scale is None else 1 / self.scale
        if root.shape[-1] == 1:
            alone = root[:, 0, 0].to(self.outputs.dtype)
            return replace(self, scale=alone if scale is None else alone * scale)
        if form == "sum":
            return replace(
                self,
                factors=[
                    f.to_mix(root) if isinstance(f, Dense) else f.mixed(root) for f in self.factors
                ],
                scale=None,
            )
        return replace(self, factors=mixed(self.factors, root), scale=scale)

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
        each = kernel.bytes_each(sample)
        room = min(WORKING_BYTES, kernel.memory_budget // 8)
        self.rows = max(1, min(1024, room // (4 * max(each, 1))))
        self._fits = each * self.count <= budget

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
        raw = self.kernel.block(batch)
        block = raw.formed(self.form)
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


def all_pairs(left: Blocks, right: Blocks, tile: Callable[[Block, Block], Tensor]) -> Tensor:
    """``tile`` of every pair of blocks as one matrix; of a data set with itself, half of them."""
    same = left is right
    out: Tensor | None = None
    for i, one in enumerate(left):
        for other in right.since(i if same else 0):
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
    if len(block) <= 256:
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


class FactorStore:
    """A folder of captured batches."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.made = 0  # batches captured, not read
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, batch: Batch) -> tuple[Tensor, list[Factor]]:
        """f and the factors of a batch: read, or captured and written."""
        path = self.folder / f"{batch_key(engine_key(self.engine), batch)}.safetensors"
        shard = read_shard(path)
        if shard is not None:
            return shard.tensors["outputs"], unpacked(shard.tensors, shard.facts)
        captured = self.engine.capture(batch.x, batch.labels, start=batch.start)
        self.made += 1
        tensors, layout = packed(captured.factors)
        write_shard(path, {**tensors, "outputs": captured.outputs}, layout)
        return captured.outputs, captured.factors


def engine_key(engine: Engine) -> str:
    """The fingerprint of all that gradients depend on but the data."""
    lessons = () if engine.plan is None else engine.plan.lessons
    learned = [name for group in lessons for name in (*sorted(group), "")]
    return fingerprint(
        describe(engine.outputs), *engine.selected, *learned, engine.model.state_dict()
    )


def batch_key(engine: str, batch: Batch) -> str:
    """The fingerprint of a batch's gradients, before they are made."""
    labels = () if batch.labels is None else (batch.labels,)
    return fingerprint(engine, batch.start, batch.x, *labels)[:32]


def packed(factors: Sequence[Factor]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Factors as tensors by name, and how they go together in plain values."""
    tensors = {f"{i}.{n}": t for i, f in enumerate(factors) for n, t in f.tensors().items()}
    rest = [{k: v for k, v in vars(f).items() if not isinstance(v, Tensor)} for f in factors]
    return tensors, rest


def unpacked(tensors: Mapping[str, Tensor], layout: Sequence[Mapping[str, Any]]) -> list[Factor]:
    """What :func:`packed` took apart."""
    factors: list[Factor] = []
    for i, plain in enumerate(layout):
        fields = {**plain, "shape": tuple(plain["shape"])}
        if "weight" in fields:
            fields["one"] = tensors.get(f"{i}.one")
            factors.append(Places(tensors[f"{i}.a"], tensors[f"{i}.b"], **fields))
        else:
            factors.append(Dense(tensors[f"{i}.g"], **fields))
    return factors
