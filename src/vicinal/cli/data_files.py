"""Data named on the command line: arrays, tables, folders of images, captures."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError, closest
from vicinal.cli.rows import Rows, aligned

EMBEDDING_KEYS = ("embeddings", "embedding", "Z", "z", "X", "x", "features", "feat", "data")
LABEL_KEYS = ("y", "labels", "label", "targets", "target", "class")
ID_KEYS = ("ids", "id", "names", "name")
IMAGE_KEYS = ("images", "image", "thumbnails")
TEXT_KEYS = ("text", "texts", "sentence", "sentences")
PATH_KEYS = ("paths", "path", "filepath")
LOGIT_KEYS = ("logits", "scores")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Which key or column holds what, where the usual names do not."""

    embedding: str | None = None
    label: str | None = None
    id: str | None = None
    image: str | None = None
    text: str | None = None
    align: bool = False
    trust_pickle: bool = False


def read_rows(spec: str, columns: Columns = Columns()) -> Rows:  # noqa: B008 - frozen, no state
    """The rows behind a data spec; nothing is computed yet.

    ``train.npz`` · ``Z.npy+y.npy`` · ``rows.csv`` · ``rows.jsonl`` · ``rows.parquet`` · a folder of
    class folders of images · a folder written by ``vicinal embed``.
    """
    if "+" in spec and all(part.endswith(".npy") for part in spec.split("+")):
        return _npy(spec.split("+"), columns)
    path = Path(spec)
    if not path.exists():
        near = closest(
            path.name, [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        )
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"no such file: {spec}.{hint}")
    if path.is_dir():
        return _folder(path)
    readers = {".npz": _npz, ".npy": lambda p, c: _npy([str(p)], c)}
    reader = readers.get(path.suffix.lower(), _table if path.suffix.lower() in TABLES else None)
    if reader is None:
        known = ", ".join([*readers, *TABLES])
        raise InputError(
            f"cannot tell what {spec} is: its ending is none of {known}, and it is no folder."
        )
    return reader(path, columns)


def _npz(path: Path, columns: Columns) -> Rows:
    try:
        with np.load(path, allow_pickle=columns.trust_pickle) as file:
            arrays = {key: _array(file, key, path, columns.trust_pickle) for key in file.files}
    except (zipfile.BadZipFile, OSError, EOFError, KeyError) as error:
        size = path.stat().st_size
        raise InputError(
            f"cannot read {path.name}: {error} (file truncated? it is {size / 1e6:.1f} MB). "
            "Nothing was written."
        ) from None
    return _from_arrays(path.name, arrays, columns)


def _array(file: Any, key: str, path: Path, trust_pickle: bool) -> NDArray[Any]:
    try:
        return np.asarray(file[key])
    except ValueError as error:
        if "pickle" in str(error) or "Object arrays" in str(error):
            raise InputError(
                f"{path.name}:{key} holds Python objects (pickle). Refused for safety; save "
                "strings with dtype '<U', or --trust-pickle."
            ) from None
        raise InputError(f"cannot read {path.name}:{key}: {error}. Nothing was written.") from None


def _npy(parts: Sequence[str], columns: Columns) -> Rows:
    arrays = []
    for part in parts:
        if not Path(part).exists():
            raise InputError(f"no such file: {part}.")
        try:
            arrays.append(np.load(part, allow_pickle=columns.trust_pickle))
        except ValueError as error:
            if "pickle" in str(error) or "Object arrays" in str(error):
                raise InputError(
                    f"{Path(part).name} holds Python objects (pickle). Refused for safety; save "
                    "strings with dtype '<U', or --trust-pickle."
                ) from None
            raise InputError(f"cannot read {part}: {error}. Nothing was written.") from None
        except (OSError, EOFError) as error:
            raise InputError(f"cannot read {part}: {error}. Nothing was written.") from None
    name = Path(parts[0]).name
    labels = arrays[1] if len(arrays) > 1 else None
    return Rows(name, arrays[0], labels, source=name)


def _table(path: Path, columns: Columns) -> Rows:
    try:
        table = _read_table(path)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error, OSError, ValueError) as error:
        raise InputError(f"cannot read {path.name}: {error}. Nothing was written.") from None
    if not table or not next(iter(table.values())):
        raise InputError(f"{path.name} has no rows.")
    return _from_table(path.name, table, columns)


def _read_table(path: Path) -> dict[str, list[Any]]:
    """Columns by name, values as they are written."""
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise InputError(
                "reading .parquet needs pyarrow: pip install 'vicinal[parquet]'."
            ) from None
        table = parquet.read_table(path)
        return {name: table[name].to_pylist() for name in table.column_names}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        names = list(dict.fromkeys(key for line in lines for key in line))
        return {name: [line.get(name) for line in lines] for name in names}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    ragged = [at for at, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if ragged:
        raise ValueError(
            f"line {ragged[0]} has {len(rows[ragged[0] - 1])} cells, the heading has {len(rows[0])}"
        )
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}


def _from_table(name: str, table: Mapping[str, list[Any]], columns: Columns) -> Rows:
    """The embedding list column, or all numeric columns that are nothing else."""
    label = _pick(table, columns.label, LABEL_KEYS, name, "--label-key")
    ident = _pick(table, columns.id, ID_KEYS, name, "--id-col")
    image = _pick(table, columns.image, PATH_KEYS, name, "--image-col")
    text = _pick(table, columns.text, TEXT_KEYS, name, "--text-col")
    taken = {label, ident, image, text}
    vector = columns.embedding or next(
        (key for key in EMBEDDING_KEYS if key in table and _is_vector(table[key][0])), None
    )
    numeric = [key for key in table if key not in taken and _is_numeric(table[key])]
    if vector:
        embeddings = _stacked(table[vector], f"{name}:{vector}")
        shown = [key for key in table if key not in taken and key != vector]
    elif numeric:
        embeddings = np.array([[float(v) for v in table[key]] for key in numeric]).T
        shown = numeric
    else:
        raise InputError(
            f"{name} has no 'embedding' column and no numeric columns (columns: "
            f"{', '.join(table)}). Name it with --embedding-key."
        )
    table_rows = [list(row) for row in zip(*(table[key] for key in shown), strict=True)]
    return Rows(
        name,
        embeddings,
        None if label is None else _labels_of(table[label]),
        None if ident is None else tuple(map(str, table[ident])),
        images=None if image is None else list(table[image]),
        texts=None if text is None else [str(v) for v in table[text]],
        table=table_rows if shown and text is None and image is None else None,
        columns=tuple(shown) if text is None and image is None else (),
        source=f"{name}:{vector or 'columns'}",
    )


def _from_arrays(name: str, arrays: Mapping[str, NDArray[Any]], columns: Columns) -> Rows:
    vector = columns.embedding or next((key for key in EMBEDDING_KEYS if key in arrays), None)
    if vector is None or vector not in arrays:
        wanted = vector or "embeddings"
        near = closest(wanted, arrays)
        hint = f" Did you mean --embedding-key {near[0]}?" if near else ""
        raise InputError(f"{name} has no key {wanted!r} (keys: {', '.join(arrays)}).{hint}")
    label = _pick(arrays, columns.label, LABEL_KEYS, name, "--label-key")
    ident = _pick(arrays, columns.id, ID_KEYS, name, "--id-col")
    image = _pick(arrays, columns.image, IMAGE_KEYS, name, "--image-col")
    path = None if image else _pick(arrays, None, PATH_KEYS, name, "--image-col")
    text = _pick(arrays, columns.text, TEXT_KEYS, name, "--text-col")
    logit = next((key for key in LOGIT_KEYS if key in arrays), None)
    rows = Rows(
        name,
        arrays[vector],
        None if label is None else arrays[label],
        None if ident is None else tuple(map(str, arrays[ident].tolist())),
        images=list(arrays[image or path or ""]) if image or path else None,
        texts=None if text is None else [str(v) for v in arrays[text].tolist()],
        logits=None if logit is None else arrays[logit],
        source=f"{name}:{vector}",
    )
    if columns.align and label is not None and "label_ids" in arrays:
        rows = aligned(rows, [str(v) for v in arrays["label_ids"].tolist()], arrays[label])
    return rows


def _folder(path: Path) -> Rows:
    """A capture of ``vicinal embed``, or class folders of images."""
    if (path / "manifest.json").exists():
        return captured(path)
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    inside = [p for p in files if p.parent != path]
    if not inside:
        raise InputError(
            f"{path} holds no images in class folders (class/name.png) and no capture of "
            "`vicinal embed`."
        )
    names = [p.relative_to(path) for p in inside]
    return Rows(
        path.name,
        None,
        np.array([name.parts[0] for name in names]),
        tuple(str(name) for name in names),
        images=[str(p) for p in inside],
        source=str(path),
    )


def captured(path: Path, layer: str | None = None) -> Rows:
    """One layer of a folder of shards, with the labels and ids stored beside it."""
    from vicinal.capture import ShardStore

    store = ShardStore(path)
    if not store.complete:
        raise InputError(
            f"{path} is unfinished: {store.rows} rows so far. Run the same embed command again."
        )
    name = layer or next(iter(store))
    if name not in store:
        near = ", ".join(closest(name, list(store))) or ", ".join(store)
        raise InputError(f"no layer {name!r} in {path}. Close names: {near}.")
    labels, ids = store.labels, None
    described = path / "embed.json"
    classes: list[str] | None = None
    if described.exists():
        facts = json.loads(described.read_text())
        ids, classes = facts.get("ids"), facts.get("classes")
    y = None if labels is None else labels.numpy()
    if y is not None and classes:
        y = np.array(classes)[y]
    images = None
    if described.exists() and facts.get("images"):
        images = facts["images"]
    return Rows(
        path.name,
        store[name].float().numpy(),
        y,
        tuple(ids) if ids else None,
        images=images,
        source=f"{path.name}:{name}",
    )


def _pick(
    table: Mapping[str, Any], asked: str | None, usual: Iterable[str], name: str, option: str
) -> str | None:
    """The key the user named, or the first usual one; a name that is not there is an error."""
    if asked is None:
        return next((key for key in usual if key in table), None)
    if asked in table:
        return asked
    near = closest(asked, table)
    hint = f" Did you mean {option} {near[0]}?" if near else ""
    raise InputError(f"{name} has no key {asked!r} (keys: {', '.join(table)}).{hint}")


def _is_vector(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, str) and value.strip()[:1] == "[")


def _is_numeric(values: list[Any]) -> bool:
    try:
        [float(v) for v in values[:200]]
    except (TypeError, ValueError):
        return False
    return True


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    rows = [json.loads(v) if isinstance(v, str) else v for v in values]
    widths = {len(row) if row is not None else 0 for row in rows}
    if len(widths) != 1:
        raise InputError(f"{name}: embeddings have different lengths: {sorted(widths)[:5]}.")
    return np.array(rows, dtype=np.float64)


def _labels_of(values: list[Any]) -> NDArray[Any]:
    """Strings that are all whole numbers become integers; anything else stays text."""
    if any(v is None or v == "" for v in values):
        at = next(at for at, v in enumerate(values) if v is None or v == "")
        raise InputError(f"row {at} has no label. Fill it in or leave the row out.")
    if all(isinstance(v, str) for v in values):
        digits = all(v.lstrip("-").isdigit() for v in values)
        return np.array(values, dtype=np.int64) if digits else np.array(values)
    return np.array(values)
