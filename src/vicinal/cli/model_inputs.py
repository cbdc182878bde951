"""What a model on the command line is fed, and whether it can take it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from vicinal.audits.pictures import floats, read_image
from vicinal.capture import batches, evaluating
from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows
from vicinal.cli.image_rows import pictures
from vicinal.cli.models import check_output, imported
from vicinal.cli.row_set import RowSet, checked_labels
from vicinal.cli.user_code import user_code
from vicinal.cli.verbs import LARGEST, DataOptions, ImageOptions
from vicinal.files import reading
from vicinal.labels import labels_of


@dataclass(frozen=True)
class ImageReading:
    """How images become inputs: resized to a square, with one channel, shifted and scaled."""

    size: int | None = None
    gray: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of(cls, options: ImageOptions) -> ImageReading:
        """What the flags say."""
        mean = floats(options.mean, "--mean") if options.mean is not None else ()
        std = floats(options.std, "--std") if options.std is not None else ()
        return cls(options.size, options.gray, mean, std).checked()

    def filled(self, other: Any) -> ImageReading:
        """With what ``other`` says where nothing was said here."""
        if other is None:
            return self
        return ImageReading(
            self.size or other.size,
            self.gray or other.gray,
            self.mean or tuple(other.mean),
            self.std or tuple(other.std),
        ).checked()

    def checked(self) -> ImageReading:
        """Itself, if there is a mean and a deviation for each channel; files say it as well."""
        if self.size is not None and not 1 <= self.size <= LARGEST:
            raise InputError(f"images cannot be read at size {self.size}: 1 to {LARGEST} can.")
        for name, part in (("--mean", self.mean), ("--std", self.std)):
            if len(part) not in (0, 1, 3) or not all(map(math.isfinite, part)):
                raise InputError(f"the {name} of images must be 1 or 3 numbers, got {part}.")
        if 0.0 in self.std:
            raise InputError("the --std of images must not be 0: pixels are divided by it.")
        if self.gray and 3 in (len(self.mean), len(self.std)):
            raise InputError(
                "images are read with one channel (--gray), and there are three numbers for their "
                "mean or deviation. Give one: --mean 0.5 --std 0.5."
            )
        return self

    def as_options(self) -> dict[str, Any]:
        """The flags that say the same."""
        mean, std = (",".join(map(str, part)) or None for part in (self.mean, self.std))
        return {"size": self.size, "gray": self.gray, "mean": mean, "std": std}

    def as_input(self, pixels: NDArray[Any]) -> Tensor:
        """Pixels as the model gets them: float ``(c, h, w)``, in [0, 1] before mean and std."""
        x = torch.from_numpy(pixels.copy()).float() / 255
        x = x[None] if x.ndim == 2 else x.permute(2, 0, 1)
        if self.mean:
            x = x - torch.tensor(self.mean)[:, None, None]
        return x / torch.tensor(self.std)[:, None, None] if self.std else x


AS_THEY_ARE = ImageReading()


class ImageFiles(Dataset[Any]):
    """Images of a folder as float tensors ``(c, h, w)``, with the codes of their classes.

    Parameters
    ----------
    paths : the image files, what they hold, or arrays of pixels, one per row.
    codes : the code of each row's class, if the classes are known.
    how : how they are read; without a size images of one size are taken as they are.
    """

    def __init__(
        self,
        paths: Sequence[Any],
        codes: Int[Tensor, " n"] | None,
        how: ImageReading = AS_THEY_ARE,
    ):
        self.paths, self.codes, self.how = paths, codes, how
        first = read_image(paths[0], gray=how.gray).shape
        self.shape = (how.size, how.size) if how.size else first[:2]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor | tuple[Tensor, int]:
        pixels = read_image(self.paths[row], size=self.how.size, gray=self.how.gray)
        if pixels.shape[:2] != self.shape:
            called = _called(self.paths[row], row)
            raise InputError(
                f"{called} is {pixels.shape[1]} x {pixels.shape[0]} pixels, the first "
                f"{self.shape[1]} x {self.shape[0]}. Add --size N to bring all to one size."
            )
        x = self.how.as_input(pixels)
        return x if self.codes is None else (x, int(self.codes[row]))


def _called(path: Any, row: int) -> str:
    return path if isinstance(path, str) else f"the picture of row {row}"


@dataclass(frozen=True)
class ModelInputs:
    """Inputs and codes of classes as a data set, the rows they came from, and the class names.

    Labels that are whole numbers are the codes themselves: the places of the model's outputs.
    ``classes`` are the names of the codes, where the labels are text.
    """

    data: Any
    rows: RowSet
    classes: list[str] | None = None


def model_inputs(
    spec: str,
    options: DataOptions,
    how: ImageReading,
    tokenize: Callable[[Sequence[str]], Tensor] | None = None,
) -> ModelInputs:
    """Images of a folder, texts, rows of an array file, or a ``module:dataset``.

    Parameters
    ----------
    spec : the file, folder or name of a data set.
    options : under which keys an array file keeps what.
    how : how images are read.
    tokenize : makes inputs of texts, where the model reads texts.
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
        if rows.texts is not None and (tokenize is not None or rows.embeddings is None):
            if tokenize is None:
                raise InputError(
                    f"{rows.name} holds texts, which this model does not read: --model "
                    "hf:folder-or-name or sentence-transformers:name."
                )
            x = tokenize(rows.texts)
            return ModelInputs(x if codes is None else (x, codes), rows, classes)
        if tokenize is not None:
            raise InputError(f"{rows.name} holds no texts for the model (--text-col names them).")
        if rows.embeddings is None and np.asarray((rows.images or [""])[0]).dtype.kind == "f":
            rows = replace(rows, embeddings=np.stack(rows.images or []))  # inputs, as they are
        if rows.embeddings is None:
            paths, note = pictures(rows, options.media_root)
            if paths is None:
                raise InputError(note or f"{rows.name} holds no images for the model.")
            return ModelInputs(ImageFiles(paths, codes, how), rows, classes)
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
    pairs = isinstance(inputs.data, tuple)
    codes = torch.tensor(new)[inputs.data[1] if pairs else inputs.data.codes]
    return replace(inputs, data=_with_codes(inputs.data, codes), classes=names)


def _with_codes(data: Any, codes: Int[Tensor, " n"]) -> Any:
    """The same inputs, their classes numbered anew."""
    return (data[0], codes) if isinstance(data, tuple) else ImageFiles(data.paths, codes, data.how)


def relabeled(inputs: ModelInputs, rows: RowSet) -> ModelInputs:
    """The same inputs with the labels of ``rows``, all of classes there were."""
    place = {name: code for code, name in enumerate(inputs.classes or ())}
    assert rows.labels is not None
    found = [int(y) if inputs.classes is None else place[str(y)] for y in rows.labels.tolist()]
    return replace(inputs, data=_with_codes(inputs.data, torch.tensor(found)), rows=rows)


def check_fits(model: nn.Module, data: Any, role: str = "") -> None:
    """One small batch, so that a model that does not fit its data says so before the work."""
    with user_code("the data"):
        batch = next(batches(data, 2), None)
    if batch is None:
        raise InputError("the data set has no rows.")
    shape = tuple(getattr(batch.inputs[0], "shape", ()))
    whose = f" ({role})" if role else ""
    with evaluating(model, None), torch.no_grad():
        try:
            with user_code(f"the model on inputs of {shape}{whose}"):
                result = batch.call(model, None)
        except InputError as error:
            hint = what_would_fit(model, data)
            raise InputError(f"{error} {hint}".strip()) from error
    check_output(result)


SIZES = (224, 32, 28, 64, 96, 299, 8)


def what_would_fit(model: nn.Module, data: Any) -> str:
    """The flag with which the model takes the images of ``data``; nothing where none helps."""
    if not isinstance(data, ImageFiles):
        return ""
    for size, gray in itertools.product((data.how.size, *SIZES), (False, True)):
        how = replace(data.how, size=size, gray=gray)
        if how == data.how or (gray and len(how.mean) == 3):
            continue
        try:
            x = how.as_input(read_image(data.paths[0], size=size, gray=gray))[None]
            with evaluating(model, None), torch.no_grad():
                model(x)
        except (Exception, SystemExit):  # whatever the model says: it does not fit
            continue
        flags = " ".join(
            [*(["--gray"] if gray else []), *([f"--size {size}"] if size != data.how.size else [])]
        )
        return f"It takes these images with {flags}." if flags else "It takes them without --gray."
    return ""
