"""What the metrics take: numpy or torch in, plain numpy rows out, wrong values named by row.

Metrics work on numpy float64 and sum with ``math.fsum``, whose result is the exactly rounded sum:
no order of the rows, vector width or device can change a bit of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_distributions, check_finite, check_same_rows

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def exact_sum(values: FloatArray) -> float:
    """The sum of ``values``, rounded once: the same for every order of its terms.

    >>> exact_sum(np.array([1e16, 1.0, -1e16]))
    1.0
    """
    return math.fsum(values.tolist())


def row_order(x: FloatArray) -> IntArray:
    """The rank of each row by its bytes (ties by place): sorts rows alike however they came.

    For what must go through a matrix product or a search, whose last bits depend on a row's place.
    """
    rows = np.ascontiguousarray(x + 0.0)  # + 0 turns -0.0 into 0.0
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    rank = np.empty(len(rows), dtype=np.int64)
    rank[np.argsort(keys, kind="stable")] = np.arange(len(rows))
    return rank


def by_class(
    x: Float[Tensor, "n d"], classes: IntArray
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """Rows and their classes by class, then by their bytes: one order of summation, however they
    came."""
    order = np.lexsort((row_order(x.numpy()), classes))
    return x[torch.from_numpy(order)], torch.from_numpy(classes[order])


def as_vector(value: Any, name: str) -> FloatArray:
    """A non-empty, finite vector of its own float kind (integers and bool become float64)."""
    x = as_tensor(value, name).detach().cpu()
    if x.ndim != 1:
        raise InputError(
            f"`{name}` must be a vector with one number per row, got shape {tuple(x.shape)}."
        )
    if len(x) == 0:
        raise InputError(f"`{name}` is empty. Pass at least one row.")
    x = x if x.is_floating_point() else x.double()
    check_finite(x, name)
    # bfloat16 has no numpy kind; float32 holds each of its values exactly
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def as_confidence(value: Any, name: str = "confidence") -> FloatArray:
    """Confidences in [0, 1], kept in their own float kind; rounding above 1 (to 1e-6) is cut."""
    c = as_vector(value, name)
    outside = (c < 0) | (c > 1 + 1e-6)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"`{name}` must lie in [0, 1], row {row} is {float(c[row]):.6g} "
            f"({int(outside.sum())} such rows). Pass probabilities, not logits or percent."
        )
    return np.minimum(c, c.dtype.type(1)) + c.dtype.type(0)  # + 0 turns -0.0 into 0.0


def as_correct(value: Any, rows: int, name: str = "correct") -> BoolArray:
    """One truth value per row: bool, or the numbers 0 and 1."""
    x = as_vector(value, name)
    wrong = (x != 0) & (x != 1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"`{name}` must be True or False (or 1 and 0), row {row} is {float(x[row]):.6g}. "
            "Pass predicted == labels."
        )
    check_same_rows(range(rows), x, "confidence", name)
    return x == 1


def as_probabilities(value: Any, name: str = "probabilities") -> FloatArray:
    """Rows of class probabilities ``(n, c)``: finite, non-negative, each summing to one."""
    p = as_tensor(value, name).detach().cpu()
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] == 0:
        raise InputError(
            f"`{name}` must be a matrix (rows, classes) with at least one row, "
            f"got shape {tuple(p.shape)}."
        )
    p = p if p.is_floating_point() else p.double()
    check_finite(p, name)
    check_distributions(p, name)
    return np.ascontiguousarray((p.float() if str(p.dtype) == "torch.bfloat16" else p).numpy())


def as_columns(labels: Any, rows: int, classes: int, name: str = "labels") -> IntArray:
    """Integer labels as column numbers of a probability matrix with ``classes`` columns."""
    y = as_tensor(labels, name).detach().cpu()
    if y.ndim != 1 or y.is_floating_point():
        raise InputError(
            f"`{name}` must be integer column numbers (n,), got shape {tuple(y.shape)} of "
            f"{y.dtype}. For labels of another kind pass np.searchsorted(head.classes_, labels)."
        )
    check_same_rows(range(rows), y, "probabilities", name)
    columns = y.long().numpy()
    outside = (columns < 0) | (columns >= classes)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"`{name}` must name columns 0..{classes - 1}, row {row} is {int(columns[row])}. "
            "Map labels to columns with np.searchsorted(head.classes_, labels)."
        )
    return columns


def as_classes(labels: Any, rows: int, name: str) -> IntArray:
    """Integer class labels ``(rows,)`` of any values."""
    y = as_tensor(labels, name).detach().cpu()
    if y.ndim != 1 or y.is_floating_point():
        raise InputError(
            f"`{name}` must be integer class labels (n,), got shape {tuple(y.shape)} of {y.dtype}."
        )
    if len(y) != rows:
        raise InputError(f"`{name}` must hold {rows} labels, one for each row, got {len(y)}.")
    return y.long().numpy()
