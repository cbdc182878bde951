"""``vicinal.load``: a saved head as it was, or a sentence why not.

A ``.vic`` file is data and runs nothing: safetensors and JSON. What it must hold is checked before
a head is made of it (:mod:`vicinal.confidence.file_check`), and the head must answer once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.bundle import read
from vicinal.confidence.familiarity import Familiarity, Ranks
from vicinal.confidence.file_check import check_answers, check_state
from vicinal.confidence.head import TrustHead
from vicinal.confidence.linear import LinearClassifier
from vicinal.confidence.linear_file import linear_of_state, ned_linear_of_state
from vicinal.confidence.made_from import MadeFrom
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.file import ned_of_state
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.verdicts import Standards
from vicinal.files import reading

DAMAGED = "Save the head again, or copy the file anew."
KINDS = ("head", "head_linear", "ned", "ned_linear", "linear")
Saved = TrustHead | NEDClassifier | NEDLinear | LinearClassifier


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
        linear = linear_of_state(tensors, facts)
        check_answers(linear)
        return linear
    blended = kind in ("ned_linear", "head_linear")
    model = ned_linear_of_state(tensors, facts) if blended else ned_of_state(tensors, facts)
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


def _standards_of(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Standards:
    """What was held out; heads of before there was familiarity go by the 5th distance."""
    held: dict[str, Any] = {k[5:]: v for k, v in tensors.items() if k.startswith("held_")}
    held["threshold"] = float(held["threshold"])
    if "familiarity" in facts:
        ranks = Ranks(held.pop("familiar_parts"), held.pop("familiar"))
        said = facts["familiarity"]
        held["familiarity"] = Familiarity(ranks, tuple(said["parts"]), said["rate"])
    return Standards(**held, **facts["standards"])
