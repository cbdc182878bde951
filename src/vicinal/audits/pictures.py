"""Pictures read from files or arrays, and shown beside the rows of an audit."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vicinal.audits.record import Media, ReadLater
from vicinal.checks import InputError
from vicinal.files import reading, regular_file

PIXELS = 100_000_000  # of the largest picture that is decoded
THUMBNAIL = 48


def read_image(
    path: str | Path | bytes | BinaryIO | NDArray[Any],
    *,
    size: int | None = None,
    gray: bool = False,
) -> NDArray[Any]:
    """uint8 ``(h, w)`` or ``(h, w, 3)``, resized to a square of ``size`` if asked."""
    if isinstance(path, (str, Path)):
        regular_file(path, "image")
    name = path if isinstance(path, (str, Path)) else "the picture"
    if isinstance(path, bytes):  # a whole file
        path = io.BytesIO(path)
    with reading(f"image {name}", "Replace it or leave it out."), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is below
        opened = (
            Image.fromarray(as_pixels(path))
            if isinstance(path, (np.ndarray, Tensor))
            else Image.open(path)
        )
        with opened as file:
            if file.width * file.height > PIXELS:
                raise InputError(
                    f"image {name} claims {file.width} x {file.height} pixels. Make it smaller."
                )
            image = file.convert("L" if gray else "RGB")
        if size is not None:
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image)


def media_of_images(query: Sequence[Any], support: Sequence[Any]) -> Media:
    """Thumbnails of both sets: arrays of pixels, paths of image files, or what these hold."""
    return Media("images", _thumbnails(query), _thumbnails(support))


def given_images(images: Any) -> Media:
    """Thumbnails of ``(support images, query images)``; one list alone is of the support."""
    two = isinstance(images, (tuple, list)) and len(images) == 2
    if two and not isinstance(images[0], (str, Path)):
        return media_of_images(images[1], images[0])
    return media_of_images(images, images)


def _thumbnails(images: Sequence[Any]) -> ReadLater:
    def read(row: int) -> NDArray[Any]:
        item = images[row]
        small = isinstance(item, (str, Path, bytes))
        return read_image(item, size=THUMBNAIL) if small else as_pixels(item)

    return ReadLater(read, len(images))


def as_pixels(image: Any) -> NDArray[np.uint8]:
    """uint8 ``(h, w)`` or ``(h, w, 3)``; floats are scaled by their own range.

    >>> as_pixels(np.array([[[0.0, 0.5], [1.0, 1.0]]])).tolist()
    [[0, 128], [255, 255]]
    """
    pixels = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
        pixels = np.moveaxis(pixels, 0, 2)
    elif pixels.ndim == 3 and pixels.shape[0] == 1:
        pixels = pixels[0]
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint8:
        return pixels
    low, high = min(float(pixels.min()), 0.0), float(pixels.max())
    high = max(high, 1.0) if low >= 0 and high <= 1 else high
    return np.round(255 * (pixels - low) / max(high - low, 1e-12)).astype(np.uint8)


def floats(text: str, name: str) -> tuple[float, ...]:
    """Numbers written ``0.485,0.456,0.406``, one or one for each channel.

    >>> floats("0.5, 0.25,1", "--mean")
    (0.5, 0.25, 1.0)
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 3) or not all(map(math.isfinite, found)):
        raise InputError(f"{name} must be 1 or 3 numbers like 0.485,0.456,0.406, got {text!r}.")
    return found
