"""A set of rows as a command was given it: embeddings, labels, ids and what the rows look like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.capture.row_files import EMBEDDING_KEYS, ID_KEYS, LABEL_KEYS, NoSuchKey, picked
from vicinal.checks import InputError, check_choice, plural
from vicinal.cli.verbs import DataOptions
from vicinal.files import fingerprint

# The names under which people keep what rows look like.
IMAGE_KEYS = ("images", "image", "thumbnails")
PATH_KEYS = ("paths", "path", "filepath", "file", "filename", "file_name")
TEXT_KEYS = ("text", "texts", "sentence", "sentences")
USUAL = {"embedding_key": EMBEDDING_KEYS, "label_key": LABEL_KEYS, "id_col": ID_KEYS,
         "image_col": (*IMAGE_KEYS, *PATH_KEYS), "text_col": TEXT_KEYS}  # fmt: skip
POOLS = ("mean", "max", "flatten")
NO_LABEL = "Fill it in or leave the row out."


def pick(
    table: Mapping[str, Any],
    options: DataOptions,
    what: str,
    name: str,
    usual: Iterable[str] | None = None,
) -> str | None:
    """The key that an option names, or the first usual one; one that is not there is an error."""
    flag, usual = f"--{what.replace('_', '-')} ", USUAL[what] if usual is None else usual
    return picked(table, getattr(options, what), usual, name, flag)


@dataclass(frozen=True)
class RowSet:
    """``embeddings`` is None for images or texts that a model has yet to embed."""

    name: str
    embeddings: NDArray[Any] | None
    labels: NDArray[Any] | None = None
    ids: tuple[str, ...] | None = None
    images: Sequence[Any] | None = None
    texts: Sequence[str] | None = None
    table: Sequence[Sequence[Any]] | None = None
    columns: tuple[str, ...] = ()
    logits: NDArray[Any] | None = None
    features: tuple[str, ...] = ()  # the columns that are the embedding, where a table has many
    unused: tuple[str, ...] = ()  # its other columns, which hold no numbers
    source: str = ""  # "train.npz:Z": what the messages call the embeddings
    dropped: tuple[tuple[str, str], ...] = field(default=())  # (id, why)
    root: Path | None = None  # the folder that paths of pictures must stay in; None: given by hand

    def __len__(self) -> int:
        if self.embeddings is not None:
            return len(self.embeddings)
        return len(self.images if self.images is not None else self.texts or ())

    @property
    def unlabeled(self) -> bool:
        """Images or texts without any label: no model can make a support of them."""
        return self.embeddings is None and self.labels is None

    @property
    def x(self) -> NDArray[Any]:
        """The embeddings, if there are any."""
        if self.embeddings is None:
            raise InputError(f"{self.name} has no embeddings. Add --model to embed its rows.")
        return self.embeddings

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    def row_id(self, row: int) -> str:
        return self.ids[row] if self.ids is not None else str(row)

    def take(self, rows: NDArray[np.int64]) -> RowSet:
        """The rows at these positions; ids stay with their rows."""
        ids = self.ids if self.ids is not None else tuple(map(str, range(len(self))))
        taken: dict[str, Any] = {"ids": tuple(ids[i] for i in rows)}
        for name in ("embeddings", "labels", "logits", "images", "texts", "table"):
            if (column := getattr(self, name)) is not None:
                is_array = isinstance(column, np.ndarray)
                taken[name] = column[rows] if is_array else [column[i] for i in rows]
        return replace(self, **taken)

    @property
    def fingerprint(self) -> str:
        """A checksum of what decides the result: embeddings and labels."""
        given = [array for array in (self.embeddings, self.labels) if array is not None]
        return fingerprint(*given)[:12]


def perhaps_labeled(read: Callable[[Any], RowSet], options: Any) -> RowSet:
    """What is read with these options; a set that lacks the key of the labels has none."""
    try:
        return read(options)
    except NoSuchKey:
        return read(replace(options, label_key=None))


def vectors(rows: RowSet, *, pool: str | None = None, transpose: bool = False) -> RowSet:
    """One vector per row: pooled or transposed if asked, else a sentence that says what to do."""
    if pool is not None:
        check_choice(pool, "--pool", POOLS)
    x = rows.x
    if x.dtype.kind not in "biuf":
        raise InputError(
            f"{rows.source} holds {_kind_of(x)}, not real numbers. Name the embeddings with "
            "--embedding-key, or save them as floats."
        )
    if x.ndim and not len(x):
        raise InputError(f"{rows.source} has no rows.")
    x = _pooled(x.T if transpose else x, pool, rows.source)
    if x.ndim != 2 or 0 in x.shape:
        raise InputError(
            f"{rows.source} has shape {x.shape}; it must be one row of numbers per sample."
        )
    labels = rows.labels
    if labels is not None and len(labels) != len(x):
        if len(labels) == x.shape[1]:
            raise InputError(
                f"embeddings look transposed: shape {x.shape} with {plural(len(labels), 'label')}. "
                "Pass --transpose or save Z.T."
            )
        raise InputError(
            f"{rows.name}: {plural(len(x), 'embedding')} but {plural(len(labels), 'label')}. Rows "
            "must match one to one; or save 'ids' and 'label_ids' beside them in an .npz and add "
            "--align ids."
        )
    for name in ("ids", "images", "texts", "table", "logits"):
        column = getattr(rows, name)
        if column is not None and len(column) != len(x):
            raise InputError(
                f"{rows.name}: {plural(len(x), 'embedding')} but {len(column)} {name}."
            )
    _check_logits(rows)
    kind = np.float64 if x.dtype == np.float64 else np.float32
    return replace(rows, embeddings=np.ascontiguousarray(x, dtype=kind))


def _pooled(x: np.ndarray, pool: str | None, source: object) -> np.ndarray:
    """One vector per row out of maps or tokens of it."""
    if x.ndim <= 2:
        return x
    if pool is None:
        raise InputError(
            f"{source} has shape {x.shape}. Neighbors need one vector per row: "
            "add --pool mean (or max, flatten)."
        )
    if pool == "flatten":
        return x.reshape(len(x), -1)
    flat = x.reshape(*x.shape[:2], -1)
    return flat.mean(2) if pool == "mean" else flat.max(2)


def _kind_of(array: NDArray[Any]) -> str:
    kinds = {"U": "text", "S": "text", "O": "Python objects", "c": "complex numbers",
             "V": "records"}  # fmt: skip
    return kinds.get(array.dtype.kind, f"values of dtype {array.dtype}")


def _check_logits(rows: RowSet) -> None:
    z = rows.logits
    if z is not None and (z.ndim != 2 or z.dtype.kind not in "iuf" or not np.isfinite(z).all()):
        raise InputError(
            f"{rows.name}: its logits must be one row of finite numbers per sample, got shape "
            f"{z.shape} of {z.dtype}. Remove or rename them."
        )


def usable(rows: RowSet, *, drop_bad: bool | None, zero_rows: bool) -> RowSet:
    """Rows without NaN, infinity or (``zero_rows``) zero norm: dropped if asked, else refused.

    ``drop_bad`` is None where the verb has no such flag, and it is not advised.
    """
    x = rows.x
    wrong = ~np.isfinite(x)
    bad, skip = wrong.any(1), "" if drop_bad is None else " (--drop-bad does)"
    if bad.any() and not drop_bad:
        first = int(np.flatnonzero(bad)[0])
        cell = f", {rows.features[wrong[first].argmax()]!r}" if rows.features else ""
        raise InputError(
            f"{rows.source} has NaN/Inf or empty cells in {int(bad.sum()):,} of "
            f"{plural(len(x), 'row')} (first: row {first}, id {rows.row_id(first)}{cell}). Fix "
            f"them, or leave the rows out{skip}. Nothing is imputed."
        )
    zero = ~bad & (x == 0).all(1) if zero_rows else np.zeros_like(bad)
    if zero.any() and not drop_bad:
        have, found = "has" if zero.sum() == 1 else "have", plural(int(zero.sum()), "row")
        raise InputError(
            f"{found} of {rows.source} {have} zero norm; cosine/normalized distance is undefined. "
            f"Leave them out{skip}, or compare by --metric l2 --no-normalize."
        )
    if not (bad | zero).any():
        return rows
    gone = [(rows.row_id(i), "NaN/Inf") for i in np.flatnonzero(bad).tolist()]
    gone += [(rows.row_id(i), "zero norm") for i in np.flatnonzero(zero).tolist()]
    kept = rows.take(np.flatnonzero(~(bad | zero)))
    if len(kept) == 0:
        raise InputError(f"{rows.name}: no row is left after --drop-bad.")
    return replace(kept, dropped=(*rows.dropped, *gone))


def in_order(rows: RowSet, features: tuple[str, ...], first: str) -> RowSet:
    """The columns in the order of ``features``, those of ``first``; others are refused."""
    if not features or not rows.features or rows.features == features or rows.embeddings is None:
        return rows
    for names, others, place, other in (
        (rows.features, features, rows.name, first),
        (features, rows.features, first, rows.name),
    ):
        if more := [name for name in names if name not in others]:
            raise InputError(
                f"{place} has the numeric column {more[0]!r}, which {other} has not. Numbers are "
                "compared column by column: give both the same ones."
            )
    order = [rows.features.index(name) for name in features]
    return replace(rows, embeddings=rows.embeddings[:, order], features=features)


def check_same_dims(first: RowSet, other: RowSet, name: str, other_name: str) -> None:
    """Embeddings that are compared have the same dims."""
    if other.shape[1] != first.shape[1]:
        raise InputError(
            f"{name} embeddings have {first.shape[1]} dims but {other_name} has {other.shape[1]} "
            f"({other.source}). They must come from the same model and layer. "
            f"Saw {first.source} {first.shape}."
        )


def checked_labels(rows: RowSet) -> RowSet:
    """Labels as whole numbers or strings; floats that are not whole are no classes."""
    y = rows.labels
    if y is None:
        return rows
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 and rows.embeddings is not None and rows.embeddings.ndim == 1:
        raise InputError(
            f"{rows.name}: embeddings and labels look swapped: embeddings have shape "
            f"{rows.embeddings.shape}, labels {y.shape}. Give them the other way around."
        )
    if y.ndim != 1:
        raise InputError(
            f"{rows.name}: labels have shape {y.shape}; they must be one class per row. "
            "For one-hot labels save y.argmax(1)."
        )
    if y.dtype.kind not in "biufUSOM":
        raise InputError(f"{rows.name}: its labels are {_kind_of(y)}. Save whole numbers or text.")
    if y.dtype.kind == "f":
        if np.isnan(y).any():
            first = int(np.isnan(y).argmax())
            raise InputError(f"{rows.name}: row {first} has no label (NaN). {NO_LABEL}")
        if not (np.isfinite(y).all() and (y == np.round(y)).all()):
            raise InputError(
                f"labels are float with {len(np.unique(y)):,} distinct values — regression is not "
                "supported by audit. For classes use integers or strings."
            )
        if np.abs(y).max(initial=0) > 2**53:
            raise InputError(f"{rows.name}: its labels are too large for whole numbers. Save text.")
    if y.dtype.kind in "fb":
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    return replace(rows, labels=y)


def aligned(rows: RowSet, label_ids: NDArray[Any] | None, labels: NDArray[Any]) -> RowSet:
    """Labels matched to rows by id; rows whose id has no label are an error that names one."""
    if rows.ids is None or label_ids is None:
        raise InputError(
            f"{rows.name} has no key {'ids' if rows.ids is None else 'label_ids'!r} to align by. "
            "Save 'ids' in the order of the rows and 'label_ids' in that of the labels."
        )
    place = {str(name): at for at, name in enumerate(label_ids.tolist())}
    if len(place) != len(label_ids):
        raise InputError(f"{rows.name}: the ids of the labels are not unique.")
    if len(place) != len(labels):
        raise InputError(f"{rows.name}: {len(place)} label_ids but {plural(len(labels), 'label')}.")
    missing = [name for name in rows.ids if name not in place]
    if missing:
        raise InputError(
            f"{rows.name}: {len(missing)} ids have no label (first: {missing[0]}). "
            "Remove these rows or add their labels."
        )
    return replace(rows, labels=labels[[place[name] for name in rows.ids]])
