"""What a model on the command line is fed, and whether it can take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn
from torch.utils.data import Dataset

from vicinal.capture import batches, evaluating
from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows
from vicinal.cli.models import check_output, imported
from vicinal.cli.row_set import RowSet, checked_labels
from vicinal.cli.verbs import DataOptions
from vicinal.labels import labels_of


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


@dataclass(frozen=True)
class ModelInputs:
    """Inputs and codes of classes as a data set, the rows they came from, and the class names."""

    data: Any
    rows: RowSet
    classes: list[str] | None = None


def model_inputs(spec: str, options: DataOptions, *, size: int | None, gray: bool) -> ModelInputs:
    """Images of a folder, rows of an array file, or a ``module:dataset``.

    Parameters
    ----------
    spec : the file, folder or name of a data set.
    options : under which keys an array file keeps what.
    size, gray : how images are read: resized to a square, with one channel.
    """
    if ":" in spec and not Path(spec).exists():
        found = imported(spec, "data")
        data_set = found() if callable(found) and not hasattr(found, "__getitem__") else found
        return ModelInputs(data_set, RowSet(spec.rpartition(":")[2], None))
    rows = checked_labels(read_rows(spec, options))
    codes = classes = None
    if rows.labels is not None:
        labels = labels_of(rows.labels, len(rows.labels))
        codes, classes = labels.codes, [str(name) for name in labels.classes.tolist()]
    if rows.embeddings is None:
        images = ImageFiles(rows.images or [], codes, size=size, gray=gray)
        return ModelInputs(images, rows, classes)
    x = torch.from_numpy(np.ascontiguousarray(rows.embeddings)).float()
    return ModelInputs(x if codes is None else (x, codes), rows, classes)


def in_codes_of(names: list[str] | None, inputs: ModelInputs) -> ModelInputs:
    """The same inputs in the codes of the support's classes; classes it lacks come behind."""
    if names is None or inputs.classes is None or inputs.classes == names:
        return inputs
    place = {name: code for code, name in enumerate(names)}
    new = [place.get(name, len(names) + at) for at, name in enumerate(inputs.classes)]
    recode = torch.tensor(new)
    if isinstance(inputs.data, tuple):
        data: Any = (inputs.data[0], recode[inputs.data[1]])
    else:
        data = inputs.data.with_codes(recode[inputs.data.codes])
    return replace(inputs, data=data, classes=names)


def relabeled(inputs: ModelInputs, rows: RowSet) -> ModelInputs:
    """The same inputs with the labels of ``rows``, all of classes there were."""
    place = {name: code for code, name in enumerate(inputs.classes or ())}
    assert rows.labels is not None
    codes = torch.tensor([place[str(label)] for label in rows.labels.tolist()])
    if isinstance(inputs.data, tuple):
        return replace(inputs, data=(inputs.data[0], codes), rows=rows)
    return replace(inputs, data=inputs.data.with_codes(codes), rows=rows)


def check_fits(model: nn.Module, data: Any) -> None:
    """One small batch, so that a model that does not fit its data says so before the work."""
    batch = next(batches(data, 2))
    with evaluating(model, None), torch.no_grad():
        try:
            result = batch.call(model, None)
        except InputError:
            raise
        except Exception as error:
            shape = tuple(getattr(batch.inputs[0], "shape", ()))
            raise InputError(f"the model failed on inputs of shape {shape}: {error}") from None
    check_output(result)
