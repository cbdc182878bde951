"""What a ``.vic`` file must hold before a head is made of it.

Whoever changes a file can mend its checksum too. So nothing in it is believed: every field has its
kind, shape and range, and a head that cannot judge a row is refused where it is loaded, not where
it is first used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.familiarity import part_columns

_LISTS = ("fitted", "stale", "warnings", "features")
_FLOATS = (torch.float32, torch.float64)
_CURVES = ("held_near_distances", "held_log_densities", "held_disagreements")


def check_state(kind: str, tensors: Mapping[str, Tensor], facts: Any) -> None:
    """Refuse tensors and facts that no saved head has."""
    _need(isinstance(facts, dict), "its facts are no JSON object")
    _check_finite(tensors)
    if "linear" in kind:
        _check_linear(tensors, facts)
    if kind == "linear":
        return
    _check_tensors(tensors, stored="store" in facts)
    _check_facts(facts)
    if facts["options"].get("prior") is None:
        given = tensors.get("prior_option", torch.empty(0))
        shares = given.ndim == 1 and given.numel() > 0 and bool((given >= 0).all())
        _need(given.dtype in _FLOATS and shares, "its prior has no name and no numbers")
    if "store" in facts:
        _check_store(facts["store"])
    _check_space(tensors, facts)
    if kind in ("ned_linear", "head_linear"):
        _check_blend(tensors, facts)
    count, rows = len(facts["classes"]["names"]), len(tensors["labels"])
    _check_labels(tensors["labels"], rows, count)
    _check_ids(tensors["ids"], rows)
    _check_numbers(tensors, count)
    _need(type(facts["k"]) is int and 1 <= facts["k"] <= rows, f"k={facts['k']!r} of {rows} rows")
    if kind in ("head", "head_linear"):
        _check_standards(tensors, facts)
        _check_familiarity(tensors, facts)


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


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_floating_point():
            _need(not bool(value.isnan().any()), f"the tensor {name!r} holds NaN")


def _check_linear(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    count = _class_count(facts.get("classes"))
    for name in ("linear_coef", "linear_intercept", "linear_numbers"):
        _need(name in tensors, f"the tensor {name!r} is missing")
        _need(tensors[name].dtype in _FLOATS, f"the tensor {name!r} is of {tensors[name].dtype}")
        _need(bool(tensors[name].isfinite().all()), f"the tensor {name!r} holds infinity")
    coef, intercept = tensors["linear_coef"], tensors["linear_intercept"]
    shaped = coef.ndim == 2 and len(coef) == count and intercept.shape == (count,)
    _need(shaped and coef.shape[1] > 0, "its linear part has other classes")
    numbers = tensors["linear_numbers"]
    _need(numbers.shape == (2,) and bool((numbers >= 0).all()), "its linear numbers are odd")
    _need(float(numbers[-1]) > 0, "its temperature is 0")
    options = facts.get("linear_options")
    _need(isinstance(options, dict) and options.keys() == {"l2", "folds"}, "its options are odd")
    penalty, folds = facts["linear_options"]["l2"], facts["linear_options"]["folds"]
    _need(penalty is None or (_is_real(penalty) and penalty >= 0), f"its l2 is {penalty!r}")
    _need(type(folds) is int and folds > 1, f"its folds are {folds!r}")
    _check_texts(facts, "features")


def _check_blend(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    blend, prior = tensors.get("blend"), tensors.get("blend_log_prior")
    _need(blend is not None and blend.shape == (3,), "its two parts have no weights")
    assert blend is not None
    _need(bool((blend >= 0).all()) and float(blend[2]) < 1, "the weights of its parts are odd")
    count = len(facts["classes"]["names"])
    _need(prior is not None and prior.shape == (count,), "its prior is not one for each class")
    assert prior is not None
    shares = prior.dtype in _FLOATS and abs(float(prior.double().logsumexp(0))) < 1e-3
    _need(shares, "its prior is no distribution")
    width = facts.get("space", {}).get("width", _width(tensors, facts))
    _need(tensors["linear_coef"].shape[1] == width, "its two parts take rows of other widths")
    asked = facts.get("blend_options")
    _need(isinstance(asked, dict) and asked.keys() == {"weights", "background"}, "its options")


def _check_space(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """The map leads from rows of the stated width to rows like the support's."""
    space = facts.get("space")
    if space is None:
        return
    _need(isinstance(space, dict) and isinstance(space.get("name"), str), "its space has no name")
    losses, form = space.get("losses", {}), space.get("form")
    right = isinstance(losses, dict) and all(map(_is_real, losses.values()))
    right = right and isinstance(form, (dict, type(None)))
    _need(right and type(space.get("unit")) is bool, "its space is odd")
    width, out = space.get("width"), _width(tensors, facts)
    _need(type(width) is int and width > 0, f"its rows have the width {width!r}")
    shift, matrix = tensors.get("space_shift"), tensors.get("space_matrix")
    _need(shift is None or shift.shape == (width,), "its shift has another width")
    fits = matrix is None or matrix.shape in ((width,), (width, out))
    _need(fits and (width == out or (matrix is not None and matrix.ndim == 2)), "its map is odd")
    for part in (shift, matrix):
        _need(part is None or bool(part.isfinite().all()), "its map holds infinity")


def _check_familiarity(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    said = facts.get("familiarity")
    if said is None:
        return
    shaped = isinstance(said, dict) and said.keys() == {"parts", "rate"}
    _need(shaped and isinstance(said["parts"], list), "its familiarity is odd")
    _need(type(said["rate"]) is float and 0 < said["rate"] < 1, "its rate is no share")
    part_columns(tuple(said["parts"]))
    parts, held = tensors.get("held_familiar_parts"), tensors.get("held_familiar")
    _need(parts is not None and held is not None, "its familiar rows are missing")
    assert parts is not None
    assert held is not None
    _need(parts.dtype in _FLOATS and held.dtype in _FLOATS, "its familiar rows are no numbers")
    fits = parts.ndim == 2 and len(parts) == len(said["parts"]) and held.shape == parts.shape[1:]
    _need(fits and held.numel() > 0, "its familiar rows are odd")
    ascending = bool((parts.diff(dim=1) >= 0).all()) and bool((held.diff() >= 0).all())
    _need(ascending, "its familiar rows are not sorted")


def _check_store(store: Any) -> None:
    """A table's name, its columns, and how it was known; nothing in it names a server."""
    _need(isinstance(store, dict), "its store is no JSON object")
    _need(isinstance(store.get("table"), str) and bool(store["table"]), "its store has no table")
    columns = store.get("columns")
    named = isinstance(columns, dict) and columns.keys() == {"id", "label", "embedding"}
    _need(named and all(isinstance(v, (str, type(None))) for v in columns.values()), "its columns")
    _need(type(store.get("width")) is int and store["width"] > 0, "its store has no width")
    _need(isinstance(store.get("marks"), str), "its store has no marks")
    _need(type(store.get("hnsw")) is bool, "its store does not say how it is asked")
    effort = store.get("ef_search")
    _need(effort is None or (type(effort) is int and 0 < effort <= 1000), "its ef_search")


def _width(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> int:
    return facts["store"]["width"] if "store" in facts else tensors["support"].shape[1]


def _check_tensors(tensors: Mapping[str, Tensor], stored: bool) -> None:
    for name in ("labels", "ids", "numbers") if stored else ("support", "labels", "ids", "numbers"):
        _need(name in tensors, f"the tensor {name!r} is missing")
    if stored:
        _need(tensors["labels"].ndim > 0, "its labels are no list")
        return
    support = tensors["support"]
    _need(support.dtype in _FLOATS, f"its support is of {support.dtype}")
    shaped = support.ndim == 2 and support.numel() > 0
    _need(shaped, f"its support has shape {tuple(support.shape)}")
    _need(bool(support.isfinite().all()), "its support holds infinity")


def _check_facts(facts: Mapping[str, Any]) -> None:
    for name in ("options", "classes", "k", "fitted_on", "torch", *_LISTS):
        _need(name in facts, f"the field {name!r} is missing")
    options = facts["options"]
    _need(isinstance(options, dict), "its options are no object")
    _need(isinstance(options.get("search"), str), "its search has no name")
    _need(options.get("metric") in ("sqeuclidean", "euclidean", "cosine"), "its metric is unknown")
    _need(type(options.get("k")) is int and options["k"] > 0, "its option k is no number of rows")
    _need(isinstance(options.get("prior"), (str, type(None))), "its prior has no name")
    _class_count(facts["classes"])
    for name in _LISTS:
        _check_texts(facts, name)
    _need(facts["fitted_on"] in ("leave-one-out", "held-out"), "it was fitted on nothing known")
    _need(type(facts["torch"]) is bool, "the field 'torch' is not true or false")


def _class_count(classes: Any) -> int:
    _need(isinstance(classes, dict), "its classes are no JSON object")
    names, dtype = classes.get("names"), classes.get("dtype")
    _need(isinstance(names, list) and bool(names) and isinstance(dtype, str), "it has no classes")
    kinds = set(map(type, names))
    _need(len(kinds) == 1 and kinds <= {str, int, float, bool}, "its classes are of odd kinds")
    _need(names == sorted(set(names)), "its classes are not sorted, or named twice")
    return len(names)


def _check_texts(facts: Mapping[str, Any], name: str) -> None:
    found = facts.get(name)
    listed = isinstance(found, list) and all(isinstance(v, str) for v in found)
    _need(listed, f"the field {name!r} is no list of texts")


def _is_real(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _check_labels(labels: Tensor, rows: int, count: int) -> None:
    _need(len(labels) == rows if labels.ndim else False, f"it has {rows} rows, other labels")
    if labels.is_floating_point():
        _need(labels.ndim == 2 and labels.shape[1] == count, "its soft labels have other classes")
        even = (labels.sum(1) - 1).abs().max() < 1e-3
        _need(bool((labels >= 0).all()) and bool(even), "its soft labels are no distributions")
    else:
        _need(labels.dtype == torch.int64 and labels.ndim == 1, f"its labels are {labels.dtype}")
        inside = bool((labels >= 0).all()) and bool((labels < count).all())
        _need(inside, f"a label is none of its {count} classes")


def _check_ids(ids: Tensor, rows: int) -> None:
    _need(ids.dtype == torch.int64 and ids.shape == (rows,), "its ids are not one for each row")
    _need(bool((ids >= 0).all()) and len(ids.unique()) == rows, "its ids are not unique")


def _check_numbers(tensors: Mapping[str, Tensor], count: int) -> None:
    numbers = tensors["numbers"]
    _need(numbers.dtype == torch.float64 and numbers.shape == (4,), "its numbers are not four")
    temperature, sharpness, background, dimension = numbers.tolist()
    _need(temperature >= 0, f"its temperature is {temperature}")
    _need(0 < sharpness < math.inf, f"its sharpness is {sharpness}")
    _need(0 <= background < 1, f"its background is {background}")
    _need(0 <= dimension < math.inf, f"its dimension is {dimension}")
    for name in ("log_bandwidths", "prior", "log_prior_shift"):
        value = tensors.get(name)
        if value is not None:
            _need(value.shape == (count,), f"its {name} are not one for each class")
            _need(value.dtype in _FLOATS, f"its {name} are of {value.dtype}")
    prior, widths = tensors.get("prior"), tensors.get("log_bandwidths")
    if prior is not None:
        shares = bool((prior >= 0).all()) and abs(float(prior.sum()) - 1) < 1e-3
        _need(shares, "its prior is none")
    if widths is not None:
        _need(bool(widths.isfinite().all()), "its bandwidths are infinite")


def _check_standards(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    held = facts.get("standards")
    _need(isinstance(held, dict), "its standards are missing")
    for name in _CURVES:
        _need(name in tensors, f"the tensor {name!r} is missing")
        curve = tensors[name]
        flat = curve.ndim == 1 and len(curve) == len(tensors[_CURVES[0]]) > 0
        sorted_ = flat and curve.dtype in _FLOATS and bool((curve.diff() >= 0).all())
        _need(sorted_, f"{name!r} is no sorted list of numbers")
        _need(name == "held_log_densities" or bool((curve >= 0).all()), f"{name!r} is below zero")
    doubts = tensors["held_disagreements"]
    _need(bool((doubts <= len(tensors["labels"])).all()), "its neighbors disagree too often")
    threshold = tensors.get("held_threshold", torch.empty(0))
    _need(threshold.shape == (1,) and threshold.dtype in _FLOATS, "its threshold is no number")
    _need(0 <= float(threshold) <= 1 or float(threshold) == math.inf, "its threshold is no share")
    for name, value in (held or {}).items():
        plain = isinstance(value, (int, float, str, bool, type(None)))
        _need(plain, f"its {name} is no plain value")
    _check_levels(held or {})


def _check_levels(held: Mapping[str, Any]) -> None:
    limits = {"target_accuracy": 1, "low_credibility": 1, "far_percentile": 100}
    for name, most in {**limits, "sparse_percentile": 100}.items():
        value = held.get(name, 0)
        numeric = type(value) in (int, float)
        _need(numeric and 0 <= value <= most, f"its {name} is {value!r}")
    _need(held.get("source") in ("held-out", "leave-one-out"), "its standards have no source")
