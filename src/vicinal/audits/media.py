"""What a model's inputs look like, for the page: images taken from the data as they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from vicinal.audits.record import Media
from vicinal.capture import row_count


def images_of(train: Any, test: Any) -> Media | None:
    """Thumbnails of both sets if their inputs are images ``(c, h, w)`` with 1 or 3 channels."""
    support, query = _Inputs.of(train), _Inputs.of(test)
    if support is None or query is None:
        return None
    return Media("images", query, support)


def as_pixels(image: Any) -> NDArray[np.uint8]:
    """uint8 ``(h, w)`` or ``(h, w, 3)``; floats are scaled by their own range.

    >>> as_pixels(torch.tensor([[[0.0, 0.5], [1.0, 1.0]]])).tolist()
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


class _Inputs(Mapping[int, Any]):
    """Rows of a data set by number, read when they are asked for."""

    def __init__(self, rows: Any, count: int) -> None:
        self.rows = rows
        self.count = count

    @classmethod
    def of(cls, data: Any) -> _Inputs | None:
        """None where rows cannot be had one by one, or are no images."""
        if isinstance(data, (tuple, list)) and data and isinstance(data[0], (Tensor, np.ndarray)):
            data = data[0]
        if isinstance(data, torch.utils.data.DataLoader):
            data = data.dataset
        count = row_count(data)
        by_row = isinstance(data, (Tensor, np.ndarray, Dataset))
        if not count or not by_row or isinstance(data, IterableDataset):
            return None
        found = cls(data, count)
        shape = tuple(getattr(found._input(0), "shape", (0,)))
        return found if len(shape) == 3 and shape[0] in (1, 3) else None

    def _input(self, row: int) -> Any:
        item = self.rows[row]
        return item[0] if isinstance(item, (tuple, list)) else item

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        if not 0 <= row < self.count:
            raise KeyError(row)
        return as_pixels(self._input(row))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count
