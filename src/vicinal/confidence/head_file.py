"""A fitted head as tensors and JSON, and back: ``save`` and ``vicinal.load``.

A ``.vic`` file is data and runs nothing: safetensors and JSON. What it must hold is checked before
a head is made of it (:mod:`vicinal.confidence.file_check`), and the head must answer once, or there
is a sentence why not. Predictions come back bit for bit.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.blend import Blend
from vicinal.confidence.bundle import pack_classes, read, unpack_classes, write
from vicinal.confidence.familiarity import Familiarity, Ranks
from vicinal.confidence.file_check import check_answers, check_state
from vicinal.confidence.head import TrustHead
from vicinal.confidence.linear import LinearClassifier
from vicinal.confidence.made_from import MadeFrom
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.posterior import NEDParameters
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.support import CrossFit, LabeledSupport
from vicinal.confidence.verdicts import Standards
from vicinal.files import reading
from vicinal.labels import Labels
from vicinal.neighbors.learned import Form
from vicinal.neighbors.search import Search, make_search
from vicinal.neighbors.spaces import RAW, Space, Whitening

DAMAGED = "Save the head again, or copy the file anew."
KINDS = ("head", "head_linear", "ned", "ned_linear", "linear")
_NUMBERS = ("temperature", "sharpness", "background", "effective_dimension")
_VECTORS = ("log_bandwidths", "prior", "log_prior_shift")
Saved = TrustHead | NEDClassifier | NEDLinear | LinearClassifier
State = tuple[dict[str, Tensor], dict[str, Any]]


def save(head: Saved, path: str | Path) -> Path:
    """Write a ``.vic`` file; the kind says which parts are in it."""
    model = head.model if isinstance(head, TrustHead) else head
    check_is_fitted(model)
    if isinstance(model, LinearClassifier):
        return write(path, "linear", *_linear_state(model))
    blended = isinstance(model, NEDLinear)
    tensors, facts = _ned_linear_state(model) if blended else _ned_state(model)
    if not isinstance(head, TrustHead):
        return write(path, "ned_linear" if blended else "ned", tensors, facts)
    if blended:
        facts["linear_stale"] = list(head._linear_stale)
    held, about = _standards_state(head.standards)
    facts |= {**about, "made_from": head.made_from.to_dict()}
    return write(path, "head_linear" if blended else "head", {**tensors, **held}, facts)


def load(path: str | Path) -> Saved:
    """Read a ``.vic`` file: what the ``save`` of a head wrote."""
    kind, tensors, facts = read(path)
    if kind not in KINDS:
        raise InputError(f"cannot read {path}: it holds a {kind!r}, not a head. Update vicinal.")
    try:
        with reading(path, DAMAGED):
            return _head_of(kind, tensors, facts)
    except InputError as error:
        if str(error).startswith("cannot read"):
            raise
        raise InputError(f"cannot read {path}: {error}. {DAMAGED}") from None


def _head_of(kind: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Saved:
    check_state(kind, tensors, facts)
    if kind == "linear":
        linear = _linear_of(tensors, facts)
        check_answers(linear)
        return linear
    blended = kind in ("ned_linear", "head_linear")
    model = _ned_linear_of(tensors, facts) if blended else _ned_of(tensors, facts)
    check_answers(model)
    if kind in ("ned", "ned_linear"):
        return model
    made_from = MadeFrom.from_dict(facts.get("made_from", {}))
    if made_from.features and len(set(made_from.features)) != model.n_features_in_:
        raise InputError("its columns are not one for each number of a row")
    head = TrustHead(model, _standards_of(tensors, facts), made_from)
    head._linear_stale = tuple(facts.get("linear_stale", ()))
    head.predict(torch.ones(1, model.n_features_in_))
    return head


def _standards_state(standards: Standards) -> State:
    held = {item.name: getattr(standards, item.name) for item in fields(Standards)}
    facts, familiar = dict[str, Any](), held.pop("familiarity")
    if familiar is not None:
        held |= {"familiar_parts": familiar.ranks.parts, "familiar": familiar.ranks.combined}
        facts["familiarity"] = {"parts": list(familiar.parts), "rate": familiar.rate}
    held["threshold"] = torch.tensor([held["threshold"]], dtype=torch.float64)
    facts["standards"] = {k: v for k, v in held.items() if not isinstance(v, Tensor)}
    return {f"held_{k}": v for k, v in held.items() if isinstance(v, Tensor)}, facts


def _standards_of(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Standards:
    """What was held out; heads of before there was familiarity go by the 5th distance."""
    held: dict[str, Any] = {k[5:]: v for k, v in tensors.items() if k.startswith("held_")}
    held["threshold"] = float(held["threshold"])
    if "familiarity" in facts:
        ranks = Ranks(held.pop("familiar_parts"), held.pop("familiar"))
        said = facts["familiarity"]
        held["familiarity"] = Familiarity(ranks, tuple(said["parts"]), said["rate"])
    return Standards(**held, **facts["standards"])


def _ned_state(ned: NEDClassifier) -> State:
    """Tensors and facts. The graph is not among them: it is rebuilt when it is asked for."""
    support, parameters = ned.support_, ned.parameters_
    numbers = [getattr(parameters, name) for name in _NUMBERS]
    store = _store_facts(support)
    tensors = {} if store else {"support": support.rows}
    tensors |= {
        "labels": support.labels.codes,
        "ids": support.ids,
        "numbers": torch.tensor(numbers, dtype=torch.float64),
    }
    vectors = {name: getattr(parameters, name) for name in _VECTORS} | _space_tensors(support)
    tensors |= {name: value for name, value in vectors.items() if value is not None}
    options = ned.get_params(deep=False)
    if not isinstance(options["prior"], str):
        tensors["prior_option"] = torch.as_tensor(np.asarray(options["prior"], dtype=np.float64))
        options["prior"] = None
    if not isinstance(options["search"], str):
        options["search"] = "exact"  # an index of the user's own cannot be written down
    # JSON has no infinity.
    options = {k: f"{v!r}" if isinstance(v, float) else v for k, v in options.items()}
    facts = {
        "options": {k: int(v) if isinstance(v, np.integer) else v for k, v in options.items()},
        "classes": pack_classes(ned.classes_),
        "k": ned.k_,
        "space": _space_facts(ned),
        "fitted": list(ned.fitted_),
        "fitted_on": ned.fitted_on_,
        "stale": list(ned.stale_),
        "warnings": list(ned.warnings_),
        "torch": ned._torch,
        **({"store": store} if store else {}),
        "features": [str(name) for name in getattr(ned, "feature_names_in_", [])],
    }
    return tensors, facts


def _ned_of(tensors: dict[str, Tensor], facts: dict[str, Any]) -> NEDClassifier:
    options = dict(facts["options"])
    for name in ("temperature", "sharpness", "background"):
        if options[name] not in (None, "fit"):
            options[name] = float(options[name])
    if "prior_option" in tensors:
        options["prior"] = tensors["prior_option"].numpy()
    ned = NEDClassifier(**options)
    engine: Any = "exact" if ned.search == "auto" else ned.search  # a kept head is asked few rows
    search: Search
    if "store" in facts:
        search = _opened(facts["store"], ned.metric, tensors["labels"])
    else:
        search = make_search(engine, ned.metric).build(tensors["support"])
    labels = Labels(unpack_classes(facts["classes"]), tensors["labels"])
    space, crossed = _space_of(tensors, facts)
    ned.support_ = LabeledSupport(search, labels, tensors["ids"], space=space, crossed=crossed)
    ned.k_ = facts["k"]
    about = facts.get("space", {})
    ned.n_features_in_ = about.get("width", search.width)
    ned.space_losses_ = about.get("losses", {})
    ned._use(NEDParameters(*tensors["numbers"].tolist(), *map(tensors.get, _VECTORS)))
    ned.fitted_, ned.stale_ = tuple(facts["fitted"]), tuple(facts["stale"])
    ned.fitted_on_, ned.warnings_ = facts["fitted_on"], list(facts["warnings"])
    ned._torch = facts["torch"]
    if facts["features"]:
        ned.feature_names_in_ = np.array(facts["features"], dtype=object)
    return ned


def _store_facts(support: LabeledSupport) -> dict[str, Any] | None:
    """The table that holds the rows, where one does; which server it is on is not written down."""
    search = support.search
    table = getattr(search, "table", None)
    if table is None:
        return None
    return {
        "table": table.name,
        "columns": table.columns,
        "width": search.width,
        "marks": table.marks(),
        "hnsw": not search.exact,
        "ef_search": None if search.exact else getattr(search, "ef_search", None),
    }


def _opened(store: dict[str, Any], metric: str, codes: Tensor) -> Search:
    """The table as it was when the head was fitted, or a sentence."""
    from vicinal.neighbors.search.pg_rows import pg_address
    from vicinal.neighbors.search.postgres import PgSearch

    address = pg_address(f"pg:{store['table']}")
    effort = store.get("ef_search")  # of an index, as it was found to be enough
    search = PgSearch(*address, metric=metric, hnsw=store["hnsw"], ef_search=effort)
    search.open(**store["columns"])
    same = search.width == store["width"] and len(search) == len(codes)
    if not same or search.table.marks() != store["marks"]:
        raise InputError(
            f"the table {store['table']!r} is not as it was when this head was fitted: its rows or "
            "labels have changed. Fit the head again"
        )
    return search


def _space_tensors(support: LabeledSupport) -> dict[str, Tensor | None]:
    """The map, and where it saw the labels what its folds' maps are fitted to when asked for."""
    parts = {"space_shift": support.space.shift, "space_matrix": support.space.matrix}
    crossed = support.crossed
    if crossed is not None:
        parts |= {"crossed_rows": crossed.rows, "crossed_fold": crossed.fold}
    return parts


def _space_facts(ned: NEDClassifier) -> dict[str, Any]:
    space, crossed = ned.space_, ned.support_.crossed
    facts = {"name": space.name, "unit": space.unit, "width": ned.n_features_in_}
    form = crossed and crossed.form.whitening._asdict() | {"steps": crossed.form.steps}
    return facts | {"losses": ned.space_losses_, "form": form}


def _space_of(tensors: dict[str, Tensor], facts: dict[str, Any]) -> tuple[Space, CrossFit | None]:
    """Files of before there were spaces hold raw rows."""
    if "space" not in facts:
        return RAW, None
    name, unit = facts["space"]["name"], facts["space"]["unit"]
    space = Space(name, tensors.get("space_shift"), tensors.get("space_matrix"), unit)
    if "crossed_rows" not in tensors:
        return space, None
    about = facts["space"]["form"]
    form = Form(name, Whitening(about["shrinkage"], about["toward"]), about["steps"])
    return space, CrossFit(tensors["crossed_rows"], tensors["crossed_fold"], form)


def _linear_state(linear: LinearClassifier) -> State:
    """What predictions need; the out-of-fold answers stay behind with the training rows."""
    tensors = {
        "linear_coef": torch.from_numpy(linear.coef_),
        "linear_intercept": torch.from_numpy(linear.intercept_),
        "linear_numbers": torch.tensor([linear.l2_, linear.temperature_], dtype=torch.float64),
    }
    facts = {
        "linear_options": {"l2": linear.l2, "folds": linear.folds},
        "classes": pack_classes(linear.classes_),
        "features": [str(name) for name in getattr(linear, "feature_names_in_", [])],
    }
    return tensors, facts


def _linear_of(tensors: dict[str, Tensor], facts: dict[str, Any]) -> LinearClassifier:
    linear = LinearClassifier(**facts["linear_options"])
    linear.coef_ = tensors["linear_coef"].numpy()
    linear.intercept_ = tensors["linear_intercept"].numpy()
    linear.l2_, linear.temperature_ = tensors["linear_numbers"].tolist()
    linear.classes_, linear.n_features_in_ = unpack_classes(facts["classes"]), linear.coef_.shape[1]
    if facts["features"]:
        linear.feature_names_in_ = np.array(facts["features"], dtype=object)
    return linear


def _ned_linear_state(head: NEDLinear) -> State:
    near, near_facts = _ned_state(head.ned_)
    line, line_facts = _linear_state(head.linear_)
    own = {
        "blend": torch.tensor(head.blend_, dtype=torch.float64),
        "blend_log_prior": head.log_prior_,
    }
    weights, background = head._given()
    asked = {"weights": weights, "background": background}
    return {**near, **line, **own}, {**near_facts, **line_facts, "blend_options": asked}


def _ned_linear_of(tensors: dict[str, Tensor], facts: dict[str, Any]) -> NEDLinear:
    ned, linear = _ned_of(tensors, facts), _linear_of(tensors, facts)
    asked = {name: "fit" if v is None else v for name, v in facts["blend_options"].items()}
    head = NEDLinear(ned, linear, **asked)
    head.ned_, head.linear_ = ned, linear
    head.blend_, head.log_prior_ = Blend(*tensors["blend"].tolist()), tensors["blend_log_prior"]
    head.classes_, head.n_features_in_ = linear.classes_, linear.n_features_in_
    if facts["features"]:
        head.feature_names_in_ = linear.feature_names_in_
    return head
