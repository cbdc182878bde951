r"""A small index of gradients on disk, asked for by name and with its error measured.

The exact kernel is faster than any projection while factors fit in memory. To keep millions of
samples on disk, each layer's whitened gradient ``G = Σ_t b_t a_tᵀ``, seen as a matrix of (outputs x
features out) by (features in), is projected from both sides without being formed:

    ``S_B G S_Aᵀ = Σ_t (S_B b_t) (S_A a_t)ᵀ``,   ``E ⟨S_B G S_Aᵀ, S_B G' S_Aᵀ⟩ = ⟨G, G'⟩``

with Gaussian ``S_A, S_B`` of ``dim`` rows (a side no wider than that is kept as it is). The rows
are scaled to norm 1, so a sample's similarity to itself is 1. :attr:`SketchedIndex.error` is
measured against the exact kernel on some of the samples each time an index is built.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.capture.batches import Batch
from vicinal.capture.shards import load_shard, read_shard, write_shard
from vicinal.checks import InputError, check_k
from vicinal.files import fingerprint, reading, write_atomically
from vicinal.similarity.block import Block
from vicinal.similarity.density import TopK, best_of, joined_topk
from vicinal.similarity.factors import Dense, Factor
from vicinal.similarity.kernel import GradientKernel
from vicinal.similarity.normed import Normed
from vicinal.similarity.outputs import Contrast
from vicinal.similarity.places import Places
from vicinal.similarity.store import batch_key, engine_key


class SketchError(NamedTuple):
    """Sketched minus exact k^C over pairs of a sample: root mean square and largest."""

    rms: float
    largest: float
    pairs: int


def gaussian(width: int, dim: int, seed: int) -> Float[Tensor, "dim width"] | None:
    """``S`` with ``E SᵀS = Id``; None, the identity, where there is nothing to save."""
    if width <= dim:
        return None
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(dim, width, generator=rng, dtype=torch.float64) / math.sqrt(dim)


def sketch(factor: Factor, dim: int, seed: int) -> Float[Tensor, "n s"]:
    """``S_B G S_Aᵀ`` of each sample, flat.

    >>> g = Dense(torch.ones(2, 1, 9))
    >>> torch.equal(sketch(g, 3, 0), torch.ones(2, 9)), sketch(g, 2, 0).shape
    (True, torch.Size([2, 4]))
    """
    if isinstance(factor, Dense):
        flat = factor.g.flatten(1)
        side = math.ceil(math.sqrt(flat.shape[1]))  # any matrix of the numbers will do
        rows = -(-flat.shape[1] // side)
        flat = torch.nn.functional.pad(flat, (0, rows * side - flat.shape[1]))
        g = flat.view(len(flat), rows, side)
        right, left = gaussian(side, dim, 2 * seed), gaussian(rows, dim, 2 * seed + 1)
        g = g if right is None else g @ right.to(g).T
        return (g if left is None else left.to(g) @ g).flatten(1)
    b = factor.b.flatten(2)
    left = gaussian(b.shape[-1], dim, 2 * seed + 1)
    b = b if left is None else b @ left.to(b).T
    places = factor.map() if isinstance(factor, Normed) else factor.folded()
    found = b.mT @ _inputs(places, dim, 2 * seed)
    if isinstance(factor, Normed):  # and Σ_o (S_B e_o) along_o (S_A v̂_o)ᵀ
        along, unit = factor.along().flatten(1), factor.rows.unit.repeat(factor.s.shape[1], 1)
        right = gaussian(unit.shape[1], dim, 2 * seed)
        own = along[:, :, None] * (unit if right is None else unit @ right.to(unit).T)
        found = found + (own if left is None else left.to(own) @ own)
    return found.flatten(1)


def _inputs(factor: Places, dim: int, seed: int) -> Float[Tensor, "n t s"]:
    """``S_A a`` at every place."""
    right = gaussian(factor.vocabulary or factor.a.shape[-1], dim, seed)
    if factor.vocabulary and right is None:
        return torch.nn.functional.one_hot(factor.a, factor.vocabulary).to(factor.b)
    if right is None:
        return factor.a
    right = right.to(factor.b).T
    return right[factor.a] if factor.vocabulary else factor.a @ right


class SketchedIndex:
    """Nearest samples by k^C from sketched gradients on disk.

    * ``dim``: rows of either projection; a layer takes at most ``dim²`` numbers per sample, and
      the error falls as ``1 / dim`` to ``1 / √dim``.
    * ``generator``: draws the projections; the same seed finds its files again.

    >>> import tempfile
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    >>> x = torch.randn(50, 8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = SketchedIndex(GradientKernel(model), dim=8).build(x, folder)
    ...     found = index.topk(x[:3], k=2)
    >>> found.indices[:, 0].tolist(), index.error.rms < 0.5
    ([0, 1, 2], True)
    """

    def __init__(
        self, kernel: GradientKernel, *, dim: int = 32, generator: torch.Generator | None = None
    ) -> None:
        if dim < 1:
            raise InputError(f"`dim` must be at least 1, got {dim}.")
        if isinstance(kernel.outputs, Contrast) and kernel.outputs.kind == "sampled":
            raise InputError(
                "an index cannot hold sampled adversaries: a query's would be drawn by its place "
                'among the queries. Use outputs=Contrast("rest").'
            )
        rng = generator if generator is not None else torch.Generator().manual_seed(0)
        self.kernel, self.dim = kernel, dim
        self.seed = int(torch.randint(2**40, (1,), generator=rng))
        self.error = SketchError(math.nan, math.nan, 0)
        self._folder: Path | None = None
        self._shards: list[str] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def build(self, data: Any, folder: str | Path, *, sample: int = 64) -> SketchedIndex:
        """Sketch every row of ``data`` to ``folder``; files of a stopped build are taken over."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        blocks = self.kernel.blocks(data, "unit")
        wanted = _spread(blocks.count, sample)
        engine, names, kept, targets = engine_key(self.kernel.engine), [], [], []
        for batch in blocks.batches():
            names.append(self._shard(batch, engine))
            here = [i - batch.start for i in wanted if batch.start <= i < batch.start + batch.rows]
            if not isinstance(batch.x, Tensor):
                raise InputError("an index takes inputs that are one tensor: wrap the model so.")
            kept.append(batch.x[here])
            targets += [] if batch.labels is None else [batch.labels[here]]
        self._shards, self._count = names, blocks.count
        x = torch.cat(kept)
        self.error = self._measure((x, torch.cat(targets)) if targets else x, wanted)
        self._write_manifest(engine)
        return self

    @classmethod
    def open(cls, kernel: GradientKernel, folder: str | Path) -> SketchedIndex:
        """An index built before, for the same weights."""
        path = Path(folder) / "index.json"
        if not path.exists():
            raise InputError(f"`folder` holds no finished index: {path} is missing. Build it.")
        with reading(path, "Build the index again."):
            found = json.loads(path.read_text())
            index = cls(kernel, dim=found["dim"])
            index.seed, index._count, index._shards = found["seed"], found["count"], found["shards"]
            index.error, index._folder = SketchError(*found["error"]), Path(folder)
            if not all(re.fullmatch(r"rows-[0-9a-f]{24}\.safetensors", n) for n in index._shards):
                raise ValueError("a shard has a name that we do not give")
        if found["model"] != engine_key(kernel.engine):
            raise InputError(
                "the index was built from other weights, parameters or outputs than the kernel's. "
                "Open it with the kernel it was built from, or build it anew."
            )
        return index

    def topk(self, queries: Any, k: int) -> TopK:
        """The k indexed rows most similar to each query, by the sketch."""
        check_k(k, len(self), "k", "the index")
        blocks = self.kernel.blocks(queries, "unit", name="queries")
        return joined_topk([best_of(self._tiles(block), k) for block in blocks])

    def _tiles(self, block: Block) -> Iterator[tuple[int, Float[Tensor, "q m"]]]:
        asked = self._rows(block)
        for start, rows, target in self._read():
            found = asked @ rows.to(asked).T
            if self.kernel.within_class:
                assert target is not None
                assert block.target is not None
                found = found * (block.target[:, None] == target.to(asked.device)[None])
            yield start, found

    def _rows(self, block: Block) -> Float[Tensor, "n s"]:
        """Unit sketches; a sample without a gradient stays zero."""
        parts = [sketch(f, self.dim, self.seed + i) for i, f in enumerate(block.factors)]
        flat = torch.cat(parts, 1)
        if block.scale is not None:
            flat = flat * block.scale[:, None]
        return torch.nn.functional.normalize(flat.detach(), dim=1)

    def _shard(self, batch: Batch, engine: str) -> str:
        """The shard of one batch: there already, or made and written."""
        assert self._folder is not None
        key = fingerprint(batch_key(engine, batch), self.seed, self.dim)
        name = f"rows-{key[:24]}.safetensors"
        if read_shard(self._folder / name) is None:
            block = self.kernel.block(batch).formed("unit", spent=True)
            target = {} if block.target is None else {"target": block.target}
            write_shard(self._folder / name, {"rows": self._rows(block), **target})
        return name

    def _read(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        assert self._folder is not None
        start = 0
        for name in self._shards:
            tensors = load_shard(self._folder / name)
            yield start, tensors["rows"], tensors.get("target")
            start += len(tensors["rows"])

    def _measure(self, sample: Any, wanted: list[int]) -> SketchError:
        """On pairs of the sampled rows, against the exact kernel."""
        exact = self.kernel.gram(sample).detach().double()
        rows = [r[[i - s for i in wanted if s <= i < s + len(r)]] for s, r, _ in self._read()]
        chosen = torch.cat(rows).double().to(exact.device)
        found = chosen @ chosen.T
        if self.kernel.within_class:
            target = sample[1].to(exact.device)
            found = found * (target[:, None] == target[None])
        upper = torch.triu_indices(len(found), len(found), 1)
        off = (found - exact)[upper[0], upper[1]]
        if not len(off):
            return SketchError(0.0, 0.0, 0)
        return SketchError(float(off.square().mean().sqrt()), float(off.abs().max()), len(off))

    def _write_manifest(self, engine: str) -> None:
        assert self._folder is not None
        record = {
            "model": engine, "dim": self.dim, "seed": self.seed, "count": self._count,
            "error": list(self.error), "shards": self._shards,
        }  # fmt: skip
        write_atomically(self._folder / "index.json", json.dumps(record, indent=1) + "\n")


def _spread(count: int, sample: int) -> list[int]:
    """``sample`` row numbers evenly over the data, without repeats."""
    size = min(count, max(sample, 1))
    return [i * count // size for i in range(size)]
