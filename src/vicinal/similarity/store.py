r"""Gradients on disk: one safetensors file per batch, found again by what it was made from.

The name of a file is the hash of the model's weights, the chosen parameters, what f is, the batch
and its place in the data, so a stopped run goes on where it stopped, and other weights never meet
old gradients. Files carry a checksum of their tensors; one that does not match is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vicinal.similarity.batches import Batch, fingerprint
from vicinal.similarity.engine import Engine
from vicinal.similarity.factors import Dense, Factor, Places
from vicinal.similarity.outputs import describe


class FactorStore:
    """A folder of captured batches."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.made = 0  # batches captured, not read
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, batch: Batch, start: int) -> tuple[Tensor, list[Factor]]:
        """f and the factors of a batch: read, or captured and written."""
        path = self.folder / f"{self._key(batch, start)}.safetensors"
        found = _read(path)
        if found is None:
            captured = self.engine.capture(batch.x, batch.target)
            found = captured.outputs, captured.factors
            self.made += 1
            _write(path, *found)
        return found

    def _key(self, batch: Batch, start: int) -> str:
        digest = hashlib.sha256(json.dumps([start, describe(self.engine.outputs)]).encode())
        digest.update(json.dumps(list(self.engine.selected)).encode())
        for tensor in self.engine.model.state_dict().values():
            digest.update(fingerprint(Batch(tensor, None)))
        digest.update(fingerprint(batch))
        return digest.hexdigest()[:32]


def _write(path: Path, outputs: Tensor, factors: list[Factor]) -> None:
    tensors = {"outputs": outputs.contiguous()}
    layout: list[dict[str, Any]] = []
    for i, factor in enumerate(factors):
        tensors |= {f"{i}.{k}": v.detach().contiguous() for k, v in factor.tensors().items()}
        if isinstance(factor, Places):
            fields = {k: getattr(factor, k) for k in ("weight", "bias", "vocabulary", "shape")}
            layout.append({"kind": "places", **fields})
        else:
            layout.append({"kind": "dense", "shape": factor.shape})
    metadata = {"layout": json.dumps(layout), "checksum": _checksum(tensors)}
    partial = path.with_suffix(f".{os.getpid()}.partial")
    # One tensor may be the input of two layers; safetensors wants each to own its memory.
    save_file({k: v.clone() for k, v in tensors.items()}, partial, metadata)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _read(path: Path) -> tuple[Tensor, list[Factor]] | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
    except Exception:  # safetensors raises its own error on a cut-off file; any such file is remade
        return None
    if metadata is None or metadata.get("checksum") != _checksum(tensors):
        return None
    factors: list[Factor] = []
    for i, fields in enumerate(json.loads(metadata["layout"])):
        shape = tuple(fields["shape"])
        if fields["kind"] == "dense":
            factors.append(Dense(tensors[f"{i}.g"], shape))
        else:
            a, b = tensors[f"{i}.a"], tensors[f"{i}.b"]
            factors.append(
                Places(a, b, fields["weight"], fields["bias"], fields["vocabulary"], shape)
            )
    return tensors["outputs"], factors


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(fingerprint(Batch(tensors[name], None)))
    return digest.hexdigest()
