"""Data named on the command line: arrays, tables, folders of images, captures."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.capture import ShardStore
from vicinal.checks import InputError, closest
from vicinal.cli.row_set import (
    EMBEDDING_KEYS,
    ID_KEYS,
    IMAGE_KEYS,
    LABEL_KEYS,
    LOGIT_KEYS,
    PATH_KEYS,
    TEXT_KEYS,
    RowSet,
    aligned,
    checked_labels,
    pick,
    usable,
    vectors,
)
from vicinal.cli.tables import TABLES, read_table
from vicinal.cli.verbs import AuditOptions, DataOptions, FitOptions, VectorVerb

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
USUAL = DataOptions()  # every key under one of its usual names


def read_rows(spec: str, options: DataOptions = USUAL) -> RowSet:
    """The rows behind a data spec; nothing is computed yet.

    ``train.npz`` · ``Z.npy+y.npy`` · ``rows.csv`` · ``rows.jsonl`` · ``rows.parquet`` · a folder of
    class folders of images · a folder written by ``vicinal embed``.
    """
    if options.align not in (None, "ids"):
        raise InputError(f"--align must be 'ids', got {options.align!r}.")
    if "+" in spec and all(part.endswith(".npy") for part in spec.split("+")):
        return _npy(spec.split("+"), options)
    path = Path(spec)
    if not path.exists():
        near = closest(
            path.name, [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        )
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"no such file: {spec}.{hint}")
    if path.is_dir():
        return _folder(path)
    ending = path.suffix.lower()
    if ending == ".npz":
        return _npz(path, options)
    if ending == ".npy":
        return _npy([spec], options)
    if ending in TABLES:
        return read_table(path, options)
    known = ", ".join([".npz", ".npy", *TABLES])
    raise InputError(
        f"cannot tell what {spec} is: its ending is none of {known}, and it is no folder."
    )


def read_vectors(spec: str, options: VectorVerb, *, zero_rows: bool = False) -> RowSet:
    """The rows behind a data spec with one vector and, if there are labels, one class each.

    ``zero_rows``: whether a row of zeros cannot be used; it has no cosine. What cannot be used is
    left out where the verb has ``--drop-bad`` and it was given, else refused.
    """
    rows = checked_labels(read_rows(spec, options))
    rows = vectors(rows, pool=options.pool, transpose=options.transpose)
    drop_bad = isinstance(options, (AuditOptions, FitOptions)) and options.drop_bad
    return usable(rows, drop_bad=drop_bad, zero_rows=zero_rows)


def _npz(path: Path, options: DataOptions) -> RowSet:
    arrays = {}
    try:
        with _explained(path.name), np.load(path, allow_pickle=options.trust_pickle) as file:
            for key in file.files:
                with _explained(f"{path.name}:{key}"):
                    arrays[key] = np.asarray(file[key])
    except (zipfile.BadZipFile, OSError, EOFError, KeyError) as error:
        size = path.stat().st_size
        raise InputError(
            f"cannot read {path.name}: {error} (file truncated? it is {size / 1e6:.1f} MB). "
            "Nothing was written."
        ) from None
    return _from_arrays(path.name, arrays, options)


def _npy(parts: Sequence[str], options: DataOptions) -> RowSet:
    arrays = []
    for part in parts:
        if not Path(part).exists():
            raise InputError(f"no such file: {part}.")
        try:
            with _explained(Path(part).name):
                arrays.append(np.load(part, allow_pickle=options.trust_pickle))
        except (OSError, EOFError) as error:
            raise InputError(f"cannot read {part}: {error}. Nothing was written.") from None
    name = Path(parts[0]).name
    return RowSet(name, arrays[0], arrays[1] if len(arrays) > 1 else None, source=name)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """What numpy refuses to load, as a sentence."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, UnpicklingError) as error:
        if "Object arrays" in str(error):
            raise InputError(
                f"{name} holds Python objects (pickle). Refused for safety; save strings with "
                "dtype '<U', or --trust-pickle."
            ) from None
        # Of a file that is none of its own, numpy says that it might be a pickle.
        why = "it is no file of numpy.save or numpy.savez" if "pickle" in str(error) else error
        raise InputError(f"cannot read {name}: {why}. Nothing was written.") from None


def _from_arrays(name: str, arrays: Mapping[str, NDArray[Any]], options: DataOptions) -> RowSet:
    vector = options.embedding_key or next((key for key in EMBEDDING_KEYS if key in arrays), None)
    if vector is None or vector not in arrays:
        wanted = vector or "embeddings"
        near = closest(wanted, arrays)
        hint = f" Did you mean --embedding-key {near[0]}?" if near else ""
        raise InputError(f"{name} has no key {wanted!r} (keys: {', '.join(arrays)}).{hint}")
    label = pick(arrays, options.label_key, LABEL_KEYS, name, "--label-key")
    ident = pick(arrays, options.id_col, ID_KEYS, name, "--id-col")
    image = pick(arrays, options.image_col, IMAGE_KEYS, name, "--image-col")
    path = None if image else pick(arrays, None, PATH_KEYS, name, "--image-col")
    text = pick(arrays, options.text_col, TEXT_KEYS, name, "--text-col")
    logit = next((key for key in LOGIT_KEYS if key in arrays), None)
    rows = RowSet(
        name,
        arrays[vector],
        None if label is None else arrays[label],
        None if ident is None else tuple(map(str, arrays[ident].tolist())),
        images=list(arrays[image or path or ""]) if image or path else None,
        texts=None if text is None else [str(v) for v in arrays[text].tolist()],
        logits=None if logit is None else arrays[logit],
        source=f"{name}:{vector}",
    )
    if options.align == "ids" and label is not None and "label_ids" in arrays:
        rows = aligned(rows, [str(v) for v in arrays["label_ids"].tolist()], arrays[label])
    return rows


def _folder(path: Path) -> RowSet:
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
    return RowSet(
        path.name,
        None,
        np.array([name.parts[0] for name in names]),
        tuple(str(name) for name in names),
        images=[str(p) for p in inside],
        source=str(path),
    )


def captured(path: Path, layer: str | None = None) -> RowSet:
    """One layer of a folder of shards, with the labels and ids stored beside it."""
    store = ShardStore(path)
    if not store.complete:
        raise InputError(
            f"{path} is unfinished: {store.rows} rows so far. Run the same embed command again."
        )
    name = layer or next(iter(store))
    if name not in store:
        near = ", ".join(closest(name, list(store))) or ", ".join(store)
        raise InputError(f"no layer {name!r} in {path}. Close names: {near}.")
    described = path / "embed.json"
    facts = json.loads(described.read_text("utf-8")) if described.exists() else {}
    labels = None if store.labels is None else store.labels.numpy()
    if labels is not None and facts.get("classes"):
        labels = np.array(facts["classes"])[labels]
    return RowSet(
        path.name,
        store[name].float().numpy(),
        labels,
        tuple(facts["ids"]) if facts.get("ids") else None,
        images=facts.get("images") or None,
        source=f"{path.name}:{name}",
    )
