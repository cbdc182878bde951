"""Activations on disk: shards of rows and a manifest that tells which of them are whole.

A shard is one safetensors file with a tensor per layer. It is written under a temporary name and
renamed, then the manifest (with its checksum) is; so at any moment the folder holds a manifest that
is true of the shards it names, and work that stopped goes on behind the last of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vicinal.checks import InputError
from vicinal.files import write_atomically

MANIFEST = "manifest.json"
VERSION = 1
_LABELS = "labels"  # stored beside the layers as "labels"; layers are stored as "layer:<name>"


class ShardStore(Mapping[str, Tensor]):
    """A folder of shards, read as ``{layer: (n, d)}``; a layer is read when it is asked for."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)

    @classmethod
    def open_for_writing(cls, folder: str | Path, settings: Mapping[str, Any]) -> ShardStore:
        """The store for ``settings``: a new one, or the one that an earlier run left behind."""
        path = Path(folder)
        if not (path / MANIFEST).exists():
            # Our own partial files may be there: a run that died before its first manifest.
            ours = (".partial", ".lock")
            if path.exists() and any(not p.name.endswith(ours) for p in path.iterdir()):
                raise InputError(
                    f"folder {str(path)!r} is not empty and holds no capture. Pass another folder."
                )
            path.mkdir(parents=True, exist_ok=True)
            _write_manifest(
                path, {"version": VERSION, "settings": settings, "shards": [], "complete": False}
            )
        store = cls(path)
        _check_same_settings(store.manifest["settings"], dict(settings), path)
        store._drop_damaged()
        return store

    @property
    def rows(self) -> int:
        return sum(shard["rows"] for shard in self.manifest["shards"])

    @property
    def complete(self) -> bool:
        return bool(self.manifest["complete"])

    @property
    def labels(self) -> Tensor | None:
        return self._column(_LABELS) if self.manifest["settings"].get("labels") else None

    def append(self, layers: Mapping[str, Tensor], labels: Tensor | None) -> None:
        """Write the next shard; it counts only once the manifest names it."""
        tensors = {f"layer:{name}": value.contiguous() for name, value in layers.items()}
        if labels is not None:
            tensors[_LABELS] = labels.contiguous()
        shards = self.manifest["shards"]
        name = f"shard-{len(shards):05d}.safetensors"
        data = save(tensors)
        write_atomically(self.folder / name, data)
        digest = hashlib.sha256(data).hexdigest()
        rows = len(next(iter(tensors.values())))
        self._update(shards=[*shards, {"file": name, "rows": rows, "sha256": digest}])

    def finish(self) -> None:
        self._update(complete=True)

    def __getitem__(self, layer: str) -> Tensor:
        if layer not in self.manifest["settings"]["layers"]:
            raise KeyError(layer)
        return self._column(f"layer:{layer}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest["settings"]["layers"])

    def __len__(self) -> int:
        return len(self.manifest["settings"]["layers"])

    def _column(self, key: str) -> Tensor:
        parts = []
        for shard in self.manifest["shards"]:
            with safe_open(self.folder / shard["file"], framework="pt") as file:
                parts.append(file.get_tensor(key))
        return torch.cat(parts) if parts else torch.empty(0)

    def _drop_damaged(self) -> None:
        """Keep the shards up to the first whose file is missing or has another checksum."""
        whole = []
        for shard in self.manifest["shards"]:
            path = self.folder / shard["file"]
            if not path.exists() or _sha256(path) != shard["sha256"]:
                break
            whole.append(shard)
        if len(whole) < len(self.manifest["shards"]):
            self._update(shards=whole, complete=False)

    def _update(self, **changes: Any) -> None:
        self.manifest = {**self.manifest, **changes}
        _write_manifest(self.folder, self.manifest)


def _check_same_settings(kept: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    changed = [key for key in asked if kept.get(key) != asked[key]]
    if changed:
        key = changed[0]
        raise InputError(
            f"folder {str(folder)!r} holds another capture: its {key} is {kept.get(key)!r}, now "
            f"{asked[key]!r}. Pass another folder, or remove this one to start anew."
        )


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"no capture in {str(folder)!r}: {MANIFEST} is missing.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is damaged ({error}). Remove the folder.") from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise InputError(f"{str(path)!r} is not a capture this version of vicinal can read.")
    return manifest


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
