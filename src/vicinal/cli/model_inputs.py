"""What a model on the command line is fed, and whether it can take it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from vicinal.capture import batches, evaluating
from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows
from vicinal.cli.models import check_output, imported
from vicinal.cli.row_set import RowSet, checked_labels
from vicinal.cli.user_code import user_code
from vicinal.cli.verbs import DataOptions
from vicinal.files import reading, regular_file
from vicinal.labels import labels_of

PIXELS = 100_000_000  # of the largest picture that is decoded


def read_image(
    path: str | Path | BinaryIO, *, size: int | None = None, gray: bool = False
) -> NDArray[Any]:
    """uint8 ``(h, w)`` or ``(h, w, 3)``, resized to a square of ``size`` if asked."""
    if isinstance(path, (str, Path)):
        regular_file(path, "image")
    name = path if isinstance(path, (str, Path)) else "the picture"
    with reading(f"image {name}", "Replace it or leave it out."), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is below
        with Image.open(path) as file:
            if file.width * file.height > PIXELS:
                raise InputError(
                    f"image {name} claims {file.width} x {file.height} pixels. Make it smaller."
                )
            image = file.convert("L" if gray else "RGB")
        if size is not None:
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image)


def pictures(rows: RowSet, media_root: Path | None) -> tuple[Sequence[Any] | None, str | None]:
    """The pictures of the rows and, if they may not be shown, a sentence that says why.

    Paths in a data file are read below that file's folder or ``media_root``, and nowhere else:
    whoever wrote the file may not choose what of this machine is put on a page.
    """
    images = rows.images
    if images is None or not len(images):
        return None, None
    if not isinstance(images[0], (str, np.str_)):
        for at, item in enumerate(images):
            _check_pixels(np.asarray(item), f"{rows.name}: the picture of row {at}")
        return images, None
    root = media_root or rows.root
    if root is None:
        return [str(regular_file(str(path), "image")) for path in images], None
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
    """Inputs and codes of classes as a data set, the rows they came from, and the class names.

    Labels that are whole numbers are the codes themselves: the places of the model's outputs.
    ``classes`` are the names of the codes, where the labels are text.
    """

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
        with user_code(spec):
            is_data = hasattr(found, "__getitem__") and not isinstance(found, type)
            data_set = found if is_data or not callable(found) else found()
        return ModelInputs(data_set, RowSet(spec.rpartition(":")[2], None))
    rows = checked_labels(read_rows(spec, options))
    codes = classes = None
    with reading(spec):
        if rows.labels is not None:
            labels = labels_of(rows.labels, len(rows))
            codes, classes = labels.codes, [str(name) for name in labels.classes.tolist()]
            if labels.classes.dtype.kind in "iu":
                codes, classes = torch.from_numpy(rows.labels.astype(np.int64)), None
        if rows.embeddings is None:
            paths = [str(regular_file(str(path), "image")) for path in rows.images or ()]
            return ModelInputs(ImageFiles(paths, codes, size=size, gray=gray), rows, classes)
        if rows.embeddings.dtype.kind not in "biuf" or rows.embeddings.ndim < 1 or not len(rows):
            shape = f"shape {rows.embeddings.shape} of {rows.embeddings.dtype}"
            raise InputError(f"{rows.source} must hold rows of numbers for the model, got {shape}.")
        x = torch.from_numpy(np.ascontiguousarray(rows.embeddings).astype(np.float32))
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
    found = [int(y) if inputs.classes is None else place[str(y)] for y in rows.labels.tolist()]
    codes = torch.tensor(found)
    if isinstance(inputs.data, tuple):
        return replace(inputs, data=(inputs.data[0], codes), rows=rows)
    return replace(inputs, data=inputs.data.with_codes(codes), rows=rows)


def check_fits(model: nn.Module, data: Any) -> None:
    """One small batch, so that a model that does not fit its data says so before the work."""
    with user_code("the data"):
        batch = next(batches(data, 2), None)
    if batch is None:
        raise InputError("the data set has no rows.")
    shape = tuple(getattr(batch.inputs[0], "shape", ()))
    with evaluating(model, None), torch.no_grad(), user_code(f"the model on inputs of {shape}"):
        result = batch.call(model, None)
    check_output(result)
