"""What a model on the command line is fed, and whether it can take it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vicinal.capture import batches, evaluating
from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows
from vicinal.cli.images import ImageFiles
from vicinal.cli.models import check_output, imported
from vicinal.cli.options import DataOptions
from vicinal.cli.row_set import RowSet, checked_labels
from vicinal.labels import labels_of


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
