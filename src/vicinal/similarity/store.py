"""Captured gradients on disk, one shard per batch, found again by what it was made from.

A shard's name is the fingerprint of the model's weights, the chosen parameters, what f is, the
batch and its place in the data. So a stopped run goes on where it stopped, and other weights never
meet old gradients. A shard that is not whole is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vicinal.capture.batches import Batch
from vicinal.capture.shards import read_shard, write_shard
from vicinal.files import fingerprint
from vicinal.similarity.engine import Engine
from vicinal.similarity.factors import Dense, Factor
from vicinal.similarity.normed import Normed, NormedRows
from vicinal.similarity.outputs import describe
from vicinal.similarity.places import Places

FORM = "2"  # counts up where a layer's gradients are kept in another form than before


class FactorStore:
    """A folder of captured batches."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.made = 0  # batches captured, not read
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, batch: Batch) -> tuple[Tensor, list[Factor]]:
        """f and the factors of a batch: read, or captured and written."""
        path = self.folder / f"{self.key(batch)}.safetensors"
        shard = read_shard(path)
        if shard is not None:
            return shard.tensors["outputs"], unpacked(shard.tensors, shard.facts)
        captured = self.engine.capture(batch.x, batch.labels, start=batch.start)
        self.made += 1
        tensors, layout = packed(captured.factors)
        write_shard(path, {**tensors, "outputs": captured.outputs}, layout)
        return captured.outputs, captured.factors

    def key(self, batch: Batch) -> str:
        """What a batch's shard is called."""
        return batch_key(engine_key(self.engine), batch)


def engine_key(engine: Engine) -> str:
    """The fingerprint of all that gradients depend on but the data."""
    changes = () if engine.plan is None else engine.plan.changes
    learned = [name for group in changes for name in (*sorted(group), "")]
    return fingerprint(
        FORM, describe(engine.outputs), *engine.selected, *learned, engine.model.state_dict()
    )


def batch_key(engine: str, batch: Batch) -> str:
    """The fingerprint of a batch's gradients, before they are made."""
    labels = () if batch.labels is None else (batch.labels,)
    return fingerprint(engine, batch.start, batch.x, *labels)[:32]


def packed(factors: Sequence[Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Factors as tensors by name, and how they go together in plain values."""
    tensors = {f"{i}.{n}": t for i, f in enumerate(factors) for n, t in f.tensors().items()}
    rows = {i: f.rows for i, f in enumerate(factors) if isinstance(f, Normed)}
    tensors |= {f"{i}.{n}": t for i, held in rows.items() for n, t in held._asdict().items()}
    rest = [
        {k: v for k, v in vars(f).items() if not isinstance(v, (Tensor, NormedRows))}
        for f in factors
    ]
    return tensors, rest


def unpacked(tensors: Mapping[str, Tensor], layout: Sequence[Mapping[str, Any]]) -> list[Factor]:
    """What :func:`packed` took apart."""
    factors: list[Factor] = []
    for i, plain in enumerate(layout):
        if f"{i}.s" in tensors:
            a, b, s, *rows = (tensors[f"{i}.{n}"] for n in ("a", "b", "s", *NormedRows._fields))
            normed: Any = Normed(a, b, s, NormedRows(*rows))
            factors.append(normed)
            continue
        fields = {**plain, "shape": tuple(plain["shape"])}
        if "vocabulary" in fields:
            factors.append(Places(tensors[f"{i}.a"], tensors[f"{i}.b"], **fields))
        else:
            factors.append(Dense(tensors[f"{i}.g"], **fields))
    return factors
