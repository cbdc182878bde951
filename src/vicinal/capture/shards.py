"""Tensors on disk in shards: activations, gradients and sketches, in one format.

A shard is one safetensors file that carries the fingerprint of its tensors. It appears whole or not
at all, and one that was cut off or changed is known by its fingerprint and made again.

A :class:`ShardStore` is a folder of shards in the order of rows with a manifest, written after each
shard: at any moment the manifest is true of the shards it names, and work that stopped goes on
behind the last of them. The manifest carries our own mark, and is checked before it is believed: a
folder of somebody else's is left alone, a shard lies in its folder and nowhere else, and what is
read from it has the checksum that was written down. Where shards are found by what they were made
from (gradients, sketches), their names are fingerprints and no manifest is needed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from vicinal.checks import InputError
from vicinal.files import (
    PARTIAL,
    fingerprint,
    read_json,
    reading,
    regular_file,
    sweep,
    utf8_name,
    write_atomically,
    writing,
)

MANIFEST = "manifest.json"
FORMAT = "vicinal-capture"  # our mark: other programs have a manifest.json too
VERSION = 2
AGAIN = "Remove the folder, and make the capture again."
_READABLE = (1, VERSION)  # version 1 had its checksums in the manifest alone
_LABELS = "labels"  # stored beside the layers as "labels"; layers are stored as "layer:<name>"
_HEADER = "vicinal"  # one entry of the file's metadata: safetensors orders several as it likes


class Shard(NamedTuple):
    """The tensors of one file, and what was written beside them."""

    tensors: dict[str, Tensor]
    facts: Any
    checksum: str


def write_shard(path: Path, tensors: Mapping[str, Tensor], facts: Any = None) -> str:
    """Write the tensors and plain ``facts`` about them; returns the fingerprint they are known by.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checksum = write_shard(Path(folder, "a"), {"x": torch.ones(2)}, {"rows": 2})
    ...     shard = read_shard(Path(folder, "a"))
    >>> shard.tensors["x"].tolist(), shard.facts, shard.checksum == checksum
    ([1.0, 1.0], {'rows': 2}, True)
    """
    # One tensor may stand under two names; safetensors wants each to own its memory.
    owned = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    checksum = fingerprint(owned)
    header = json.dumps({"checksum": checksum, "facts": facts})
    write_atomically(path, save(owned, {_HEADER: header}))
    return checksum


def read_shard(path: Path) -> Shard | None:
    """The shard at ``path``; None if there is none, or it is not what was written."""
    try:
        with utf8_name(path) as name, safe_open(name, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            header = json.loads((file.metadata() or {})[_HEADER])
        if header["checksum"] != fingerprint(tensors):
            return None
        return Shard(tensors, header["facts"], header["checksum"])
    except Exception:  # whatever it is, it is not what was written
        return None


def load_shard(path: Path) -> dict[str, Tensor]:
    """The tensors of a shard that was found whole before, without asking again."""
    with utf8_name(path) as name:
        return load_file(name)


class ShardStore(Mapping[str, Tensor]):
    """A folder of shards, read as ``{layer: (n, d)}``; a layer is read when it is asked for."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self._whole: set[str] = set()  # shards whose checksum was found right

    @classmethod
    def open_for_writing(cls, folder: str | Path, settings: Mapping[str, Any]) -> ShardStore:
        """The store for ``settings``: a new one, or the one that an earlier run left behind."""
        path = Path(folder)
        if not (path / MANIFEST).exists():
            # Our own partial files may be there: a run that died before its first manifest.
            ours = (PARTIAL, ".lock")
            if path.exists() and any(not p.name.endswith(ours) for p in path.iterdir()):
                raise InputError(
                    f"folder {str(path)!r} is not empty and holds no capture. Pass another folder."
                )
            with writing(path):
                path.mkdir(parents=True, exist_ok=True)
            start = {"format": FORMAT, "version": VERSION, "settings": settings}
            _write_manifest(path, {**start, "shards": [], "complete": False})
        store = cls(path)
        sweep(path)
        if store.manifest["version"] != VERSION:
            raise InputError(
                f"folder {str(path)!r} holds a capture of an older version of vicinal, which can "
                "be read but not gone on with. Pass another folder, or remove this one."
            )
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
        tensors = {f"layer:{name}": value for name, value in layers.items()}
        if labels is not None:
            tensors[_LABELS] = labels
        shards = self.manifest["shards"]
        name = f"shard-{len(shards):05d}.safetensors"
        checksum = write_shard(self.folder / name, tensors)
        rows = len(next(iter(tensors.values())))
        self._update(shards=[*shards, {"file": name, "rows": rows, "checksum": checksum}])

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

    def whole_files(self) -> Iterator[tuple[Path, int]]:
        """Each shard's file and its rows, in order, after a look at its checksum."""
        for shard in self.manifest["shards"]:
            path = regular_file(self.folder / shard["file"], "shard", within=self.folder)
            with reading(path, AGAIN):
                if not self._is_whole(shard):
                    raise ValueError("it was damaged or changed after it was written")
            yield path, shard["rows"]

    def _column(self, key: str) -> Tensor:
        parts = []
        for path, rows in self.whole_files():
            with reading(path, AGAIN):
                with utf8_name(path) as name, safe_open(name, framework="pt") as file:
                    part = file.get_tensor(key)
                if len(part) != rows:
                    raise ValueError(f"{len(part)} rows of {key!r} instead of {rows}")
                parts.append(part)
        with reading(self.folder, AGAIN):
            return torch.cat(parts) if parts else torch.empty(0)

    def _is_whole(self, shard: Mapping[str, Any]) -> bool:
        """Is it what was written? Looked at once for each shard."""
        path = self.folder / shard["file"]
        if shard["file"] in self._whole:
            return True
        if "sha256" in shard:  # version 1
            right = hashlib.sha256(path.read_bytes()).hexdigest() == shard["sha256"]
        else:
            found = read_shard(path)
            right = found is not None and found.checksum == shard["checksum"]
        self._whole |= {shard["file"]} if right else set()
        return right

    def _drop_damaged(self) -> None:
        """Keep the shards up to the first whose file is missing or has another checksum."""
        shards = self.manifest["shards"]
        whole = list(itertools.takewhile(self._is_whole, shards))
        if len(whole) < len(shards):
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


def is_capture(folder: Path) -> bool:
    """Whether the folder holds a capture of ours, finished or not."""
    try:
        _read_manifest(folder)
    except InputError:
        return False
    return True


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"no capture in {str(folder)!r}: {MANIFEST} is missing.")
    manifest = read_json(path, AGAIN, within=folder)
    wrong = _fault_of(manifest)
    if wrong:
        raise InputError(
            f"{str(path)!r} is not a capture this version of vicinal can read: {wrong}. "
            "Give a folder of `vicinal embed` or capture(to=...)."
        )
    return manifest


def _fault_of(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest before it is believed; None: nothing."""
    if manifest.get("format", FORMAT) != FORMAT or manifest.get("version") not in _READABLE:
        return "it bears another mark or version"
    settings, shards = manifest.get("settings"), manifest.get("shards")
    if not isinstance(settings, dict) or not _are(settings.get("layers"), str):
        return "its settings name no layers"
    if not isinstance(manifest.get("complete"), bool) or not _are(shards, dict):
        return "it lists no shards"
    for at, shard in enumerate(shards or ()):
        if not re.fullmatch(r"shard-\d{5,}\.safetensors", str(shard.get("file"))):
            return f"shard {at} has a name that we do not give"
        if type(shard.get("rows")) is not int or shard["rows"] < 1:
            return f"shard {at} has no number of rows"
        if not isinstance(shard.get("checksum", shard.get("sha256")), str):
            return f"shard {at} has no checksum"
    return None


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))
