"""Image files as a data set of tensors, and as thumbnails for the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from vicinal.checks import InputError


def read_image(
    path: str | Path | BinaryIO, *, size: int | None = None, gray: bool = False
) -> NDArray[Any]:
    """uint8 ``(h, w)`` or ``(h, w, 3)``, resized to a square of ``size`` if asked."""
    try:
        with Image.open(path) as file:
            image = file.convert("L" if gray else "RGB")
    except FileNotFoundError:
        raise InputError(f"no such image: {path}.") from None
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"cannot read image {path}: {error}.") from None
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)


def as_input(pixels: NDArray[Any]) -> Tensor:
    """Pixels as the model gets them: float ``(c, h, w)`` in [0, 1]."""
    x = torch.from_numpy(pixels.copy()).float() / 255
    return x[None] if x.ndim == 2 else x.permute(2, 0, 1)


class ImageFiles(Dataset[Any]):
    """Images of a folder as float tensors ``(c, h, w)`` in [0, 1], with the codes of their classes.

    Parameters
    ----------
    paths : the image files, one per row.
    codes : the code of each row's class, if the classes are known.
    size : the square that every image is resized to; None takes images of one size as they are.
    gray : read one channel instead of three.
    """

    def __init__(
        self,
        paths: Sequence[str],
        codes: Int[Tensor, " n"] | None,
        *,
        size: int | None = None,
        gray: bool = False,
    ):
        self.paths, self.codes, self.size, self.gray = paths, codes, size, gray
        first = read_image(paths[0], gray=gray).shape
        self.shape = (size, size) if size else first[:2]

    def with_codes(self, codes: Int[Tensor, " n"]) -> ImageFiles:
        """The same images, their classes numbered anew."""
        return ImageFiles(self.paths, codes, size=self.size, gray=self.gray)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor | tuple[Tensor, int]:
        pixels = read_image(self.paths[row], size=self.size, gray=self.gray)
        if pixels.shape[:2] != self.shape:
            raise InputError(
                f"{self.paths[row]} is {pixels.shape[1]} x {pixels.shape[0]} pixels, the first "
                f"{self.shape[1]} x {self.shape[0]}. Add --size N to bring all to one size."
            )
        x = as_input(pixels)
        return x if self.codes is None else (x, int(self.codes[row]))
