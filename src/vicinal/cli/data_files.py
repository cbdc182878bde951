"""Data named on the command line: arrays, tables, folders of images, captures."""

from __future__ import annotations

import os
import shlex
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vicinal.capture.row_files import LOGIT_KEYS, npy_heading
from vicinal.capture.shards import MANIFEST, ShardStore
from vicinal.capture.sources import described, finished, named_labels, unfinished
from vicinal.checks import InputError, closest
from vicinal.cli.console import Console
from vicinal.cli.folders import NEW
from vicinal.cli.image_rows import encoded_rows, listed_images
from vicinal.cli.row_set import USUAL as NAMES
from vicinal.cli.row_set import RowSet, aligned, checked_labels, pick, usable, vectors
from vicinal.cli.saved_datasets import is_saved
from vicinal.cli.tables import TABLES, columns_of, labels_in, read_table
from vicinal.cli.verbs import DataOptions, VectorVerb
from vicinal.files import reading, regular_file

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SETS = ("train", "training", "test", "testing", "val", "valid", "validation", "eval", "dev")
LISTS = ("labels.csv", "labels.tsv", "labels.jsonl", "metadata.csv", "metadata.jsonl")
USUAL = DataOptions()  # every key under one of its usual names


def read_rows(spec: str, options: DataOptions = USUAL) -> RowSet:
    """The rows behind a data spec; nothing is computed yet.

    ``train.npz`` · ``Z.npy+y.npy`` · ``rows.csv`` · ``rows.jsonl`` · ``rows.parquet`` · a folder of
    class folders of images · a folder written by ``vicinal embed`` or by ``save_to_disk``.
    """
    if options.align not in (None, "ids"):
        raise InputError(f"--align must be 'ids', got {options.align!r}.")
    if options.align is not None and Path(spec).suffix.lower() != ".npz":
        raise InputError(
            f"--align ids goes by the keys ids and label_ids of an .npz, and {spec} is none: each "
            "of its rows has its own label. Leave --align out."
        )
    if options.media_root is not None and not os.path.isdir(options.media_root):
        raise InputError(f"--media-root {options.media_root} is no folder.")
    with reading(spec):
        parts = spec.split("+")
        if len(parts) > 1 and all(part.endswith(".npy") for part in parts):
            return _npy(parts, options)
        path = Path(spec)
        if os.path.isdir(path):
            return _folder(path, options)
        ending = regular_file(path).suffix.lower()
        if ending == ".npz":
            return _from_arrays(path, read_npz(path, trust_pickle=options.trust_pickle), options)
        if ending == ".npy":
            return _npy([spec], options)
        if ending in TABLES:
            return read_table(path, options)
        if ending in IMAGE_SUFFIXES:
            return RowSet(path.name, None, None, (path.name,), images=[spec], source=spec)
        if ending == ".vic":
            raise InputError(
                f"{spec} is a saved head, no rows. It judges: vicinal predict {spec} ROWS"
            )
    known = ", ".join([".npz", ".npy", *TABLES])
    raise InputError(
        f"cannot tell what {spec} is: its ending is none of {known}, and it is no folder. Save its "
        "rows as .npz with the keys embeddings and labels."
    )


def read_vectors(
    spec: str,
    options: VectorVerb,
    *,
    zero_rows: bool = False,
    console: Console | None = None,
    encode: Callable[[Sequence[str]], NDArray[Any]] | None = None,
) -> RowSet:
    """The rows behind a data spec with one vector and, if there are labels, one class each.

    Images without a model are embedded by the small encoder, which is said on the ``console``.

    ``zero_rows``: whether a row of zeros cannot be used; it has no cosine. What cannot be used is
    left out where the verb has ``--drop-bad`` and it was given, else refused.
    """
    with reading(spec):
        rows = checked_labels(read_rows(spec, options))
        if encode is not None:
            if rows.texts is None:
                raise InputError(f"{rows.name} holds no texts. Name their column with --text-col.")
            rows = replace(rows, embeddings=encode(rows.texts))
        elif rows.embeddings is None and rows.images is not None:
            rows = encoded_rows(rows, options, console or Console(quiet=True))
        rows = vectors(rows, pool=options.pool, transpose=options.transpose)
        return usable(rows, drop_bad=getattr(options, "drop_bad", None), zero_rows=zero_rows)


def _npy(parts: Sequence[str], options: DataOptions) -> RowSet:
    if len(parts) > 2:
        raise InputError("give at most two .npy files: embeddings.npy+labels.npy.")
    arrays = [read_npy(part, trust_pickle=options.trust_pickle) for part in parts]
    name = Path(parts[0]).name
    return RowSet(name, arrays[0], arrays[1] if len(arrays) > 1 else None, source=name)


def _from_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], options: DataOptions) -> RowSet:
    name = path.name
    keys = ("embedding_key", "label_key", "id_col", "image_col", "text_col")
    vector, label, ident, images, text = (pick(arrays, options, what, name) for what in keys)
    if vector is None and images is None and text is None:  # nothing that a model could embed
        near = [shlex.quote(key) for key in arrays if arrays[key].ndim == 2]
        hint = f"Did you mean --embedding-key {near[0]}?" if near else "Name it: --embedding-key."
        raise InputError(f"{name} has no key 'embeddings' (keys: {', '.join(arrays)}). {hint}")
    logit = next((key for key in LOGIT_KEYS if key in arrays), None)
    for key in (label, ident, images, text, logit):
        if key is not None and arrays[key].ndim == 0:
            raise InputError(f"{name}:{key} is a single value; it must hold one for each row.")
    rows = RowSet(
        name,
        None if vector is None else arrays[vector],
        None if label is None else arrays[label],
        None if ident is None else tuple(map(str, arrays[ident].tolist())),
        images=None if images is None else list(arrays[images]),
        texts=None if text is None else [str(v) for v in arrays[text].tolist()],
        logits=None if logit is None else arrays[logit],
        source=f"{name}:{vector or images or text}",
        root=path.parent,
    )
    if options.align == "ids" and label is not None:
        rows = aligned(rows, arrays.get("label_ids"), arrays[label])
    return rows


def _folder(path: Path, options: DataOptions) -> RowSet:
    """A capture of ``vicinal embed``, class folders of images, or images with a table of labels."""
    if (path / MANIFEST).exists():
        return captured(path, options.embedding_key)
    if (path / NEW / MANIFEST).exists():
        raise unfinished(path, ShardStore(path / NEW))
    if is_saved(path):
        return read_table(path, options)
    if (path / "audit.json").exists():
        raise InputError(f"{path} is a run of an audit, not data. Give the data it was made of.")
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise InputError(
            f"{path} holds no images (class/name.png) and no capture of `vicinal embed` "
            "and no saved data set (state.json)."
        )
    inside = [p for p in files if p.parent != path]
    listed = next((path / name for name in LISTS if (path / name).is_file()), None)
    if listed is not None and not inside:
        return listed_images(listed, files, options)
    if inside and len(inside) < len(files):
        raise InputError(
            f"{path} holds images both in class folders and beside them (first: "
            f"{next(p.name for p in files if p.parent == path)}). Move or remove one kind."
        )
    names = [p.relative_to(path) for p in files]
    sets = sorted({str(path / name.parts[0]) for name in names if len(name.parts) > 2})
    if len(sets) > 1 and all(Path(part).name.lower() in SETS for part in sets):
        words = shlex.join(["vicinal", "audit", sets[-1], sets[0]])  # val is after train, not test
        raise InputError(f"{path} holds sets, not classes: {', '.join(sets)}. As in: {words}")
    return RowSet(
        path.name,
        None,
        labels_in([name.parts[0] for name in names]) if inside else None,  # 0, 1, …, 10: numbers
        tuple(str(name) for name in names),
        images=[str(p) for p in files],
        source=str(path),
    )


def captured(path: Path, layer: str | None = None) -> RowSet:
    """One layer of a folder of shards, with the labels and ids stored beside it."""
    store = finished(path)
    name = layer or next(iter(store), "")
    if name not in store:
        near = ", ".join(closest(name, list(store))) or ", ".join(store)
        raise InputError(f"no layer {name!r} in {path}. Close names: {near}.")
    facts = described(path)
    labels = None if store.labels is None else store.labels.numpy()
    if labels is not None and "classes" in facts:
        labels = named_labels(labels, facts["classes"], path)
    return RowSet(
        path.name,
        store[name].float().numpy(),
        labels,
        tuple(facts["ids"]) if "ids" in facts else None,
        images=facts.get("images"),
        source=f"{path.name}:{name}",
        root=path,
    )


def without_labels(rows: RowSet, spec: str | None) -> InputError:
    """The sentence for rows that should have labels, with the keys or columns there are."""
    path, kind, keys, words = Path(spec or ""), "key", list[str](), list[str]()
    if path.suffix == ".npy":
        return InputError(f"{rows.name} has no labels. Give them beside it: {spec}+labels.npy")
    with suppress(InputError):
        if path.suffix == ".npz":
            keys = list(read_npz(path))
        elif path.suffix.lower() in TABLES or (path.is_dir() and is_saved(path)):
            found = columns_of(path)
            kind, keys, words = "column", list(found), [name for name in found if found[name]]
    if path.is_dir() and not keys:
        return InputError(
            f"{rows.name} has no labels. Put its images into one folder for each class, or add a "
            "table with their names and labels (labels.csv)."
        )
    taken = {key for name, usual in NAMES.items() if name != "label_key" for key in usual}
    among = [k for k in words or keys if k not in taken]  # words are likelier labels than numbers
    near = [k for usual in ("target", "labels", "y", "class") for k in closest(usual, among, 1)]
    near = near or words
    quoted = shlex.quote(near[0]) if near else ""
    hint = f"Did you mean --label-key {quoted}?" if near else "Name it with --label-key."
    listed = f" ({kind}s: {', '.join(keys)})" if keys else ""
    return InputError(f"{rows.name} has no {kind} 'y' or 'labels'{listed}. {hint}")


# ------------------------------------------------------------------ arrays of numpy
# Read without believing them: no pickle, no claim larger than the file.


def read_npz(path: str | Path, *, trust_pickle: bool = False) -> dict[str, NDArray[Any]]:
    """Every array of an archive by its key."""
    path = regular_file(path)
    with _explained(path.name, path), open_npz(path, trust_pickle=trust_pickle) as file:
        arrays = {}
        for key in file.files:
            with _explained(f"{path.name}:{key}", path):
                arrays[key] = np.asarray(file[key])
        return arrays


def read_npy(path: str | Path, *, trust_pickle: bool = False) -> NDArray[Any]:
    """The array of a file."""
    path = regular_file(path)
    with _explained(path.name, path), path.open("rb") as file:
        _check_claim(file, os.path.getsize(path))
        file.seek(0)
        return np.asarray(np.load(file, allow_pickle=trust_pickle))


@contextmanager
def open_npz(path: Path, *, trust_pickle: bool = False) -> Iterator[Any]:
    """``numpy.load`` of an archive whose parts are no larger than they claim to be."""
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            if item.filename.endswith(".npy"):
                with archive.open(item) as part:
                    _check_claim(part, item.file_size)
    with np.load(path, allow_pickle=trust_pickle) as file:
        yield file


def _check_claim(file: IO[bytes], size: int) -> None:
    """No more than the file holds; where it is no array, that is for numpy to say."""
    if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
        file.seek(0)
        npy_heading(file, size)


@contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """What numpy refuses to load, as a sentence."""
    try:
        with reading(name):
            yield
    except InputError as error:
        cause = str(error.__cause__)
        if "Object arrays" in cause:
            raise InputError(
                f"{name} holds Python objects (pickle). Refused for safety; save strings with "
                "dtype '<U', or --trust-pickle."
            ) from None
        if "pickle" in cause or isinstance(error.__cause__, zipfile.BadZipFile):
            size = f"{path.stat().st_size:,} bytes"
            why = "it is no file of numpy.save or numpy.savez"
            raise InputError(
                f"cannot read {name}: {why} (truncated? it is {size}). Nothing was written."
            ) from None
        raise
