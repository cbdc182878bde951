"""Data frames of pandas or polars as the sets of an audit.

Rows are compared by a column of vectors, by columns of numbers, or, where only images are there, by
what a small pretrained encoder says of them (:mod:`vicinal.audits.encoder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.encoder import SIZE, USED, encoded
from vicinal.audits.pictures import media_of_images
from vicinal.audits.settings import About
from vicinal.checks import InputError, closest

LABELS = ("label", "labels", "y", "target", "targets", "class")
VECTORS = ("embedding", "embeddings", "features", "vector", "Z", "X")
IDS = ("id", "ids", "name", "Unnamed: 0")  # the last: row numbers, as pandas reads its own


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; None leaves it to the usual names."""

    label: str | None = None
    image: str | None = None
    embedding: str | Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class FrameRows:
    """One frame as an audit takes it; ``how`` says what its rows are compared by, ``features`` are
    the columns of numbers, where it is by such."""

    rows: NDArray[Any]
    labels: NDArray[Any] | None
    ids: tuple[str, ...] | None
    images: list[str] | None
    how: str
    features: tuple[str, ...] = ()

    @property
    def pair(self) -> Any:
        return self.rows if self.labels is None else (self.rows, self.labels)


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame: columns by name, each a series."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and hasattr(value, "shape")


def frame_rows(frame: Any, columns: Columns, role: str) -> FrameRows:
    """The rows of a frame, their labels, ids and images.

    >>> import pandas
    >>> frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [0.5, 0.5], "kind": ["x", "y"]})
    >>> found = frame_rows(frame, Columns(label="kind"), "support")
    >>> found.rows.tolist(), found.labels.tolist(), found.how
    ([[1.0, 0.5], [2.0, 0.5]], ['x', 'y'], 'rows are compared by 2 columns: a, b')
    """
    names = [str(name) for name in frame.columns]
    wanted = columns.label if role == "support" or columns.label in names else None
    label = _named(wanted, LABELS, names, role, "label")
    image = _named(columns.image, (), names, role, "image")
    ident = next((name for name in IDS if name in names and name != label), None)
    images = None if image is None else [str(path) for path in _values(frame, image)]
    others = [name for name in names if name not in (label, image, ident)]
    rows, how, features = _rows(frame, columns, others, images)
    labels = None if label is None else _labels(_values(frame, label))
    ids = None if ident is None else tuple(map(str, _values(frame, ident)))
    if ids is None and images is not None:
        ids = tuple(Path(path).name for path in images)
    return FrameRows(rows, labels, ids, images, how, features)


def _labels(values: list[Any]) -> NDArray[Any]:
    """A cell without a label (None, NaN, NA) is None, and no class of that name."""
    missing = [v is None or type(v).__name__ == "NAType" or v != v for v in values]
    if not any(missing):
        return np.asarray(values)
    kept = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    return np.array(kept, dtype=object)


def _named(
    asked: str | None, usual: Sequence[str], names: Sequence[str], role: str, option: str
) -> str | None:
    if asked is None:
        return next((name for name in usual if name in names), None)
    if not isinstance(asked, str):
        raise InputError(
            f"`{option}` must be the name of a column, got {type(asked).__name__}. Put the values "
            f"into a column, and name it (columns: {', '.join(names)})."
        )
    if asked in names:
        return asked
    near = closest(asked, list(names), 1)
    hint = f" Did you mean {option}={near[0]!r}?" if near else ""
    raise InputError(f"`{role}` has no column {asked!r} (columns: {', '.join(names)}).{hint}")


def _rows(
    frame: Any, columns: Columns, names: Sequence[str], images: Sequence[str] | None
) -> tuple[NDArray[Any], str, tuple[str, ...]]:
    """A column of vectors, named or usual columns of numbers, or the images through the encoder."""
    asked = columns.embedding
    vector = asked if isinstance(asked, str) else None
    if asked is None:
        firsts = {name: next(iter(_values(frame, name)), None) for name in names}
        found = [n for n, value in firsts.items() if isinstance(value, (list, tuple, np.ndarray))]
        vector = next((n for n in (*VECTORS, *found) if n in found), None)
        if len(found) > 1 and vector not in VECTORS:
            raise InputError(f"columns {', '.join(found)} hold vectors. Name one: embedding='…'.")
    if vector is not None:
        if vector not in [str(name) for name in frame.columns]:
            raise InputError(f"no column {vector!r} for the embeddings. Columns: {list(names)}.")
        rows = [np.asarray(row, dtype=np.float64) for row in _values(frame, vector)]
        if len({row.shape for row in rows}) != 1 or rows[0].ndim != 1:
            raise InputError(f"column {vector!r} must hold vectors of one length.")
        return np.stack(rows), f"rows are compared by the vectors of column {vector!r}", ()
    kinds = "f" if images is not None else "iuf"  # whole numbers beside images are their sizes
    numeric = list(asked) if asked is not None else [
        name for name in names if np.asarray(_values(frame, name)).dtype.kind in kinds
    ]  # fmt: skip
    if numeric:
        if missing := [name for name in numeric if name not in names]:
            raise InputError(
                f"a data frame lacks the column {missing[0]!r}, by which rows are compared "
                f"(columns: {', '.join(names)}). Give all sets the same ones."
            )
        matrix = np.stack([np.asarray(_values(frame, name), float) for name in numeric], 1)
        some = ", ".join(numeric[:4]) + (", …" if len(numeric) > 4 else "")
        many = "column" if len(numeric) == 1 else "columns"
        return matrix, f"rows are compared by {len(numeric)} {many}: {some}", tuple(numeric)
    if images is None:
        raise InputError(
            f"no column holds vectors or numbers to compare rows by (columns: {', '.join(names)}). "
            "Name it: embedding='column', or image='column' for paths of images."
        )
    return encoded(images), USED.format(SIZE), ()


def _values(frame: Any, name: str) -> list[Any]:
    column = next(frame[key] for key in frame.columns if str(key) == name)
    return column.to_list() if hasattr(column, "to_list") else list(column)


def from_frames(
    sets: tuple[Any, Any, Any, Any, Any, Any], columns: Columns, about: About
) -> tuple[Any, Any, Any, Any, Any, About]:
    """Model, support, query, calib and foreign with data frames read; others as they came.

    ``sets``: model, train, support, query, calib, foreign. A frame in the place of the model is the
    support, and one behind it the query.
    """
    model, train, *rest = sets
    if is_frame(model):
        rest[0], rest[1], model = model, train if rest[1] is None else rest[1], None
    roles = dict(zip(("support", "query", "calib", "foreign"), rest, strict=True))
    read = dict[str, FrameRows]()
    for role, frame in roles.items():
        if is_frame(frame):
            first = read.get("support")  # whose columns of numbers are those of all
            alike = replace(columns, embedding=first.features) if first and first.features else None
            read[role] = frame_rows(frame, alike or columns, role)
    if not read:
        if columns.label or columns.image:
            raise InputError("`label` and `image` name columns of a data frame; none was given.")
        return (model, *rest, about)
    roles |= {role: found.pair for role, found in read.items()}
    if "foreign" in read:
        roles["foreign"] = read["foreign"].rows
    support = read.get("support")
    if support is None or support.labels is None:
        names = ", ".join(map(str, rest[0].columns)) if is_frame(rest[0]) else ""
        raise InputError(f"`support` has no labels (columns: {names}). Name them: label='column'.")
    return (model, *roles.values(), _described(about, support, read))


def _described(about: About, support: FrameRows, read: dict[str, FrameRows]) -> About:
    """Ids and images of the frames, and the sentence that says what rows are compared by."""
    query = read.get("query", support)
    media = about.media
    if media is None and support.images is not None and query.images is not None:
        media = media_of_images(query.images, support.images)
    return replace(
        about,
        support_ids=about.support_ids or support.ids,
        query_ids=about.query_ids or query.ids,
        media=media,
        warnings=(*about.warnings, f"{support.how}; embedding= names others."),
    )
