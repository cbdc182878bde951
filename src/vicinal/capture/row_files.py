"""One file of rows, read in blocks and never whole: ``.npy``, ``.npz``, ``.parquet``, safetensors.

A file is opened for its heading alone (rows, width, kind of number); rows are streamed from any row
on, labels and ids are read when they are asked for. Nothing is kept open, so a file may be sent to
another process, which then reads it there.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import safe_open

from vicinal.checks import InputError, did_you_mean
from vicinal.files import arrow, reading, regular_file, utf8_name

# The names under which people keep embeddings, labels, ids and a softmax head's logits.
EMBEDDING_KEYS = ("embeddings", "embedding", "Z", "z", "X", "x", "features", "feat", "data")
LABEL_KEYS = ("y", "labels", "label", "targets", "target", "class")
ID_KEYS = ("ids", "id", "names", "name")
LOGIT_KEYS = ("logits", "scores")
LAYER = "layer:"  # how a capture names the tensor of a layer
_PICKLE = "it holds Python objects (pickle), which is refused for safety"


class NoSuchKey(InputError):
    """A file lacks a key that was asked for."""


class Names(NamedTuple):
    """Which key or column holds what, where the usual names do not."""

    embedding: str | None = None
    label: str | None = None
    id: str | None = None
    logits: str | None = None


@dataclass(frozen=True)
class RowFile:
    """What the heading says. ``keys``: where embeddings, labels and ids are; None: there are none.

    ``labels_path``: another file that holds the labels, for ``.npy``.
    """

    path: Path
    kind: str
    rows: int
    width: int
    dtype: str
    keys: Names
    stamp: tuple[int, int]  # size and time: a file that changes between two blocks is noticed
    labels_path: Path | None = None

    def stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Rows from ``start`` on, at most ``size`` at a time, in order."""
        self._check_same()
        with reading(self.path):
            yield from _KINDS[self.kind].stream(self.path, self.keys.embedding or "", start, size)

    def labels(self) -> NDArray[Any] | None:
        if self.labels_path is not None:
            return _column_of(self.labels_path, "npy", "", self.rows)
        return self._column(self.keys.label)

    def ids(self) -> list[str] | None:
        found = self._column(self.keys.id)
        return None if found is None else [str(name) for name in found.tolist()]

    def _column(self, key: str | None) -> NDArray[Any] | None:
        return None if key is None else _column_of(self.path, self.kind, key, self.rows)

    def _check_same(self) -> None:
        if _stamp(regular_file(self.path, "shard")) != self.stamp:
            raise InputError(
                f"{self.path} changed after it was opened. Leave the shards alone while they are "
                "read, and run the command again."
            )


def open_file(path: Path, names: Names, labels_path: Path | None = None) -> RowFile:
    """The heading of one shard, checked before it is believed."""
    kind = regular_file(path, "shard").suffix.lower().removeprefix(".")
    if kind not in _KINDS:
        known = ", ".join(f".{ending}" for ending in _KINDS)
        raise InputError(f"cannot read {path} in blocks: its ending is none of {known}.")
    with reading(path):
        shapes = _KINDS[kind].shapes(path)
        keys = _keys(path, shapes, names)
        (rows, *rest), called = shapes[keys.embedding or ""]
        dtype = np.dtype(called)
    if rows == 0:
        raise InputError(f"{path} is an empty shard: it has no row. Remove it.")
    if len(rest) != 1 or rest[0] == 0:
        raise InputError(
            f"{path} has embeddings of shape {(rows, *rest)}; it must be one row of numbers per "
            "sample."
        )
    if dtype.kind not in "biuf":
        raise InputError(f"{path} holds {dtype}, not numbers. Name the column of the embeddings.")
    wide = "float64" if dtype == np.float64 else "float32"
    return RowFile(path, kind, rows, rest[0], wide, keys, _stamp(path), labels_path)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _keys(path: Path, shapes: Mapping[str, Any], names: Names) -> Names:
    """The keys the user named, or the first usual ones."""
    if set(shapes) == {""}:  # a file of one array
        return Names("")
    layers = {key.removeprefix(LAYER): key for key in shapes if key.startswith(LAYER)}
    asked = layers.get(names.embedding or "", names.embedding)
    vector = picked(shapes, asked, (*EMBEDDING_KEYS, *layers.values()), path)
    if vector is None:
        raise InputError(
            f"{path} has no 'embeddings' (keys: {', '.join(shapes)}). Name it: --embedding-key."
        )
    label = picked(shapes, names.label, LABEL_KEYS, path)
    id_ = picked(shapes, names.id, ID_KEYS, path)
    wide = [key for key in LOGIT_KEYS if key != vector and len(shapes.get(key, ((),))[0]) == 2]
    return Names(vector, label, id_, next(iter(wide), None))


def picked(
    known: Iterable[str], asked: str | None, usual: Iterable[str], where: object, flag: str = ""
) -> str | None:
    """The key that was asked for, which must be there, or the first usual one.

    Parameters
    ----------
    known : the keys or columns that there are.
    asked : what the user calls it, if it was said.
    usual : the names under which it is looked for otherwise.
    where : the file, for the sentence.
    flag : how the name is given, if it is not the name alone.
    """
    if asked is None:
        return next((key for key in usual if key in known), None)
    if asked not in known:
        hint = did_you_mean(asked, known, f"{flag}{{}}")
        raise NoSuchKey(f"{where} has no key {asked!r} (keys: {', '.join(known)}).{hint}")
    return asked


def _column_of(path: Path, kind: str, key: str, rows: int) -> NDArray[Any]:
    """One value for each row, in memory."""
    with reading(path):
        shape = _KINDS[kind].shapes(path)[key][0]
        if shape != (rows,):
            name = f"{path}:{key}" if key else str(path)
            raise InputError(
                f"{name} has shape {shape} for {rows} rows: there must be one for each row."
            )
        return np.concatenate(list(_KINDS[kind].stream(path, key, 0, rows)))


Shapes = dict[str, tuple[tuple[int, ...], str]]


class _Kind(NamedTuple):
    """How one kind of file is read: what it holds by key, and rows of one of these in blocks."""

    shapes: Callable[[Path], Shapes]
    stream: Callable[[Path, str, int, int], Iterator[NDArray[Any]]]


def npy_heading(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """What a ``.npy`` of ``size`` bytes claims: shape, stored by columns or not, kind.

    A header may claim terabytes, and numpy would make room for them before it reads.
    """
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"it claims the shape {shape}")
    claimed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if not dtype.hasobject and claimed > held:
        raise ValueError(f"it claims {claimed:,} bytes but holds {held:,}; was it cut short?")
    return shape, by_columns, dtype


def _heading(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and kind of an array that can be read row by row."""
    shape, by_columns, dtype = npy_heading(file, size)
    if dtype.hasobject:
        raise ValueError(_PICKLE)
    if by_columns and len(shape) > 1:
        raise ValueError("it is stored by columns; save np.ascontiguousarray(Z)")
    return shape, dtype


def _array_blocks(file: IO[bytes], bytes_: int, start: int, size: int) -> Iterator[NDArray[Any]]:
    shape, dtype = _heading(file, bytes_)
    width, left = math.prod(shape[1:]), shape[0] - start
    file.seek(file.tell() + start * width * dtype.itemsize)
    while left > 0:
        count = min(size, left)
        raw = file.read(count * width * dtype.itemsize)
        yield np.frombuffer(raw, dtype).reshape(count, *shape[1:])
        left -= count


def _npy_shapes(path: Path) -> Shapes:
    with path.open("rb") as file:
        shape, dtype = _heading(file, path.stat().st_size)
    return {"": (shape, dtype.str)}


def _npy_stream(path: Path, key: str, start: int, size: int) -> Iterator[NDArray[Any]]:
    with path.open("rb") as file:
        yield from _array_blocks(file, path.stat().st_size, start, size)


def _npz_shapes(path: Path) -> Shapes:
    found: Shapes = {}
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            if item.filename.endswith(".npy"):
                with archive.open(item) as part:
                    shape, dtype = _heading(part, item.file_size)
                found[item.filename.removesuffix(".npy")] = (shape, dtype.str)
    return found


def _npz_stream(path: Path, key: str, start: int, size: int) -> Iterator[NDArray[Any]]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as part:
        yield from _array_blocks(part, archive.getinfo(f"{key}.npy").file_size, start, size)


def _parquet(path: Path) -> Any:
    return arrow("reading .parquet needs pyarrow").parquet.ParquetFile(path)


def _parquet_shapes(path: Path) -> Shapes:
    with _parquet(path) as file:
        rows, found = file.metadata.num_rows, Shapes()
        for field in file.schema_arrow:
            value = getattr(field.type, "value_type", None)
            if value is None:
                found[field.name] = ((rows,), "object")
                continue
            first = next(file.iter_batches(1, columns=[field.name]), None)
            width = len(first.column(0)[0].as_py() or ()) if first is not None else 0
            found[field.name] = ((rows, width), str(value.to_pandas_dtype().__name__))
    return found


def _parquet_stream(path: Path, key: str, start: int, size: int) -> Iterator[NDArray[Any]]:
    """Row groups that lie before ``start`` are not read."""
    widths = _parquet_shapes(path)[key][0][1:]
    with _parquet(path) as file:
        counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        first = 0
        while first < len(counts) - 1 and start >= counts[first]:
            start, first = start - counts[first], first + 1
        groups = list(range(first, len(counts)))
        for batch in file.iter_batches(size, row_groups=groups, columns=[key]):
            column = batch.column(0)
            flat = column.flatten() if widths else column
            if widths and (flat.null_count or len(flat) != widths[0] * len(column)):
                raise ValueError(f"rows of {key!r} have different lengths, or none")
            yield flat.to_numpy(zero_copy_only=False).reshape(-1, *widths)[start:]
            start = max(0, start - len(column))


def _tensor_shapes(path: Path) -> Shapes:
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "float32"}
    with utf8_name(path) as name, safe_open(name, "pt") as file:
        parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        return {
            key: (tuple(part.get_shape()), names.get(part.get_dtype(), "int64"))
            for key, part in parts.items()
        }


def _tensor_stream(path: Path, key: str, start: int, size: int) -> Iterator[NDArray[Any]]:
    rows = _tensor_shapes(path)[key][0][0]
    for at in range(start, rows, size):
        # Opened for each block: what a mapping has read stays in memory as long as it lives.
        with utf8_name(path) as name, safe_open(name, "pt") as file:
            part = file.get_slice(key)[at : min(at + size, rows)]
            kept = part.float() if part.dtype == torch.bfloat16 else part.clone()
        yield kept.numpy()


_KINDS = {
    "npy": _Kind(_npy_shapes, _npy_stream),
    "npz": _Kind(_npz_shapes, _npz_stream),
    "parquet": _Kind(_parquet_shapes, _parquet_stream),
    "safetensors": _Kind(_tensor_shapes, _tensor_stream),
}
KINDS = tuple(_KINDS)
