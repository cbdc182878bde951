"""What an audit is given, made ready: rows, class codes, folds, and the sentences about them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.heads import MIN_ECE_ROWS, Fold
from vicinal.audits.record import SetFacts
from vicinal.checks import InputError, as_matrix, check_choice, check_k, check_same_width
from vicinal.confidence.support import Evidence
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.records import Record

UNKNOWN, UNLABELED = -1, -2  # codes of a class the support lacks, and of a row without label
DEFAULT_K = 100


@dataclass(frozen=True)
class AuditSettings(Record):
    """Everything that decides the numbers, besides the data. The defaults are the command line's.

    k: neighbors that vote; None is 100, or the whole of a smaller support.
    unknown: query rows of a class the support lacks count as ``"wrong"``, or as ``"unlabeled"``.
    embedding, layers: which layers of a model to search in, and to tell the story of.
    """

    k: int | None = None
    metric: str = "sqeuclidean"
    normalize: bool = False
    target_accuracy: float = 0.99
    prior: str = "support"
    unknown: str = "wrong"
    force_ece: bool = False
    seed: int = 0
    search: str = "exact"
    embedding: str | None = None
    layers: tuple[str, ...] = ()
    network_rows: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.metric, "metric", ("sqeuclidean", "euclidean", "cosine"))
        check_choice(self.prior, "prior", ("support", "uniform"))
        check_choice(self.unknown, "unknown", ("wrong", "unlabeled"))
        if not 0 < self.target_accuracy < 1:
            raise InputError(
                f"`target_accuracy` must be between 0 and 1, got {self.target_accuracy!r}."
            )


@dataclass(frozen=True)
class About:
    """What the rows are called and look like; nothing here changes a number."""

    name: str = "audit"
    support_name: str = "support"
    query_name: str = "query"
    calib_name: str = "calib"
    support_ids: Sequence[str] | None = None
    query_ids: Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    model: str | None = None
    command: str = ""
    reproduce: str = ""
    media: Any = None
    show_images: bool = True  # take them from the model's inputs where no media are given
    warnings: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LabeledRows:
    """One set: rows and class codes (``UNKNOWN``, ``UNLABELED`` below zero), or no codes at all."""

    name: str
    rows: Float[Tensor, "n d"]
    codes: Int[Tensor, " n"] | None
    dtype: str

    def facts(self, num_classes: int) -> SetFacts:
        counts = None
        if self.codes is not None and bool((self.codes >= 0).any()):
            counts = torch.bincount(self.codes[self.codes >= 0], minlength=num_classes)
            counts = counts[counts > 0]
        digest = hashlib.sha256(self.rows.contiguous().numpy().tobytes())
        if self.codes is not None:
            digest.update(self.codes.numpy().tobytes())
        return SetFacts(
            name=self.name,
            rows=len(self.rows),
            dims=self.rows.shape[1],
            classes=0 if counts is None else len(counts),
            smallest_class=None if counts is None else int(counts.min()),
            largest_class=None if counts is None else int(counts.max()),
            labeled=counts is not None,
            fingerprint=digest.hexdigest()[:12],
            dtype=self.dtype,
        )


@dataclass(frozen=True)
class Sets:
    """Support, query and calibration rows in one coding of the classes, and what to say of them."""

    support: LabeledRows
    query: LabeledRows
    calib: LabeledRows | None
    classes: NDArray[Any]
    names: tuple[str, ...]
    leave_one_out: bool  # the query is the support itself
    warnings: tuple[str, ...]


def ready_sets(support: Any, query: Any, calib: Any, settings: AuditSettings, about: About) -> Sets:
    """Rows and codes of all sets; what cannot be audited is refused with a sentence."""
    warnings: list[str] = []
    z, y = _pair(support, "support")
    if y is None:
        raise InputError("`support` has no labels. Pass support=(Z, y).")
    classes = np.unique(_column(y, "support"))
    if len(classes) < 2:
        raise InputError("support has one class only; nothing to contrast.")
    first = _rows(z, y, "support", about.support_name, classes, settings, warnings)
    assert first.codes is not None
    _warn_of_small_classes(first.codes, _names(classes, about), warnings)
    alone = query is None or _same_data(support, query)
    if alone:
        second = LabeledRows(about.query_name, first.rows, first.codes, first.dtype)
        warnings.append(
            "query and support are the same rows: using leave-one-out. Confidences are optimistic "
            "if the model was trained on these rows."
        )
    else:
        zq, yq = _pair(query, "query")
        second = _rows(zq, yq, "query", about.query_name, classes, settings, warnings)
        check_same_width(first.rows, second.rows, "support", "query")
    third = None
    if calib is not None:
        zc, yc = _pair(calib, "calib")
        if yc is None:
            raise InputError("`calib` has no labels: it cannot calibrate anything.")
        third = _rows(zc, yc, "calib", about.calib_name, classes, settings, warnings)
        check_same_width(first.rows, third.rows, "support", "calib")
    if second.codes is None:
        warnings.append(
            "query has no labels: running in predict-only mode (no accuracy, no ECE). To "
            "calibrate, pass --calib with labels."
        )
    return Sets(first, second, third, classes, _names(classes, about), alone, tuple(warnings))


def usable_k(settings: AuditSettings, sets: Sets) -> int:
    available = len(sets.support.rows) - 1  # leave-one-out has one row less
    if settings.k is None:
        return min(DEFAULT_K, available)
    if settings.k > available:
        raise InputError(
            f"k={settings.k} but the smallest support fold has {available} rows. Using "
            f"k={available} would change the method silently, so: pass --k {available} or --k auto."
        )
    check_k(settings.k, available, "k", "the support")
    return settings.k


def folds_of(
    sets: Sets,
    neighborhood: Neighborhood,
    graph: Neighborhood,
    calib_neighborhood: Neighborhood | None,
    settings: AuditSettings,
) -> tuple[list[Fold], str, list[str]]:
    """How what is fitted is kept from the rows it is judged on: the folds and a sentence."""
    labels, everyone = sets.support.codes, torch.arange(len(sets.query.rows))
    assert labels is not None
    counts = torch.bincount(labels, minlength=len(sets.classes)).double()
    notes: list[str] = []

    def evidence(part: Neighborhood, codes: Tensor, rows: Tensor) -> Evidence:
        rows = rows[codes[rows] >= 0]
        near = part.rows(rows)
        return Evidence(near, codes[rows], counts, False)

    if sets.calib is not None and calib_neighborhood is not None:
        assert sets.calib.codes is not None
        rows = torch.arange(len(sets.calib.rows))
        found = evidence(calib_neighborhood, sets.calib.codes, rows)
        _check_some(found, "calib")
        return [Fold(found, everyone, None)], f"fitted on {len(rows):,} calibration rows", notes
    codes = sets.query.codes
    known = None if codes is None else (codes >= 0).nonzero().flatten()
    if sets.leave_one_out or codes is None or known is None or len(known) < 4:
        whole = Evidence(graph, labels, counts, True)
        return [Fold(whole, everyone, None)], "leave-one-out on the support", notes
    order = torch.from_numpy(np.random.default_rng(settings.seed).permutation(len(everyone)))
    halves = (order[: len(order) // 2].sort().values, order[len(order) // 2 :].sort().values)
    folds = [
        Fold(evidence(neighborhood, codes, fit), score, fit)
        for fit, score in (halves, halves[::-1])
    ]
    for fold in folds:
        _check_some(fold.evidence, "one half of the query")
    smallest = min(len(fold.evidence.targets) for fold in folds)
    if smallest < MIN_ECE_ROWS // 2:
        notes.append(
            f"each half of the query has only about {smallest} labeled rows to fit on: pass a "
            "larger query or --calib."
        )
    sizes = " + ".join(f"{len(half):,}" for half in halves)
    return folds, f"2-fold cross-fit on query ({sizes})", notes


def _check_some(evidence: Evidence, where: str) -> None:
    if len(evidence.targets) == 0:
        raise InputError(f"no row of {where} has a label of the support. Check the class names.")


def _pair(value: Any, name: str) -> tuple[Any, Any]:
    if value is None:
        raise InputError(f"`{name}` is missing. Pass {name}=(Z, y).")
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    return value, None


def _column(y: Any, name: str) -> NDArray[Any]:
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim != 1:
        raise InputError(
            f"labels of `{name}` must be one class per row, got shape {array.shape}. "
            "For one-hot labels pass y.argmax(1)."
        )
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and (array == np.round(array)).all()):
            raise InputError(
                f"labels are float with {len(np.unique(array)):,} distinct values — regression is "
                "not supported by audit. For classes use integers or strings."
            )
        array = array.astype(np.int64)
    return array


def _rows(
    z: Any,
    y: Any,
    role: str,
    name: str,
    classes: NDArray[Any],
    settings: AuditSettings,
    warnings: list[str],
) -> LabeledRows:
    x = as_matrix(z, role).detach().cpu()
    dtype = str(x.dtype).removeprefix("torch.")
    if settings.normalize:
        if bool((x == 0).all(1).any()):
            raise InputError(
                f"{int((x == 0).all(1).sum())} rows of `{role}` have zero norm; they cannot be "
                "normalized. Remove them, or pass normalize=False."
            )
        x = unit_rows(x)
    if y is None:
        return LabeledRows(name, x, None, dtype)
    raw = np.asarray(y, dtype=object) if _has_none(y) else _column(y, role)
    if len(raw) != len(x):
        raise InputError(
            f"{name}: {len(x)} embeddings but {len(raw)} labels. Rows must match one to one."
        )
    missing = np.array([label is None for label in raw]) if raw.dtype == object else None
    if raw.dtype.kind == "i" and -1 not in classes:  # scikit-learn's mark of a row without label
        missing = raw == -1
    codes = np.full(len(raw), UNKNOWN)
    place = {label: code for code, label in enumerate(classes.tolist())}
    for row, label in enumerate(raw.tolist()):
        codes[row] = place.get(label, UNKNOWN)
    if missing is not None:
        codes[missing] = UNLABELED
    _warn_of_unknown(raw, codes, settings, warnings)
    if settings.unknown == "unlabeled":
        codes[codes == UNKNOWN] = UNLABELED
    return LabeledRows(name, x, torch.from_numpy(codes), dtype)


def _has_none(y: Any) -> bool:
    return isinstance(y, (list, tuple)) and any(label is None for label in y)


def _warn_of_unknown(
    raw: NDArray[Any], codes: NDArray[np.int64], settings: AuditSettings, warnings: list[str]
) -> None:
    rows = codes == UNKNOWN
    for label in sorted({str(label) for label in raw[rows].tolist()})[:5]:
        count = int(sum(str(v) == label for v in raw[rows].tolist()))
        rest = (
            "They are judged but not scored."
            if settings.unknown == "unlabeled"
            else "Those rows count as unknown (they can never be right). --ignore-unknown drops "
            "them from the scores."
        )
        warnings.append(f"class {label!r} occurs {count}x in query but never in support. {rest}")


def _warn_of_small_classes(codes: Tensor, names: Sequence[str], warnings: list[str]) -> None:
    single = (torch.bincount(codes, minlength=len(names)) == 1).nonzero().flatten().tolist()
    if single:
        shown = ", ".join(names[c] for c in single[:5]) + (", …" if len(single) > 5 else "")
        some = f"{len(single)} classes have" if len(single) > 1 else "1 class has"
        warnings.append(
            f"{some} a single support row ({shown}). They can be predicted but not leave-one-out "
            "checked; they are marked 'n=1' and left out of per-class ECE."
        )


def _names(classes: NDArray[Any], about: About) -> tuple[str, ...]:
    if about.class_names is None:
        return tuple(str(label) for label in classes.tolist())
    if classes.dtype.kind in "iu" and len(about.class_names) > int(classes.max()):
        return tuple(str(about.class_names[int(code)]) for code in classes)
    if len(about.class_names) != len(classes):
        raise InputError(
            f"{len(about.class_names)} class names were given for {len(classes)} classes."
        )
    return tuple(map(str, about.class_names))


def _same_data(support: Any, query: Any) -> bool:
    """Whether both are the same rows; then a row must not see itself."""
    a, b = _pair(support, "support")[0], _pair(query, "query")[0]
    if a is b:
        return True
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and bool(np.array_equal(a, b))
