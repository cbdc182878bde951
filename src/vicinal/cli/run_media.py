"""What the rows look like, gathered for the page and kept beside a run: one ``.npz``, no pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.audits.media import as_pixels
from vicinal.audits.record import Media
from vicinal.cli.images import read_image
from vicinal.cli.row_set import RowSet
from vicinal.files import write_atomically

THUMBNAIL = 48


def media_of(support: RowSet, query: RowSet) -> Media | None:
    """Images if both sets have them, else texts, else the table's columns; None without any."""
    if support.images is not None and query.images is not None:
        return Media("images", Thumbnails(query.images), Thumbnails(support.images))
    if support.texts is not None and query.texts is not None:
        return Media("texts", list(query.texts), list(support.texts))
    if support.table is not None and query.table is not None:
        return Media("tables", list(query.table), list(support.table), columns=query.columns)
    return None


class Thumbnails(Mapping[int, Any]):
    """Images by row, made small when they are asked for: arrays as they are, paths read."""

    def __init__(self, sources: Any):
        self.sources = sources

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.sources)))

    def __getitem__(self, row: int) -> Any:
        item = self.sources[row]
        if isinstance(item, (str, np.str_)):
            return read_image(str(item), size=THUMBNAIL)
        return as_pixels(np.asarray(item))


def save_media(media: Media | None, path: Path) -> None:
    """Keep the media of a run, so that ``explore`` can show them; rows without any are left out."""
    if media is None:
        path.unlink(missing_ok=True)
        return
    arrays: dict[str, Any] = {}
    for side in ("query", "support"):
        items = [media.get(side, row) for row in range(len(getattr(media, side)))]
        if media.kind == "images":
            shapes = {np.asarray(item).shape for item in items}
            if len(shapes) == 1:
                arrays[side] = np.stack([np.asarray(item) for item in items])
                continue
        arrays[side] = np.array([json.dumps(_listed(item)) for item in items], dtype=np.str_)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        kind=np.array(media.kind),
        columns=np.array(media.columns, dtype=np.str_),
        **arrays,
    )
    write_atomically(path, buffer.getvalue())


def load_media(path: Path) -> Media | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        kind = str(file["kind"])
        sides = {}
        for side in ("query", "support"):
            stored = file[side]
            if stored.dtype.kind == "U":
                items = [json.loads(text) for text in stored.tolist()]
                sides[side] = [
                    np.array(item, dtype=np.uint8) if kind == "images" else item for item in items
                ]
            else:
                sides[side] = list(stored)
        return Media(kind, sides["query"], sides["support"], tuple(file["columns"].tolist()))


def _listed(item: Any) -> Any:
    return item.tolist() if isinstance(item, np.ndarray) else item
