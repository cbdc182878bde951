"""Rows that may not fit into memory: shards on disk, a memory map, or an array, read in blocks.

    rows = open_rows("train/*.parquet")   # a folder, a capture of `vicinal embed`, Z.npy+y.npy
    for start, block in rows.blocks(4096): ...

The shards' rows are numbered one after the other, in the order of the files' names: this number is
the row's index everywhere. Labels are read when they are asked for; they are what stays in memory.
"""

from __future__ import annotations

import glob
import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vicinal.capture.row_files import KINDS, LAYER, Names, RowFile, open_file
from vicinal.capture.shards import MANIFEST, ShardStore
from vicinal.checks import InputError, as_matrix
from vicinal.files import read_json, reading

DESCRIBED = "embed.json"  # what `vicinal embed` writes beside its shards
Blocks = Iterator[tuple[int, Tensor]]


class Rows(Protocol):
    """What can be read in blocks: rows, their width and kind of number, their labels and ids."""

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def blocks(self, size: int, start: int = 0, stop: int | None = None) -> Blocks:
        """``(first row, rows)``, at most ``size`` rows at a time, in order."""

    def labels(self) -> NDArray[Any] | None:
        """One for each row, or None."""

    def ids(self, start: int, stop: int) -> list[str]:
        """What the rows are called; their numbers where they have no names."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """An array, a tensor or a memory map; of a map only the blocks that are read are in memory.

    >>> [(start, len(block)) for start, block in ArrayRows(np.zeros((5, 2))).blocks(2)]
    [(0, 2), (2, 2), (4, 1)]
    """

    array: Any
    given: Any = None  # labels
    names: Sequence[str] | None = None

    @property
    def width(self) -> int:
        return int(self.array.shape[1] if hasattr(self.array, "shape") else len(self.array[0]))

    @property
    def dtype(self) -> torch.dtype:
        return as_matrix(self.array[:1], "rows", finite=False).dtype

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self, size: int, start: int = 0, stop: int | None = None) -> Blocks:
        stop = len(self) if stop is None else stop
        for at in range(start, stop, size):
            part = self.array[at : min(at + size, stop)]
            part = _copied(part) if isinstance(part, np.memmap) else part
            yield at, as_matrix(part, "rows", finite=False).detach().cpu()

    def labels(self) -> NDArray[Any] | None:
        return None if self.given is None else np.asarray(self.given)

    def ids(self, start: int, stop: int) -> list[str]:
        names = range(start, stop) if self.names is None else self.names[start:stop]
        return [str(name) for name in names]


def _copied(part: np.memmap[Any, Any]) -> NDArray[Any]:
    """A block of a map, whose pages leave the process again; a private map's may hold changes."""
    rows, pages = np.array(part), getattr(part, "_mmap", None)
    if part.mode in ("r", "r+") and pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
    return rows


@dataclass(frozen=True)
class ShardedRows:
    """Files of one width and kind, one after the other."""

    name: str
    files: tuple[RowFile, ...]
    classes: tuple[str, ...] | None = None  # what a capture's labels are called
    names: tuple[str, ...] | None = field(default=None, repr=False)  # what its rows are called

    @property
    def starts(self) -> list[int]:
        return [0, *accumulate(file.rows for file in self.files)]

    @property
    def width(self) -> int:
        return self.files[0].width

    @property
    def dtype(self) -> torch.dtype:
        double = any(file.dtype == "float64" for file in self.files)
        return torch.float64 if double else torch.float32

    def __len__(self) -> int:
        return self.starts[-1]

    def blocks(self, size: int, start: int = 0, stop: int | None = None) -> Blocks:
        """Blocks are filled across files: where they end depends on ``size`` alone."""
        stop, held, at = len(self) if stop is None else stop, list[Tensor](), start
        room = size
        for part in self._stream(size, start, stop):
            while len(part):
                held.append(part[:room])
                part, room = part[room:], room - len(held[-1])
                if room == 0:
                    yield at, torch.cat(held) if len(held) > 1 else held[0]
                    at, held, room = at + size, [], size
        if held:
            yield at, torch.cat(held) if len(held) > 1 else held[0]

    def _stream(self, size: int, start: int, stop: int) -> Iterator[Tensor]:
        starts = self.starts
        for at in range(bisect_right(starts, start) - 1, len(self.files)):
            if starts[at] >= stop:
                return
            row = max(start, starts[at])
            for raw in self.files[at].stream(row - starts[at], size):
                part = torch.from_numpy(raw.astype(_NUMPY[self.dtype], copy=True))[: stop - row]
                _check_finite(part, row - starts[at], self.files[at].path)
                yield part
                row += len(part)
                if row >= stop:
                    return

    def labels(self) -> NDArray[Any] | None:
        parts = [file.labels() for file in self.files]
        have = [part is not None for part in parts]
        if not any(have):
            return None
        if not all(have):
            raise InputError(
                f"{self.files[have.index(True)].path} has labels but "
                f"{self.files[have.index(False)].path} has none. Give all shards labels, or none."
            )
        kinds = [_kind(part) for part in parts if part is not None]
        for at, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise InputError(
                    f"the labels of {self.files[0].path} are {kinds[0]}, those of "
                    f"{self.files[at].path} are {kind}. Use the same names for the same classes."
                )
        whole = np.concatenate([part for part in parts if part is not None])
        return whole if self.classes is None else named_labels(whole, self.classes, self.name)

    def logits(self) -> ShardedRows | None:
        """A softmax head's, as rows of their own, where every shard holds some."""
        keys = [file.keys.logits for file in self.files]
        if None in keys:
            if any(keys):
                lacking = self.files[keys.index(None)].path
                raise InputError(f"{lacking} has no logits, other shards have. Give all, or none.")
            return None
        files = [open_file(file.path, Names(embedding=file.keys.logits)) for file in self.files]
        return ShardedRows(f"logits of {self.name}", _of_one_width(files))

    def ids(self, start: int, stop: int) -> list[str]:
        if self.names is not None:
            return list(self.names[start:stop])
        starts, found = self.starts, list[str]()
        for at, file in enumerate(self.files):
            low, high = max(start, starts[at]), min(stop, starts[at + 1])
            if low < high:
                own = file.ids()
                numbers = map(str, range(low, high))
                found += numbers if own is None else own[low - starts[at] : high - starts[at]]
        return found


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def open_rows(spec: str | Path | Sequence[str | Path], names: Names | None = None) -> ShardedRows:
    """The shards behind a name: a file, a pattern, a folder of shards or of ``vicinal embed``.

    ``Z-*.npy+y-*.npy`` are embeddings and their labels, file by file.
    """
    names = names or Names()
    if not isinstance(spec, (str, Path)):
        return _of([Path(part) for part in spec], names, "shards")
    text, second = str(spec), list[Path | None]()
    path = Path(text)
    if path.is_dir() and (path / MANIFEST).exists():
        return _captured(path, names)
    if not path.exists() and text.count("+") == 1:
        text, other = text.split("+")
        second = list(_files(other))
    first = _files(text)
    if second and len(second) != len(first):
        raise InputError(
            f"{text} names {len(first)} files of embeddings, but there are {len(second)} of labels."
        )
    return _of(first, names, Path(text).name, second)


def _files(text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower().removeprefix(".") in KINDS)
    elif path.exists():
        found = [path]
    else:
        found = sorted(map(Path, glob.glob(text)))
    if not found:
        known = ", ".join(f".{ending}" for ending in KINDS)
        raise InputError(f"no shard at {text}. Give a file, a folder or a pattern of {known}.")
    return found


def _of(
    paths: Sequence[Path], names: Names, name: str, labels: Sequence[Path | None] = ()
) -> ShardedRows:
    beside = labels or [None] * len(paths)
    files = [open_file(p, names, other) for p, other in zip(paths, beside, strict=True)]
    return ShardedRows(name, _of_one_width(files))


def _of_one_width(files: list[RowFile]) -> tuple[RowFile, ...]:
    for file in files:
        if file.width != files[0].width:
            raise InputError(
                f"the shards differ in width: {files[0].path} has {files[0].width} columns, "
                f"{file.path} has {file.width}. They must come from the same model and layer."
            )
    return tuple(files)


def _captured(folder: Path, names: Names) -> ShardedRows:
    """The shards of a finished capture, each known by its checksum before it is read in blocks."""
    store = finished(folder)
    asked = names.embedding or next(iter(store), "")
    files = [path for path, _ in store.whole_files()]
    found = _of(files, names._replace(embedding=asked.removeprefix(LAYER)), folder.name)
    facts = described(folder)
    ids = facts.get("ids", ())
    classes = tuple(facts.get("classes", ())) or None
    return replace(found, classes=classes, names=tuple(ids) if len(ids) == len(found) else None)


def finished(folder: Path) -> ShardStore:
    """The capture in a folder, if it was run to its end."""
    store = ShardStore(folder)
    if not store.complete:
        raise unfinished(folder, store)
    return store


def unfinished(folder: Path, store: ShardStore) -> InputError:
    return InputError(
        f"{folder} is unfinished: {store.rows} rows so far. Run the same embed command again."
    )


def described(folder: Path) -> dict[str, list[str]]:
    """The ids, classes and images that ``embed`` wrote beside its shards, if it did."""
    path, fix = folder / DESCRIBED, "Run the embed command again."
    facts = read_json(path, fix, within=folder) if path.exists() else {}
    found = {name: facts[name] for name in ("classes", "ids", "images") if facts.get(name)}
    with reading(path, fix):
        for name, column in found.items():
            if not isinstance(column, list) or not all(isinstance(v, str) for v in column):
                raise ValueError(f"{name!r} is no list of texts")
    return found


def _kind(labels: NDArray[Any]) -> str:
    if labels.dtype.kind in "biu" or (labels.dtype.kind == "f" and np.isfinite(labels).all()):
        return "numbers"
    if labels.dtype.kind in "US" or all(isinstance(label, str) for label in labels.tolist()):
        return "text"
    return f"of dtype {labels.dtype}"


def named_labels(codes: NDArray[Any], classes: Sequence[str], name: object) -> NDArray[Any]:
    """The classes of a capture by name."""
    if codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= len(classes):
        raise InputError(f"{name}: {DESCRIBED} names {len(classes)} classes; the labels differ.")
    return np.array(classes)[codes]


def _check_finite(part: Tensor, start: int, path: Path) -> None:
    if bool(part.sum().isfinite()):  # then each is; a sum may also overflow
        return
    bad = ~part.isfinite().all(1)
    if bool(bad.any()):
        raise InputError(
            f"row {start + int(bad.int().argmax())} of {path} holds NaN or infinity. Fix the row, "
            "or leave it out. Nothing is imputed."
        )
