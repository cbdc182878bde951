"""Names and codes of classes: the only place where the one becomes the other.

A *class* is what the user calls it: a number, a word, a date. A *code* is its position among the
sorted classes. Codes are made once, where labels come in, and become names again once, where
answers go out. Soft labels ``(n, c)`` are over the codes already. All labels of a set are of one
kind: 1 and "1" in one list are a mistake, not two classes.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_distributions

UNKNOWN, UNLABELED = -1, -2  # codes of a class the support lacks, and of a row without label
_KINDS: dict[str, tuple[type, ...]] = {
    "truth values": (bool, np.bool_),
    "numbers": (int, float, np.number),
    "text": (str,),
    "bytes": (bytes,),
    "dates": (datetime.date, np.datetime64),
}


class Labels(NamedTuple):
    """Classes in sorted order and, for each row, the code of its class or its soft label.

    Without rows it is the classes alone, to code other labels by.
    """

    classes: NDArray[Any]
    codes: Int[Tensor, " n"] | Float[Tensor, "n c"] = torch.zeros(0, dtype=torch.long)

    @property
    def soft(self) -> bool:
        return self.codes.ndim == 2

    def counts(self) -> Float[Tensor, " c"]:
        if self.soft:
            return self.codes.sum(0, dtype=torch.float64)
        return torch.bincount(self.codes, minlength=len(self.classes)).double()


def labels_of(y: Any, rows: int, name: str = "y") -> Labels:
    """Labels of any one hashable kind, or soft labels ``(n, c)`` whose rows sum to 1.

    >>> labels_of(["b", "a", "b"], 3).codes
    tensor([1, 0, 1])
    """
    array = _array(y, rows, name)
    if array.ndim == 2:
        return _soft(array, name)
    missing = _missing(array)
    if missing.any():
        raise InputError(
            f"`{name}` row {int(missing.argmax())} has no label (None). Leave such rows out."
        )
    return Labels(*_coded(_of_one_kind(array, name)))


def hard_labels_of(y: Any, rows: int, why: str) -> Labels:
    """:func:`labels_of` where soft ones mean nothing."""
    labels = labels_of(y, rows)
    if labels.soft:
        raise InputError(f"`y` must be hard, got soft labels, but {why}. Pass y.argmax(1).")
    return labels


def known_codes(y: Any, rows: int, classes: NDArray[Any], why: str) -> Int[Tensor, " n"]:
    """:func:`codes_of` where each label must be one of ``classes``.

    ``why`` not, said of the first row: "is {}, which …", with its label.
    """
    codes = codes_of(y, rows, Labels(classes))
    if bool((codes < 0).any()):
        row = int((codes < 0).nonzero()[0])
        raise InputError(f"`y` row {row} {why}".format(repr(np.asarray(y)[row])))
    return codes


def codes_of(
    y: Any, rows: int, known: Labels, *, unlabeled: bool = False, name: str = "y"
) -> Int[Tensor, " n"] | Float[Tensor, "n c"]:
    """Labels in the numbering of ``known``; a label it does not hold becomes ``UNKNOWN``.

    Parameters
    ----------
    y : one label per row, or soft labels ``(n, c)`` where the known ones are soft.
    rows : how many there must be.
    known : the classes to number by, ``Labels(classes)``.
    unlabeled : whether rows may have no label: None, or (scikit-learn's mark) -1 where the classes
        are integers without -1. They become ``UNLABELED``.
    name : of the argument, for what may have to be said.

    >>> known = labels_of(["cat", "dog"], 2)
    >>> codes_of(["dog", None, "cow"], 3, known, unlabeled=True)
    tensor([ 1, -2, -1])
    """
    array = _array(y, rows, name)
    if array.ndim == 2:
        if not known.soft:
            raise InputError(
                f"`{name}` is soft labels (n, c) but the support's labels are hard. "
                f"Pass {name}.argmax(1)."
            )
        _check_width(array.shape[1], known, name)
        return _soft(array, name).codes
    missing = _missing(array) if unlabeled else np.zeros(rows, dtype=bool)
    given = labels_of(array[~missing], rows - int(missing.sum()), name)
    codes = torch.full((rows,), UNLABELED)
    if not len(given.codes):
        return codes
    _check_kind(given.classes, known.classes, name)
    is_time = known.classes.dtype.kind in "Mm"  # of any unit
    names = given.classes.astype(known.classes.dtype) if is_time else given.classes
    place = {label: code for code, label in enumerate(known.classes.tolist())}
    if unlabeled and names.dtype.kind == "i":
        place = {-1: UNLABELED} | place
    renumbered = torch.tensor([place.get(label, UNKNOWN) for label in names.tolist()])
    codes[torch.from_numpy(~missing)] = renumbered[given.codes]
    return codes


def joined(old: Labels, new: Labels) -> Labels:
    """Labels of old rows followed by new ones, over the union of their classes."""
    if old.soft or new.soft:
        if not (old.soft and new.soft):
            raise InputError("`y` must be soft labels (n, c) if and only if the support's are.")
        _check_width(len(new.classes), old, "y")
        return Labels(old.classes, torch.cat([old.codes, new.codes]))
    _check_kind(new.classes, old.classes, "y")
    classes, codes = _coded(np.concatenate([old.classes, new.classes]))
    first, second = codes[: len(old.classes)], codes[len(old.classes) :]
    return Labels(classes, torch.cat([first[old.codes], second[new.codes]]))


def without_empty_classes(labels: Labels) -> Labels:
    """Hard labels renumbered over the classes that still have a row."""
    if labels.soft:
        return labels
    used, codes = torch.unique(labels.codes, return_inverse=True)
    return Labels(labels.classes[used.numpy()], codes)


def log_class_shares(
    codes: Int[Tensor, " n"] | Float[Tensor, "n c"], classes: int, *, leave_one_out: bool = False
) -> Float[Tensor, " c"] | Float[Tensor, "n c"]:
    """Log shares of the classes, one pseudo-row of all of them added: none is -inf.

    ``leave_one_out``: (n, c), for each row what the others and the pseudo-row say.

    >>> log_class_shares(torch.tensor([0, 0, 0]), 2).exp()
    tensor([0.8750, 0.1250], dtype=torch.float64)
    """
    soft = codes.ndim == 2
    counts = codes.sum(0) if soft else torch.bincount(codes, minlength=classes)
    counts = counts.double() + 1 / classes
    if leave_one_out:
        counts = counts - (codes if soft else torch.nn.functional.one_hot(codes, classes))
    return (counts / counts.sum(-1, keepdim=True)).log()


def at_codes(values: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Each row's value of one class, its own or another."""
    return values.gather(1, codes[:, None])[:, 0]


def named(classes: NDArray[Any], codes: Tensor, like: Any) -> Any:
    """Class names of codes: a tensor if ``like`` is one and the names are numbers."""
    names = classes[codes.cpu().numpy()]
    if isinstance(like, Tensor) and names.dtype.kind in "biu":
        return torch.from_numpy(np.ascontiguousarray(names)).to(like.device)
    return names


def folds_of(codes: Int[Tensor, " n"] | Float[Tensor, "n c"], count: int) -> Int[Tensor, " n"]:
    """Each class dealt over the folds, in an order that does not depend on that of the rows."""
    codes = codes.argmax(1) if codes.ndim == 2 else codes
    shuffled = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[codes[shuffled].argsort(stable=True)]
    fold = torch.empty(len(codes), dtype=torch.long)
    fold[by_class] = torch.arange(len(codes)) % count
    return fold


def _array(y: Any, rows: int, name: str) -> NDArray[Any]:
    """``(rows,)`` labels, or ``(rows, c)`` soft ones; lists keep the kinds of what they hold."""
    if y is None:
        raise InputError(
            "This estimator requires y to be passed, but the target y is None. "
            "Pass one label for each row."
        )
    if isinstance(y, Tensor):
        values = as_tensor(y, name).detach().cpu()
        if values.ndim == 1 and values.is_floating_point():
            raise _continuous(values.dtype, name)
        array = (values.double() if values.is_floating_point() else values).numpy()
    elif isinstance(y, (list, tuple)):
        array = _listed(y, name)
    else:
        array = np.asarray(y)
        if np.ma.is_masked(y):
            raise InputError(f"`{name}` has masked entries. Leave rows without a label out.")
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            f"`{name}` must hold one label for each of the {rows} rows of `X`, got shape "
            f"{array.shape}. Found input variables with inconsistent numbers of samples."
        )
    if array.ndim > 2:
        raise InputError(f"`{name}` should be a 1d array, got an array of shape {array.shape}.")
    if array.ndim == 2 and array.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning  # which its conventions ask for

        sentence = f"A column-vector {name} was passed when a 1d array was expected."
        warnings.warn(f"{sentence} Pass {name}.ravel().", DataConversionWarning, stacklevel=4)
        array = array[:, 0]
    return array


def _listed(y: Iterable[Any], name: str) -> NDArray[Any]:
    """A list as an array; what numpy would change (numbers beside text, pairs) stays objects."""
    y = [item.tolist() if isinstance(item, Tensor) and item.ndim == 0 else item for item in y]
    kinds = _kinds(y)
    try:
        array = np.asarray(y, dtype=object if len(kinds) > 1 else None)
    except ValueError as error:
        raise InputError(
            f"`{name}` must hold one label for each row, got a ragged list ({error})."
        ) from None
    if array.ndim > 1 and (len(kinds) > 1 or ("tuple" in kinds and array.dtype.kind not in "biuf")):
        array = np.empty(len(y), dtype=object)
        array[:] = y
    return array


def _missing(array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.dtype.kind != "O":
        return np.zeros(len(array), dtype=bool)
    return np.array([label is None for label in array], dtype=bool)


def _of_one_kind(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Checked labels; objects that are all numbers become numbers."""
    if array.dtype.kind == "O" and len(array):
        _check_no_nan(np.array([v != v for v in array], dtype=bool), array, name)
        kinds = _kinds(array)
        if len(kinds) > 1:
            (one, a), (other, b) = sorted(kinds.items())[:2]
            raise InputError(
                f"`{name}` mixes {one} like {a} and {other} like {b}. Labels must be of one "
                "kind: write all of them as numbers or all of them as text."
            )
        if next(iter(kinds)) in ("numbers", "truth values"):
            array = np.array(array.tolist())
        else:
            try:
                set(array)
            except TypeError:
                raise InputError(
                    f"`{name}` holds labels that cannot be told apart ({next(iter(kinds))}, not "
                    "hashable). Pass numbers, text or tuples of them."
                ) from None
    if array.dtype.kind in "fMm":
        _check_no_nan(~np.isfinite(array), array, name)
    if array.dtype.kind == "c" or (array.dtype.kind == "f" and (array != np.floor(array)).any()):
        raise _continuous(array.dtype, name)
    return array


def _check_no_nan(bad: NDArray[np.bool_], array: NDArray[Any], name: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"Input {name} contains NaN or infinity: row {row} is {array[row]}. "
            "Leave rows without a label out."
        )


def _coded(array: NDArray[Any]) -> tuple[NDArray[Any], Int[Tensor, " n"]]:
    """Sorted classes and codes; objects without an order are sorted by how they are written."""
    try:
        classes, codes = np.unique(array, return_inverse=True)
    except TypeError:
        names = sorted(dict.fromkeys(array.tolist()), key=str)
        place = {label: code for code, label in enumerate(names)}
        classes, codes = np.empty(len(names), dtype=object), np.array([place[v] for v in array])
        classes[:] = names
    return classes, torch.from_numpy(codes.astype(np.int64))


def _kinds(labels: Iterable[Any]) -> dict[str, str]:
    """The kinds of some labels, with an example of each as it would be typed."""
    found = {}
    for label in {type(label): label for label in labels}.values():
        kinds = (kind for kind, types in _KINDS.items() if isinstance(label, types))
        shown = repr(str(label)) if isinstance(label, str) else str(label)
        found[next(kinds, type(label).__name__)] = shown
    return found


def _check_kind(new: NDArray[Any], known: NDArray[Any], name: str) -> None:
    """Numbers, truth values included, are one kind: 1, 1.0 and True are equal."""
    (mine, a), (theirs, b) = (*_kinds(new[:1]).items(), *_kinds(known[:1]).items())
    if mine != theirs and not {mine, theirs} <= {"numbers", "truth values"}:
        raise InputError(
            f"the kinds of labels differ: `{name}` holds {mine} like {a}, but the support's "
            f"labels are {theirs} like {b}. Use the same names for the same classes."
        )


def _continuous(dtype: object, name: str) -> InputError:
    kind = str(dtype).removeprefix("torch.")
    return InputError(
        f"`{name}` must be class labels, got dtype {kind} (Unknown label type: continuous, "
        "as in regression). Pass y.astype(int) (tensors: y.long()), strings, or soft labels (n, c)."
    )


def _soft(array: NDArray[Any], name: str) -> Labels:
    if array.dtype.kind != "f":
        raise InputError(
            f"`{name}` of shape {array.shape} must be float soft labels, got {array.dtype}. "
            "Pass y.argmax(1) for hard labels, or y.astype(float) with rows that sum to 1."
        )
    _check_no_nan(~np.isfinite(array).all(1), array, name)
    values = as_tensor(array, name)
    check_distributions(values, name)
    return Labels(np.arange(array.shape[1]), values.double())


def _check_width(columns: int, known: Labels, name: str) -> None:
    if columns != len(known.classes):
        raise InputError(
            f"`{name}` has {columns} columns but the support's soft labels have "
            f"{len(known.classes)}. Both must be over the same classes."
        )
