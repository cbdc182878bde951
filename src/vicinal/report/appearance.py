"""What a row looks like on a card: a snippet of text, a table's cells, a thumbnail.

Thumbnails travel as sprite sheets: a thousand small images in one, so that a page stays one file.
"""

from __future__ import annotations

import base64
import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, features

from vicinal.audits.record import Media
from vicinal.report.words import clean

LARGEST = 56  # pixels: what a card shows; the case panel scales it up
COLUMNS = 32
PER_SHEET = COLUMNS * COLUMNS
PAPER = (238, 236, 230)  # behind images that are not square
TEXT_SHOWN = 600
CELLS_SHOWN = 24


def snippet(text: Any) -> str | None:
    if text is None:
        return None
    whole = clean(str(text))
    return whole if len(whole) <= TEXT_SHOWN else whole[:TEXT_SHOWN] + "…"


def cells(row: Any) -> list[float | str] | None:
    """A table's row as numbers and short texts, the first columns of it."""
    if row is None:
        return None
    values = row.tolist() if hasattr(row, "tolist") else list(row)
    return [
        float(f"{value:.6g}")
        if isinstance(value, (int, float)) and value == value and abs(value) != float("inf")
        else clean(str(value))[:80]
        for value in values[:CELLS_SHOWN]
    ]


class Sprites(NamedTuple):
    """Sheets as data URIs, the side of a tile, and the place of each ``(side, row)`` that has one.

    Place p is tile ``p % PER_SHEET`` of sheet ``p // PER_SHEET``.
    """

    sheets: tuple[str, ...]
    size: int
    place: dict[tuple[str, int], int]


class Thumbnails:
    """Small images of rows, each read once however often the page is built."""

    def __init__(self, media: Media) -> None:
        self.media = media
        self.images: dict[tuple[str, int], Image.Image | None] = {}

    def sprites(self, keys: list[tuple[str, int]]) -> Sprites:
        """One tile for every ``(side, row)`` whose image can be read."""
        images = {key: image for key in keys if (image := self.image(key)) is not None}
        first = list(images.values())[:64]
        size = min(LARGEST, max((max(image.size) for image in first), default=LARGEST))
        tiles = [as_tile(image, size) for image in images.values()]
        form = best_form(tiles, size)
        starts = range(0, len(tiles), PER_SHEET)
        sheets = [sheet(tiles[i : i + PER_SHEET], size, form) for i in starts]
        return Sprites(tuple(sheets), size, {key: i for i, key in enumerate(images)})

    def image(self, key: tuple[str, int]) -> Image.Image | None:
        if key not in self.images:
            self.images[key] = image = as_image(self.media.get(*key))
            if image is not None:
                image.thumbnail((LARGEST, LARGEST))
        return self.images[key]


def as_image(item: Any) -> Image.Image | None:
    """An item of ``Media.images`` as RGB, or None where it cannot be read: a gap, not an error."""
    try:
        if isinstance(item, (bytes, bytearray)):
            return Image.open(io.BytesIO(item)).convert("RGB")
        if isinstance(item, Image.Image):
            return item.convert("RGB")
        array = np.asarray(item)
        if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
            array = array.transpose(1, 2, 0)  # channels first, as torch has them
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        if array.dtype.kind == "f":
            array = array * (255.0 if np.nanmax(array) <= 1.0 else 1.0)
            array = np.nan_to_num(array).clip(0, 255)
        return Image.fromarray(array.astype(np.uint8)).convert("RGB")
    except (OSError, ValueError, TypeError, Image.DecompressionBombError):
        return None


def as_tile(image: Image.Image, size: int) -> Image.Image:
    """The whole image inside a square of ``size``; never cropped, never stretched."""
    ratio = size / max(image.size)
    width, height = (max(1, round(side * ratio)) for side in image.size)
    method = Image.Resampling.NEAREST if ratio >= 1 else Image.Resampling.LANCZOS
    tile = Image.new("RGB", (size, size), PAPER)
    tile.paste(image.resize((width, height), method), ((size - width) // 2, (size - height) // 2))
    return tile


def best_form(tiles: list[Image.Image], size: int) -> str:
    """PNG, or for photographs WEBP (JPEG where Pillow lacks it), by trying on the first tiles."""
    if not tiles or size < 24:  # lossy blocks would run over from one small tile into the next
        return "PNG"
    lossy = "WEBP" if features.check("webp") else "JPEG"
    first = tiles[: 2 * COLUMNS]
    smaller = len(sheet(first, size, lossy)) < 0.7 * len(sheet(first, size, "PNG"))
    return lossy if smaller else "PNG"


def sheet(tiles: list[Image.Image], size: int, form: str) -> str:
    """One sheet as a data URI."""
    rows = -(-len(tiles) // COLUMNS)
    canvas = Image.new("RGB", (COLUMNS * size, rows * size), PAPER)
    for place, tile in enumerate(tiles):
        canvas.paste(tile, (place % COLUMNS * size, place // COLUMNS * size))
    colors = np.asarray(canvas)
    canvas = canvas.convert("L") if (colors == colors[..., :1]).all() else canvas
    buffer = io.BytesIO()
    canvas.save(buffer, form, quality=78, method=3)  # PNG ignores what it does not know
    packed = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{form.lower()};base64,{packed}"
