"""A fitted linear head, alone or beside NED, as tensors and JSON, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vicinal.confidence.blend import Blend
from vicinal.confidence.bundle import pack_classes, unpack_classes
from vicinal.confidence.linear import LinearClassifier
from vicinal.confidence.ned.file import ned_of_state, ned_state
from vicinal.confidence.ned_linear import NEDLinear

State = tuple[dict[str, Tensor], dict[str, Any]]


def linear_state(linear: LinearClassifier) -> State:
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


def linear_of_state(tensors: dict[str, Tensor], facts: dict[str, Any]) -> LinearClassifier:
    linear = LinearClassifier(**facts["linear_options"])
    linear.coef_ = tensors["linear_coef"].numpy()
    linear.intercept_ = tensors["linear_intercept"].numpy()
    linear.l2_, linear.temperature_ = tensors["linear_numbers"].tolist()
    linear.classes_, linear.n_features_in_ = unpack_classes(facts["classes"]), linear.coef_.shape[1]
    if facts["features"]:
        linear.feature_names_in_ = np.array(facts["features"], dtype=object)
    return linear


def ned_linear_state(head: NEDLinear) -> State:
    near, near_facts = ned_state(head.ned_)
    line, line_facts = linear_state(head.linear_)
    own = {
        "blend": torch.tensor(head.blend_, dtype=torch.float64),
        "blend_log_prior": head.log_prior_,
    }
    weights, background = head._given()
    asked = {"weights": weights, "background": background}
    return {**near, **line, **own}, {**near_facts, **line_facts, "blend_options": asked}


def ned_linear_of_state(tensors: dict[str, Tensor], facts: dict[str, Any]) -> NEDLinear:
    ned, linear = ned_of_state(tensors, facts), linear_of_state(tensors, facts)
    asked = {name: "fit" if v is None else v for name, v in facts["blend_options"].items()}
    head = NEDLinear(ned, linear, **asked)
    head.ned_, head.linear_ = ned, linear
    head.blend_, head.log_prior_ = Blend(*tensors["blend"].tolist()), tensors["blend_log_prior"]
    head.classes_, head.n_features_in_ = linear.classes_, linear.n_features_in_
    if facts["features"]:
        head.feature_names_in_ = linear.feature_names_in_
    return head
