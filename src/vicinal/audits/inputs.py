"""What an audit is given, made ready: rows, class codes, and the sentences about them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.class_order import stated_positions
from vicinal.audits.sections import SetFacts
from vicinal.audits.settings import About, AuditSettings
from vicinal.checks import InputError, as_matrix, as_tensor, check_k, check_same_width, plural
from vicinal.files import fingerprint
from vicinal.labels import UNKNOWN, UNLABELED, Labels, codes_of, labels_of
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.spaces import RAW, Space

if TYPE_CHECKING:
    from vicinal.audits.sampled import Whole

DEFAULT_K = 100


class AuditWarning(UserWarning):
    """What an audit says about its data; ``audit`` collects every warning into the record."""


def warn(sentence: str) -> None:
    """Every sentence of an audit goes this way, and that of the heads it uses goes beside it."""
    warnings.warn(sentence, AuditWarning, stacklevel=2)


@dataclass(frozen=True, eq=False)
class LabeledRows:
    """One set: rows and class codes (``UNKNOWN``, ``UNLABELED`` below zero), or no codes at all.

    ``rows`` are compared; ``given`` are the same before a map, where there was one. ``whole`` is
    the set that they are a sample of, where it is not in memory.
    """

    name: str
    rows: Float[Tensor, "n r"]
    codes: Int[Tensor, " n"] | None
    dtype: str
    given: Float[Tensor, "n d"] | None = None
    others: dict[int, str] = field(default_factory=dict)  # row -> label the support lacks
    whole: Whole | None = None

    @property
    def count(self) -> int:
        """Of all rows."""
        return len(self.rows if self.whole is None else self.whole)

    @property
    def all_codes(self) -> Int[Tensor, " n"] | None:
        return self.codes if self.whole is None else self.whole.codes

    @property
    def sampled(self) -> bool:
        return self.whole is not None and self.whole.sampled

    @property
    def numbers(self) -> Int[Tensor, " s"]:
        """Which rows of all these are."""
        return torch.arange(len(self.rows)) if self.whole is None else self.whole.some

    @property
    def as_given(self) -> Float[Tensor, "n d"]:
        return self.rows if self.given is None else self.given

    def mapped(self, space: Space) -> LabeledRows:
        return replace(self, rows=space(self.as_given), given=self.as_given)

    @cached_property
    def fingerprint(self) -> str:
        """Of rows and codes; the one time they are hashed."""
        return fingerprint(self.as_given, "" if self.codes is None else self.codes)[:12]

    @property
    def labeled(self) -> bool:
        """Whether some row has a class that the support has."""
        return self.codes is not None and bool((self.codes >= 0).any())

    def facts(self) -> SetFacts:
        """Of the whole set."""
        counts: list[int] = []
        if (codes := self.all_codes) is not None:
            counts = [count for count in torch.bincount(codes[codes >= 0]).tolist() if count]
        whole = self.whole if self.sampled else None
        return SetFacts(
            name=self.name,
            rows=self.count,
            dims=self.as_given.shape[1],
            classes=len(counts),
            smallest_class=min(counts, default=None),
            largest_class=max(counts, default=None),
            labeled=bool(counts),
            fingerprint=self.fingerprint if whole is None else whole.fingerprint,
            dtype=self.dtype,
        )


@dataclass(frozen=True, eq=False)
class Sets:
    """Support, query and calibration rows in one coding of the classes."""

    support: LabeledRows
    query: LabeledRows
    calib: LabeledRows | None
    classes: NDArray[Any]
    names: tuple[str, ...]
    leave_one_out: bool  # the query is the support itself
    foreign: LabeledRows | None = None  # rows known to belong to none of the classes

    @property
    def codes(self) -> Int[Tensor, " n"]:
        """The support's."""
        assert self.support.codes is not None
        return self.support.codes

    @property
    def all_codes(self) -> Int[Tensor, " n"]:
        """Of all support rows, those in memory and the others."""
        assert self.support.all_codes is not None
        return self.support.all_codes

    def mapped(self, space: Space) -> Sets:
        """All rows in the space they are compared in; mapped here, and nowhere after."""
        if space is RAW:
            return self
        own = self.support.mapped(space)
        query = replace(own, name=self.query.name) if self.leave_one_out else None
        return replace(
            self,
            support=own,
            query=query or self.query.mapped(space),
            calib=self.calib and self.calib.mapped(space),
            foreign=self.foreign and self.foreign.mapped(space),
        )


def ready_sets(
    support: Any,
    query: Any,
    calib: Any,
    settings: AuditSettings,
    about: About,
    foreign: Any = None,
) -> Sets:
    """Rows and codes of all sets; what cannot be audited is refused with a sentence."""
    z, y = _pair(support, "support")
    if y is None:
        raise InputError("`support` has no labels. Pass support=(Z, y).")
    if getattr(z, "ndim", 2) == 1 and getattr(y, "ndim", 1) == 2:
        raise InputError("`support` looks swapped: pass support=(embeddings, labels).")
    labels = _support_labels(y)
    names = class_names(labels.classes, about)
    _warn_of_empty_classes(names, about)
    first = _rows(z, labels.codes, "support", about.support_name, settings)
    _warn_of_small_classes(labels.codes, names)
    _warn_of_one_name_twice(names)
    alone = query is None or same_data(z, _pair(query, "query")[0])
    third = fourth = None
    if alone:
        second = replace(first, name=about.query_name)
        warn(
            "query and support are the same rows: using leave-one-out. Confidences are optimistic "
            "if the model was trained on these rows."
        )
        _warn_of_other_labels(None if query is None else _pair(query, "query")[1], labels)
    else:
        second = _rows(*_pair(query, "query"), "query", about.query_name, settings, labels)
        check_same_width(first.rows, second.rows, "support", "query")
    if calib is not None:
        third = _rows(*_pair(calib, "calib"), "calib", about.calib_name, settings, labels)
        if third.codes is None:
            raise InputError("`calib` has no labels: it cannot calibrate anything.")
        check_same_width(first.rows, third.rows, "support", "calib")
        _warn_of_calib_without(third.codes, labels.codes, names)
    if second.codes is None:
        warn(
            "query has no labels: running in predict-only mode (no accuracy, no ECE)."
            + ("" if calib is not None else " To calibrate, pass --calib with labels.")
        )
    if foreign is not None:
        rows = foreign[0] if isinstance(foreign, tuple) else foreign
        fourth = _rows(rows, None, "foreign", about.foreign_name, settings)
        check_same_width(first.rows, fourth.rows, "support", "foreign")
    _check_pictures(about, first, second)
    return Sets(first, second, third, labels.classes, names, alone, fourth)


def _check_pictures(about: About, support: LabeledRows, query: LabeledRows) -> None:
    for role, rows in {"support": support, "query": query}.items():
        seen = about.media and getattr(about.media, role)
        if seen is not None and len(seen) != len(rows.rows):
            raise InputError(
                f"`images` has {len(seen)} pictures for {len(rows.rows)} rows of the {role}. Pass "
                "images=(of the support, of the query), one for each row."
            )


def usable_k(settings: AuditSettings, sets: Sets) -> int:
    available = sets.support.count - 1  # leave-one-out has one row less
    if settings.k is None:
        return min(DEFAULT_K, available)
    if settings.k > available:
        raise InputError(
            f"k={settings.k} but the smallest support fold has {available} rows. Using "
            f"k={available} would change the method silently, so: pass --k {available} or --k auto."
        )
    check_k(settings.k, available, "k", "the support")
    return settings.k


def _pair(value: Any, name: str) -> tuple[Any, Any]:
    if value is None:
        raise InputError(f"`{name}` is missing. Pass {name}=(Z, y).")
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    return value, None


def _count(y: Any, name: str) -> int:
    try:
        return len(y)
    except TypeError:
        raise InputError(
            f"{name} must be a list or an array with one label per row, got {type(y).__name__}."
        ) from None


def _support_labels(y: Any) -> Labels:
    """The classes, and the support's codes: made here, and nowhere after."""
    labels = labels_of(y, _count(y, "labels of support"), "labels of support")
    if labels.soft:
        raise InputError(
            f"labels of `support` must be one class per row, got shape {tuple(labels.codes.shape)}."
            " For one-hot labels pass y.argmax(1)."
        )
    if len(labels.classes) < 2:
        found = f"one class only ({labels.classes[0]})" if len(labels.classes) else "no labeled row"
        raise InputError(f"support has {found}; nothing to contrast.")
    whole = labels.classes.dtype.kind == "f"  # 1.0 is written 1
    return labels._replace(classes=labels.classes.astype(np.int64)) if whole else labels


def _rows(
    z: Any, y: Any, role: str, name: str, settings: AuditSettings, known: Labels | None = None
) -> LabeledRows:
    """Rows, and codes: those of ``y`` in the numbering of ``known``; without it ``y`` is codes."""
    x = as_matrix(z, role).detach().cpu()
    dtype = str(x.dtype).removeprefix("torch.")
    if settings.normalize:
        if zero := int((x == 0).all(1).sum()):
            raise InputError(
                f"`{role}` has {plural(zero, 'row')} of zero norm, which cannot be normalized. "
                "Remove them, or pass normalize=False."
            )
        x = unit_rows(x)
    if y is None:
        return LabeledRows(name, x, None, dtype)
    if _count(y, f"labels of {role}") != len(x):
        raise InputError(
            f"{name}: {len(x)} embeddings but {len(y)} labels. Rows must match one to one."
        )
    if known is None:
        return LabeledRows(name, x, y, dtype)
    codes = codes_of(y, len(x), known, unlabeled=True, name=f"labels of {role}")
    y = y.tolist() if isinstance(y, Tensor) else y
    others = {row: str(y[row]) for row in (codes == UNKNOWN).nonzero().flatten().tolist()}
    _warn_of_unknown(others, role, settings)
    if settings.unknown == "unlabeled":
        codes, others = codes.masked_fill(codes == UNKNOWN, UNLABELED), {}
    return LabeledRows(name, x, codes, dtype, others=others)


def _warn_of_other_labels(y: Any, labels: Labels) -> None:
    """Of rows that are support and query at once, where ``y`` says otherwise than the support."""
    if y is None:
        return
    given = codes_of(y, len(labels.codes), labels, unlabeled=True, name="labels of query")
    if given.ndim == 1 and (other := int(((given != labels.codes) & (given != UNLABELED)).sum())):
        warn(
            f"query has another label than support in {plural(other, 'row')}: its labels are not "
            "used, every row is judged against the label that the support gives it."
        )


def _warn_of_unknown(others: Mapping[int, str], role: str, settings: AuditSettings) -> None:
    found = Counter(others.values())
    rest = (
        "Nothing is fitted on those rows."
        if role == "calib"
        else "They are judged but not scored."
        if settings.unknown == "unlabeled"
        else "Those rows count as unknown (they can never be right). --ignore-unknown drops them "
        "from the scores."
    )
    for label, count in sorted(found.items())[:5]:
        warn(f"class {label!r} occurs {count}x in {role} but never in support. {rest}")


def _warn_of_calib_without(calib: Tensor, codes: Tensor, names: Sequence[str]) -> None:
    """Where classes of a tenth of the support or more have no calibration row."""
    lacking = ~torch.isin(codes, calib)
    if float(lacking.double().mean()) >= 0.1:
        classes = codes[lacking].unique().tolist()
        shown = ", ".join(names[c] for c in classes[:5]) + (", …" if len(classes) > 5 else "")
        warn(
            f"calib has no row of {len(classes)} of {len(names)} classes ({shown}): what is fitted "
            "on it, and what it promises, is for rows of the others."
        )


def _warn_of_empty_classes(names: Sequence[str], about: About) -> None:
    listed = () if isinstance(about.class_names, Mapping) else about.class_names or ()
    unused = [str(name) for name in listed if str(name) not in names]
    if unused and len(listed) > len(names):
        shown = ", ".join(unused[:5]) + (", …" if len(unused) > 5 else "")
        warn(
            f"{len(listed)} class names were given and the support has rows of {len(names)} "
            f"classes: no row is of {shown}."
        )


def _warn_of_small_classes(codes: Tensor, names: Sequence[str]) -> None:
    single = (torch.bincount(codes, minlength=len(names)) == 1).nonzero().flatten().tolist()
    if single:
        shown = ", ".join(names[c] for c in single[:5]) + (", …" if len(single) > 5 else "")
        warn(
            f"{plural(len(single), 'class has', 'classes have')} a single support row ({shown}). "
            "They can be predicted but not leave-one-out checked; they are marked 'n=1' and left "
            "out of per-class ECE."
        )


def _warn_of_one_name_twice(names: Sequence[str]) -> None:
    """Of classes whose names differ in blanks or capitals alone: mostly one class typed twice."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    if twice := [group for group in alike.values() if len(group) > 1]:
        shown = "; ".join(" and ".join(map(repr, group)) for group in twice[:3])
        warn(
            f"{plural(sum(map(len, twice)), 'class name')} differ in blanks or capitals alone: "
            f"{shown}{'; …' if len(twice) > 3 else ''}. If these are one class, give them one name."
        )


def class_names(classes: NDArray[Any], about: About) -> tuple[str, ...]:
    """What the classes are called: whole numbers by their place in a list, text by itself.

    A list never renames labels that are text: whoever wrote it meant another order than ours.
    """
    names, own = about.class_names, classes.tolist()
    if names is None:
        return tuple(map(str, own))
    if isinstance(names, str):
        raise InputError(
            f"`class_names` must be a list with one name for each class, got {names!r}."
        )
    if isinstance(names, Mapping):
        return tuple(str(names.get(label, label)) for label in own)
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise InputError(f"the list of classes names {twice[0]!r} twice.")
    if classes.dtype.kind not in "iu":
        stated_positions(own, list(map(str, names)), "the list of classes")
        return tuple(map(str, own))
    if own[0] >= 0 and len(names) > own[-1]:
        return tuple(str(names[code]) for code in own)
    if len(names) != len(own):
        raise InputError(
            f"{len(names)} class names were given for {len(own)} classes "
            f"({', '.join(map(str, own[:8]))}{', …' if len(own) > 8 else ''}). Give one name for "
            "each, in the order of their numbers."
        )
    return tuple(map(str, names))


def same_data(a: Any, b: Any) -> bool:
    """Whether both are the same rows; then a row must not see itself."""
    if a is b:
        return True
    x, z = as_tensor(a, "support").detach().cpu(), as_tensor(b, "query").detach().cpu()
    if x.dtype != z.dtype:
        x, z = x.double(), z.double()
    return torch.equal(x, z)
