"""The sentences a wrong input earns: what was expected, what came, what to do.

Every room checks its arguments through these few functions, so that the same mistake gets the same
words everywhere. All raise :class:`InputError`, a ``ValueError``; the command line turns it into
exit code 2.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LONGEST_NAME = 200  # characters of a name that another is looked for


class InputError(ValueError):
    """A wrong input. The message names the argument, what was expected, what came and the fix."""


def is_traced() -> bool:
    """May values not be looked at? torch.compile or a transform of torch.func is at work."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor that shares memory with ``value`` where it can (torch, numpy, nested lists).

    >>> as_tensor([[1, 2]], "x").shape
    torch.Size([1, 2])
    """
    if isinstance(value, Tensor):
        return _dense_reals(value, name)
    array = _array(value, name)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"`{name}` must hold real numbers, got {type(value).__name__} of dtype {array.dtype}. "
            "Convert it with np.asarray(..., dtype=float)."
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        # torch computes with no wider unsigned kind than uint8; what int64 cannot hold is float64.
        wide = int(array.max(initial=0)) > np.iinfo(np.int64).max
        array = array.astype(np.float64 if wide else np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)  # long doubles: torch has none
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _array(value: Any, name: str) -> NDArray[Any]:
    """What numpy makes of a container; ragged lists and masked entries are refused."""
    try:
        array = value.to_numpy() if hasattr(value, "to_numpy") else value  # pandas, polars
        masked = np.ma.is_masked(array)
        array = np.asarray(array)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"`{name}` cannot be read as numbers: {error}. Pass an array or tensor of shape (n, d)."
        ) from None
    if masked:
        raise InputError(
            f"`{name}` has masked entries, which would count as numbers. Leave these rows out, or "
            "fill them with x.filled(value)."
        )
    return array


def _dense_reals(x: Tensor, name: str) -> Tensor:
    """A tensor whose values are there and real; else the way to one."""
    if x.layout is not torch.strided:
        kind, fix = "sparse", f"Pass {name}.to_dense()."
    elif x.is_quantized:
        kind, fix = "quantized", f"Pass {name}.dequantize()."
    elif x.is_complex():
        kind, fix = "complex", f"Pass its real part or torch.view_as_real({name}).flatten(1)."
    elif x.is_meta:
        kind, fix = "a meta tensor, which holds no values", "Load it on a device first."
    else:
        return x
    raise InputError(f"`{name}` must hold real numbers, got {kind} ({x.dtype}). {fix}")


def same_kind(result: Tensor, like: Any) -> Any:
    """``result`` as numpy unless ``like`` (what the caller passed) is a tensor."""
    return result if isinstance(like, Tensor) else result.detach().cpu().numpy()


def as_matrix(value: Any, name: str, *, finite: bool = True) -> Tensor:
    """Rows of floats ``(n, d)``; fp16, bf16 and integers become fp32, fp64 stays."""
    x = as_tensor(value, name)
    if x.ndim != 2:
        hint = "Flatten each sample with x.flatten(1)." if x.ndim > 2 else "Reshape it to (n, d)."
        raise InputError(
            f"`{name}` must be a matrix with one row per sample, got shape {tuple(x.shape)}. {hint}"
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InputError(
            f"`{name}` is empty: shape {tuple(x.shape)}. Pass at least one row and column."
        )
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if finite:
        check_finite(x, name)
    return x


def check_finite(x: Tensor, name: str) -> None:
    """NaN and infinity are errors everywhere but in a loss; the rows that hold them are named."""
    x = x.float() if x.is_floating_point() and x.element_size() == 1 else x  # float8 has no sum
    if bool(torch.isfinite(x.sum())):  # one cheap pass; the sum is finite only if every entry is
        return
    bad = (~torch.isfinite(x)).flatten(1).any(1) if x.ndim > 1 else ~torch.isfinite(x)
    rows = bad.nonzero().flatten().tolist()
    if not rows:  # finite entries whose sum overflowed
        return
    shown = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
    raise InputError(
        f"`{name}` has NaN or infinite values in {len(rows)} of {len(x)} rows (rows {shown}). "
        "Remove or repair these rows; nothing is imputed."
    )


def label_tensor(labels: Any, name: str) -> Tensor:
    """Labels as a tensor; names of classes are refused with the way to numbers."""
    try:
        return as_tensor(labels, name)
    except InputError as error:
        raise InputError(
            f"{error} Names of classes become numbers by np.unique(labels, return_inverse=True)[1]."
        ) from None


def check_labels(labels: Tensor, name: str, rows: int) -> Tensor:
    """Integer labels ``(rows,)`` or float soft labels ``(rows, c)``; shapes and kinds only."""
    if labels.ndim not in (1, 2) or len(labels) != rows:
        raise InputError(
            f"`{name}` must hold one label for each of the {rows} rows, got shape "
            f"{tuple(labels.shape)}. Pass integers (n,) or soft labels (n, c)."
        )
    if labels.ndim == 1 and labels.is_floating_point():
        raise InputError(
            f"`{name}` must be integer class labels, got dtype {labels.dtype}. "
            "Pass labels.long(), or an (n, c) matrix for soft labels."
        )
    if labels.ndim == 2 and not labels.is_floating_point():
        raise InputError(
            f"`{name}` of shape {tuple(labels.shape)} must be float soft labels, "
            f"got {labels.dtype}. "
            "Pass labels.float(), or labels.argmax(1) for hard labels."
        )
    return labels


def check_distributions(p: Tensor, name: str) -> None:
    """Rows are non-negative and sum to one (to 1e-3, looser than half precision rounds)."""
    if bool((p < 0).any()):
        row = int((p < 0).any(1).nonzero()[0])
        raise InputError(
            f"`{name}` has a negative entry in row {row}. Each row must be a distribution."
        )
    sums = p.sum(1, dtype=torch.float64)
    off = (sums - 1).abs() > 1e-3
    if bool(off.any()):
        row = int(off.nonzero()[0])
        raise InputError(
            f"each row of `{name}` must sum to 1, row {row} sums to {float(sums[row]):.4g} "
            f"({int(off.sum())} such rows). Divide by the row sums first."
        )


def check_same_rows(a: Any, b: Any, name_a: str, name_b: str) -> None:
    if len(a) != len(b):
        raise InputError(
            f"`{name_a}` and `{name_b}` must have the same number of rows: "
            f"{name_a} has {len(a)}, {name_b} has {len(b)}."
        )


def check_pair(value: Any, name: str) -> tuple[Any, Any]:
    """Rows and their labels."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        kind = type(value).__name__
        raise InputError(f"`{name}` must be a pair (Z, y): rows and their labels, got {kind}.")
    return value[0], value[1]


def check_same_width(a: Tensor, b: Tensor, name_a: str, name_b: str) -> None:
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"`{name_a}` has {a.shape[1]} dimensions but `{name_b}` has {b.shape[1]}. "
            "They must come from the same model and layer."
        )


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}."
            f"{did_you_mean(str(value), choices)}"
        )


def check_positive(value: float | Tensor, name: str, *, infinite: bool = False) -> None:
    """A number above zero; a tensor is checked by its value unless it is being traced."""
    if isinstance(value, Tensor):
        if is_traced():
            return
        value = float(value.detach().min())
    if not (hasattr(value, "__float__") and value > 0 and (infinite or value < math.inf)):
        raise InputError(f"`{name}` must be a finite number above 0, got {value!r}.")


def as_weights(weight: Any, rows: int) -> Tensor:
    """One finite number of at least 0 for each row, not all 0, in float64; None is 1 for each."""
    if weight is None:
        return torch.ones(rows, dtype=torch.float64)
    found = as_tensor(np.asarray(weight, dtype=np.float64), "sample_weight")
    some = found.sum()
    if found.shape != (rows,) or not bool((found >= 0).all() & (some > 0) & some.isfinite()):
        raise InputError(
            f"`sample_weight` must hold one number for each of the {rows} rows, finite, at least 0 "
            f"and not zero for every row, got shape {tuple(found.shape)} with sum {float(some):g}."
        )
    return found


def check_whole(value: object, name: str, least: int = 0) -> None:
    """A whole number of at least ``least``; True and 2.0 are none."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:  # type: ignore[operator]  # a number by now
        raise InputError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")


def check_share(value: object, name: str) -> None:
    """A number between 0 and 1, neither of them."""
    if not _is_number(value) or not 0 < value < 1:  # type: ignore[operator]  # a number by now
        raise InputError(f"`{name}` must be between 0 and 1 (0.99 for 99 %), got {value!r}.")


def number_or_fit(value: Any, name: str, below: float) -> float | None:
    """A number from 0 to ``below``, which it does not reach; None where it is to be fitted."""
    if isinstance(value, str):
        check_choice(value, name, ("fit",))
        return None
    if not _is_number(value) or not 0 <= value < below:
        raise InputError(
            f"`{name}` must be 'fit' or a number of at least 0 and below {below:g}, got {value!r}."
        )
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def check_k(k: int, available: int, name: str, of: str) -> None:
    """k is never lowered in silence: that would be another method."""
    check_whole(k, name, 1)
    if k > available:
        raise InputError(
            f"`{name}`={k} but {of} has only {available} rows to choose from. "
            f"Pass {name}={max(available, 1)} or fewer, or more rows."
        )


def plural(n: int, one: str, many: str | None = None) -> str:
    """
    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{n:,} {one if n == 1 else (many or one + 's')}"


def closest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The few names nearest to a mistyped one; nobody mistypes a page, or looks among thousands."""
    if len(name) > LONGEST_NAME:
        return []
    short = {n.lower(): n for n in itertools.islice(names, 5000) if len(n) <= LONGEST_NAME}
    return [short[n] for n in difflib.get_close_matches(name.lower(), short, count, 0.5)]


def did_you_mean(name: str, names: Iterable[str], form: str = "{!r}") -> str:
    """A question behind a sentence, with the nearest name as ``form`` shows it; or nothing."""
    return "".join(f" Did you mean {form}?".format(near) for near in closest(name, names, 1))
