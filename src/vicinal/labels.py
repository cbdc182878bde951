"""Names and codes of classes: the only place where the one becomes the other.

A *class* is what the user calls it: a number, a word. A *code* is its position among the sorted
classes. Codes are made once, where labels come in, and become names again once, where answers go
out. Soft labels ``(n, c)`` are over the codes already.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_distributions

UNKNOWN, UNLABELED = -1, -2  # codes of a class the support lacks, and of a row without label


class Labels(NamedTuple):
    """Classes in sorted order and, for each row, the code of its class or its soft label."""

    classes: NDArray[Any]
    codes: Int[Tensor, " n"] | Float[Tensor, "n c"]

    @property
    def soft(self) -> bool:
        return self.codes.ndim == 2

    def counts(self) -> Float[Tensor, " c"]:
        if self.soft:
            return self.codes.sum(0, dtype=torch.float64)
        return torch.bincount(self.codes, minlength=len(self.classes)).double()


def labels_of(y: Any, rows: int) -> Labels:
    """Labels of any kind that scikit-learn knows, or soft labels ``(n, c)`` whose rows sum to 1.

    >>> labels_of(["b", "a", "b"], 3).codes
    tensor([1, 0, 1])
    """
    if y is None:
        raise InputError(
            "This estimator requires y to be passed, but the target y is None. "
            "Pass one label for each row."
        )
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            f"`y` must hold one label for each of the {rows} rows of `X`, got shape "
            f"{array.shape}. Found input variables with inconsistent numbers of samples."
        )
    if array.ndim == 2 and array.shape[1] > 1:
        return _soft(array)
    array = column_or_1d(array, warn=True)
    if array.dtype.kind == "f":
        assert_all_finite(array, input_name="y")
    # scikit-learn's contract lets whole numbers come as numpy floats; a float tensor is a mistake.
    if array.dtype.kind == "f" and (isinstance(y, Tensor) or (array != np.floor(array)).any()):
        raise InputError(
            f"`y` must be class labels, got dtype {array.dtype} (Unknown label type: continuous, "
            "as in regression). Pass y.astype(int), strings, or an (n, c) matrix of soft labels."
        )
    check_classification_targets(array)
    classes, codes = np.unique(array, return_inverse=True)
    return Labels(classes, torch.from_numpy(codes.astype(np.int64)))


def codes_of(y: Any, rows: int, known: Labels) -> Int[Tensor, " n"] | Float[Tensor, "n c"]:
    """Labels in the numbering of ``known``; a label it does not hold becomes -1."""
    labels = labels_of(y, rows)
    if labels.soft != known.soft and labels.soft:
        raise InputError(
            "`y` is soft labels (n, c) but the support's labels are hard. Pass y.argmax(1)."
        )
    if labels.soft:
        _check_width(labels, known)
        return labels.codes
    _check_kind(labels.classes, known.classes)
    spot = np.searchsorted(known.classes, labels.classes).clip(max=len(known.classes) - 1)
    codes = np.where(known.classes[spot] == labels.classes, spot, -1)
    values = torch.from_numpy(codes)[labels.codes]
    return values


def joined(old: Labels, new: Labels) -> Labels:
    """Labels of old rows followed by new ones, over the union of their classes."""
    if old.soft or new.soft:
        if not (old.soft and new.soft):
            raise InputError("`y` must be soft labels (n, c) if and only if the support's are.")
        _check_width(new, old)
        return Labels(old.classes, torch.cat([old.codes, new.codes]))
    _check_kind(new.classes, old.classes)
    classes = np.union1d(old.classes, new.classes)
    parts = [
        torch.from_numpy(np.searchsorted(classes, part.classes))[part.codes] for part in (old, new)
    ]
    return Labels(classes, torch.cat(parts))


def without_empty_classes(labels: Labels) -> Labels:
    """Hard labels renumbered over the classes that still have a row."""
    if labels.soft:
        return labels
    used, codes = torch.unique(labels.codes, return_inverse=True)
    return Labels(labels.classes[used.numpy()], codes)


def named(classes: NDArray[Any], codes: Tensor, like: Any) -> Any:
    """Class names of codes: a tensor if ``like`` is one and the names are numbers."""
    names = classes[codes.cpu().numpy()]
    if isinstance(like, Tensor) and names.dtype.kind in "biu":
        return torch.from_numpy(np.ascontiguousarray(names)).to(like.device)
    return names


def _soft(array: NDArray[Any]) -> Labels:
    values = as_tensor(array, "y")
    if not values.is_floating_point():
        raise InputError(
            f"`y` of shape {array.shape} must be float soft labels, got {array.dtype}. "
            "Pass y.astype(float) with rows that sum to 1, or y.argmax(1) for hard labels."
        )
    assert_all_finite(array, input_name="y")
    check_distributions(values, "y")
    return Labels(np.arange(array.shape[1]), values.double())


def _check_width(labels: Labels, known: Labels) -> None:
    if len(labels.classes) != len(known.classes):
        raise InputError(
            f"`y` has {len(labels.classes)} columns but the support's soft labels have "
            f"{len(known.classes)}. Both must be over the same classes."
        )


def _check_kind(new: NDArray[Any], known: NDArray[Any]) -> None:
    if (new.dtype.kind in "biuf") != (known.dtype.kind in "biuf"):
        raise InputError(
            f"`y` holds labels like {new[0]!r}, but the support's are like {known[0]!r}. "
            "Use the same names for the same classes."
        )
