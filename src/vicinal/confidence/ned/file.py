"""A fitted NED as tensors and JSON, and back; predictions come back bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.bundle import pack_classes, unpack_classes
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.posterior import NEDParameters
from vicinal.confidence.support import CrossFit, LabeledSupport
from vicinal.labels import Labels
from vicinal.neighbors.learned import Form
from vicinal.neighbors.search import Search, make_search
from vicinal.neighbors.spaces import RAW, Space, Whitening

_NUMBERS = ("temperature", "sharpness", "background", "effective_dimension")
_VECTORS = ("log_bandwidths", "prior", "log_prior_shift")


def ned_state(ned: NEDClassifier) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
    for name in _VECTORS:
        value = getattr(parameters, name)
        if value is not None:
            tensors[name] = value
    tensors |= _space_tensors(support)
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


def ned_of_state(tensors: dict[str, Tensor], facts: dict[str, Any]) -> NEDClassifier:
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


def _space_tensors(support: LabeledSupport) -> dict[str, Tensor]:
    """The map, and where it saw the labels what its folds' maps are fitted to when asked for."""
    parts = {"space_shift": support.space.shift, "space_matrix": support.space.matrix}
    crossed = support.crossed
    if crossed is not None:
        parts |= {"crossed_rows": crossed.rows, "crossed_fold": crossed.fold}
    return {name: value for name, value in parts.items() if value is not None}


def _space_facts(ned: NEDClassifier) -> dict[str, Any]:
    space, crossed = ned.space_, ned.support_.crossed
    facts = {"name": space.name, "unit": space.unit, "width": ned.n_features_in_}
    form = None
    if crossed is not None:
        form = crossed.form.whitening._asdict() | {"steps": crossed.form.steps}
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
