"""What a ``.vic`` file must hold before a head is made of it.

Whoever changes a file can mend its checksum too. So nothing in it is believed: every tensor and
every field has its kind, size and range in the tables below, and a head that cannot judge a row is
refused where it is loaded, not where it is first used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.familiarity import part_columns
from vicinal.neighbors.distances import METRICS

FINITE = sys.float_info.max
_FLOATS, _WHOLE = (torch.float32, torch.float64), (torch.int64,)


class Numbers(NamedTuple):
    """A tensor: its sizes, from where to where its numbers reach, and whether they ascend.

    A letter stands for the same size everywhere: n rows, c classes, d columns of what comes in, w
    of what is searched, h held-out rows, m rows that *unfamiliar* is ranked among, p its parts.
    """

    sizes: str
    low: float = -math.inf
    high: float = math.inf
    ascending: bool = False
    kinds: tuple[torch.dtype, ...] = _FLOATS


# A name that ends in "?" may be missing: not every head has such a part.
LINEAR = {
    "linear_coef": Numbers("c d", -FINITE, FINITE),
    "linear_intercept": Numbers("c", -FINITE, FINITE),
    "linear_numbers": Numbers("2", 0, FINITE),
}
BLEND = {"blend": Numbers("b", 0), "blend_log_prior": Numbers("c")}
NED = {
    "support?": Numbers("n w", -FINITE, FINITE),  # or the rows lie in a table
    "ids": Numbers("n", 0, kinds=_WHOLE),
    "numbers": Numbers("4", 0),
    "log_bandwidths?": Numbers("c", -FINITE, FINITE),
    "prior?": Numbers("c", 0, 1),
    "log_prior_shift?": Numbers("c"),
    "prior_option?": Numbers("o", 0),  # as it was asked for
    "space_shift?": Numbers("d", -FINITE, FINITE),
    "crossed_rows?": Numbers("n d", -FINITE, FINITE),
    "crossed_fold?": Numbers("n", 0, kinds=_WHOLE),
}
HELD_OUT = {
    "held_near_distances": Numbers("h", 0, ascending=True),
    "held_log_densities": Numbers("h", ascending=True),
    "held_disagreements": Numbers("h", 0, ascending=True),
    "held_threshold": Numbers("1", 0),
}
FAMILIAR = {
    "held_familiar_parts": Numbers("p m", ascending=True),
    "held_familiar": Numbers("m", ascending=True),
}


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


def _among(*values: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (str, int)) and value in values


def _within(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


CLASSES = {"classes": {"names": _is(list), "dtype": _is(str)}, "features": _texts}
LINEAR_FACTS = {"linear_options": {"l2": _or_none(_within(0, FINITE)), "folds": _count}}
BLEND_FACTS = {"blend_options": {"weights": lambda _: True, "background": lambda _: True}}
NED_FACTS: dict[str, Any] = {
    "options": {
        "search": _is(str),
        "metric": _among(*METRICS),
        "k": _count,
        "prior": _or_none(_is(str)),
    },
    "k": _count,
    **dict.fromkeys(("fitted", "stale", "warnings"), _texts),
    "fitted_on": _among("leave-one-out", "held-out"),
    "torch": _is(bool),
    "space?": {
        "name": _is(str),
        "unit": _is(bool),
        "width": _count,
        "losses?": lambda losses: (
            isinstance(losses, dict) and all(map(_within(-FINITE, FINITE), losses.values()))
        ),
        "form?": _or_none(_is(dict)),
    },
    "store?": {  # a table's name, its columns, how it was known; nothing in it names a server
        "table": lambda name: isinstance(name, str) and bool(name),
        "columns": dict.fromkeys(("id", "label", "embedding"), _or_none(_is(str))),
        "width": _count,
        "marks": _is(str),
        "hnsw": _is(bool),
        "ef_search?": _or_none(_within(1, 1000)),
    },
}
HEAD_FACTS = {
    "standards": {
        "source": _among("held-out", "leave-one-out"),
        "target_accuracy": _within(0, 1),
        "low_credibility?": _within(0, 1),
        "far_percentile?": _within(0, 100),
        "sparse_percentile?": _within(0, 100),
    },
    "familiarity?": {"parts": _texts, "rate": lambda rate: _is(float)(rate) and 0 < rate < 1},
}


def check_state(kind: str, tensors: Mapping[str, Tensor], facts: Any) -> None:
    """Refuse tensors and facts that no saved head has."""
    _check_facts(facts, CLASSES)
    sizes = {"c": _class_count(facts["classes"]["names"])}
    if kind != "linear":
        _check_ned(tensors, facts, sizes)
    if "linear" in kind:
        _check_facts(facts, LINEAR_FACTS)
        _check_tensors(tensors, LINEAR, sizes)
        _need(float(tensors["linear_numbers"][-1]) > 0, "its temperature is 0")
    if kind in ("ned_linear", "head_linear"):
        _check_facts(facts, BLEND_FACTS)
        _check_tensors(tensors, BLEND, sizes)
        odds = len(tensors["blend"]) in (3, 4)  # files of before have none
        _need(odds and float(tensors["blend"][2]) < 1, "the weights of its parts are odd")
        total = float(tensors["blend_log_prior"].double().logsumexp(0))
        _need(abs(total) < 1e-3, "the prior of its blend is no distribution")
    if kind in ("head", "head_linear"):
        _check_standards(tensors, facts, sizes)


def check_answers(head: Any) -> None:
    """Refuse a head that cannot judge one row."""
    out = torch.as_tensor(head.predict_proba(torch.ones(1, head.n_features_in_)))
    _need(bool(out.isfinite().all()), "it gives no probabilities")
    if hasattr(head, "_given"):
        head._given()  # asking checks the options
    ned = getattr(head, "ned_", head)
    _need(getattr(ned, "recipe_", ned) is not None, "it has no recipe")  # asking checks the options


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)


def _check_facts(facts: Any, wanted: Mapping[str, Any], at: str = "") -> None:
    _need(isinstance(facts, dict), f"{at or 'its facts'} is no JSON object")
    for name, asked in wanted.items():
        field, here = name.rstrip("?"), f"{at}{name.rstrip('?')}"
        if field not in facts:
            _need(field != name, f"the field {here!r} is missing")
        elif isinstance(asked, dict):
            _check_facts(facts[field], asked, f"{here}.")
        else:
            _need(asked(facts[field]), f"the field {here!r} cannot be {facts[field]!r:.50}")


def _check_tensors(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Numbers], sizes: dict[str, int]
) -> None:
    """Every tensor against its line of the table; ``sizes`` are the letters known so far."""
    for name, (letters, low, high, ascending, kinds) in wanted.items():
        value = tensors.get(name.rstrip("?"))
        if value is None:
            _need(name.endswith("?"), f"the tensor {name!r} is missing")
            continue
        what = f"the tensor {name.rstrip('?')!r}"
        _need(value.dtype in kinds, f"{what} is of {value.dtype}")
        _need(value.ndim == len(letters.split()), f"{what} has the shape {tuple(value.shape)}")
        for letter, size in zip(letters.split(), value.shape, strict=True):
            known = int(letter) if letter.isdigit() else sizes.setdefault(letter, size)
            _need(size == known > 0, f"{what} has {size} entries where others have {known}")
        inside = bool((value >= low).all()) and bool((value <= high).all())  # NaN is not
        _need(inside, f"{what} holds numbers that are not from {low:g} to {high:g}")
        _need(not ascending or bool((value.diff(dim=-1) >= 0).all()), f"{what} is not sorted")


def _check_ned(tensors: Mapping[str, Tensor], facts: Any, sizes: dict[str, int]) -> None:
    _check_facts(facts, NED_FACTS)
    _need("support" in tensors or "store" in facts, "the tensor 'support' is missing")
    _check_labels(tensors.get("labels"), sizes)
    width = facts["store"]["width"] if "store" in facts else tensors["support"].shape[-1]
    sizes |= {"w": width, "d": facts.get("space", {}).get("width", width)}
    _check_tensors(tensors, NED, sizes)
    _need(len(tensors["ids"].unique()) == sizes["n"], "its ids are not unique")
    _need(facts["k"] <= sizes["n"], f"k={facts['k']} of {sizes['n']} rows")
    _, sharpness, background, dimension = tensors["numbers"].tolist()
    _need(0 < sharpness < math.inf, f"its sharpness is {sharpness}")
    _need(background < 1, f"its background is {background}")
    _need(dimension < math.inf, f"its dimension is {dimension}")
    if "prior" in tensors:
        _need(abs(float(tensors["prior"].sum()) - 1) < 1e-3, "its prior is no distribution")
    given = facts["options"]["prior"] is not None or "prior_option" in tensors
    _need(given, "its prior has no name and no numbers")
    _check_map(tensors.get("space_matrix"), sizes)


def _check_map(matrix: Tensor | None, sizes: Mapping[str, int]) -> None:
    """It leads from rows of the stated width to rows like the support's: one number a column, or a
    matrix."""
    d, w = sizes["d"], sizes["w"]
    if matrix is None:
        _need(d == w, f"its rows have {d} columns, those it searches {w}, and there is no map")
        return
    fits = tuple(matrix.shape) == (d, w) or (tuple(matrix.shape) == (d,) and d == w)
    _need(fits and matrix.dtype in _FLOATS, f"its map has the shape {tuple(matrix.shape)}")
    _need(bool(matrix.isfinite().all()), "its map is not finite")


def _check_labels(labels: Tensor | None, sizes: dict[str, int]) -> None:
    """Codes, or soft labels."""
    _need(labels is not None and labels.ndim > 0, "the tensor 'labels' is missing")
    assert labels is not None
    if not labels.is_floating_point():
        _check_tensors({"labels": labels}, {"labels": Numbers("n", 0, kinds=_WHOLE)}, sizes)
        _need(int(labels.max()) < sizes["c"], f"a label is none of its {sizes['c']} classes")
        return
    _check_tensors({"labels": labels}, {"labels": Numbers("n c", 0)}, sizes)
    _need(bool(((labels.sum(1) - 1).abs() < 1e-3).all()), "its soft labels are no distributions")


def _class_count(names: list[Any]) -> int:
    kinds = set(map(type, names))
    _need(len(kinds) == 1 and kinds <= {str, int, float, bool}, "its classes are of odd kinds")
    _need(names == sorted(set(names)), "its classes are not sorted, or named twice")
    return len(names)


def _check_standards(tensors: Mapping[str, Tensor], facts: Any, sizes: dict[str, int]) -> None:
    _check_facts(facts, HEAD_FACTS)
    _check_tensors(tensors, HELD_OUT, sizes)
    most = float(tensors["held_disagreements"][-1])
    _need(most <= sizes["n"], "its neighbors disagree too often")
    threshold = float(tensors["held_threshold"])
    _need(threshold <= 1 or threshold == math.inf, f"its threshold is {threshold}")
    for name, value in facts["standards"].items():
        _need(_is(int, float, str, bool)(value), f"its {name} is no plain value")
    if "familiarity" in facts:
        parts = facts["familiarity"]["parts"]
        part_columns(tuple(parts))
        _check_tensors(tensors, FAMILIAR, sizes | {"p": len(parts)})
