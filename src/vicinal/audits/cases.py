"""Every query row judged: a verdict, its reason, and the neighbors that say so, out of fold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.familiarity import familiarity_of
from vicinal.audits.heads import Answer
from vicinal.audits.model import ModelFacts
from vicinal.audits.record import Cases, significant
from vicinal.audits.sections import ClassFacts
from vicinal.confidence.ned.posterior import BLOCK, neighbor_log_weights
from vicinal.confidence.verdicts import VERDICTS, judge, reasons, standards_of
from vicinal.evaluation import expected_calibration_error, noise_floor
from vicinal.labels import UNKNOWN, UNLABELED

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

SHOWN_NEIGHBORS = 20
MIN_CLASS_ROWS = 100


class CaseVerdicts(NamedTuple):
    """One entry per query row; ``codes`` are positions in ``VERDICTS``."""

    credibility: Float[Tensor, " m"]
    near_percentile: Float[Tensor, " m"]
    codes: Int[Tensor, " m"]
    reasons: list[str]
    familiarity: Float[Tensor, " m"]


def verdicts_of(facts: Facts) -> CaseVerdicts:
    """Each row against the held-out rows of the fold it was not fitted in."""
    answer, target = facts.answer, facts.promise.target
    m, confidence = len(answer.predicted), torch.from_numpy(answer.confidence)
    crowding, linear = crowding_of(facts.model, m), answer.linear_share
    credibility, near, familiar = torch.zeros(3, m, dtype=torch.float64)
    codes, lines = torch.zeros(m, dtype=torch.long), [""] * m
    for fold, parameters in zip(facts.split.folds, answer.parameters, strict=True):
        rows = fold.scored
        ranked, scores = familiarity_of(facts, fold), facts.foreignness.query[rows]
        standards = standards_of(fold.evidence, parameters, facts.threshold, target, ranked)
        part, predicted, sure = fold.neighborhood, answer.predicted[rows], confidence[rows]
        crowd = None if crowding is None else crowding[rows]
        judged = judge(part, predicted, sure, parameters, standards, crowd, scores)
        credibility[rows], near[rows] = judged.credibility, judged.near_percentile
        assert judged.familiarity is not None
        codes[rows], familiar[rows] = judged.codes, judged.familiarity
        votes = facts.weights[rows], None if linear is None else linear[rows]
        sentences = reasons(judged, part, predicted, sure, standards, facts.sets.names, *votes)
        for row, line in zip(rows.tolist(), sentences, strict=True):
            lines[row] = line
    return CaseVerdicts(credibility, near, codes, lines, familiar)


def weights_of(facts: Facts) -> Float[Tensor, "m k"]:
    """The share of each neighbor in its row's answer, with the parameters of the row's fold."""
    weights = torch.zeros(facts.neighborhood.indices.shape, dtype=torch.float64)
    for fold, parameters in zip(facts.split.folds, facts.answer.parameters, strict=True):
        parts = fold.neighborhood.blocks(BLOCK)
        for rows, part in zip(fold.scored.split(BLOCK), parts, strict=True):
            weights[rows] = neighbor_log_weights(part, parameters).softmax(1)
    return weights


def crowding_of(model: ModelFacts | None, m: int) -> Tensor | None:
    """Percentiles of N_S for the rows the network was asked about; 100 (no doubt) for others."""
    if model is None or model.network is None:
        return None
    asked = model.network.percentile
    crowd = torch.full((m,), 100.0, dtype=torch.float64)
    crowd[list(asked)] = torch.tensor(list(asked.values()), dtype=torch.float64)
    return crowd


def cases_of(facts: Facts) -> Cases:
    """The columns of ``samples.csv``, and each row's nearest neighbors."""
    m, shown = facts.neighborhood.size, facts.neighborhood.first(SHOWN_NEIGHBORS)
    codes, verdicts, answer = facts.sets.query.codes, facts.verdicts, facts.answer
    labels = [None] * m if codes is None else [c if c >= 0 else None for c in codes.tolist()]
    others = facts.sets.query.others
    return Cases(
        id=tuple(facts.about.query_ids or map(str, range(m))),
        label=tuple(labels),
        predicted=tuple(answer.predicted.tolist()),
        confidence=tuple(answer.confidence.tolist()),
        credibility=tuple(verdicts.credibility.tolist()),
        near_percentile=tuple(verdicts.near_percentile.tolist()),
        verdict=tuple(VERDICTS[code] for code in verdicts.codes.tolist()),
        reason=tuple(verdicts.reasons),
        neighbors=_rows(shown.indices),
        weights=_rows(facts.weights[:, :SHOWN_NEIGHBORS]),
        distances=_rows(shown.distances),
        head=facts.shown,
        familiarity=tuple(verdicts.familiarity.tolist()),
        linear_share=None if answer.linear_share is None else tuple(answer.linear_share.tolist()),
        others=tuple(map(others.get, range(m))) if others else None,
        **_network_columns(facts.model, m),
    )


def class_facts(facts: Facts, entangled: NDArray[np.float64] | None) -> tuple[ClassFacts, ...]:
    """Per class: sizes, precision and recall, calibration where there are rows enough."""
    count = len(facts.sets.names)
    support = torch.bincount(facts.sets.all_codes, minlength=count).tolist()
    suspects = Counter(suspect.given for suspect in facts.label_audit.suspects)
    given = facts.sets.query.codes
    codes = np.full(len(facts.answer.predicted), UNLABELED) if given is None else given.numpy()
    return tuple(
        ClassFacts(
            label=c,
            support=support[c],
            query=int((codes == c).sum()),
            **_class_scores(c, codes, facts.answer, checkable=support[c] > 1),
            entanglement=None if entangled is None else float(entangled[c]),
            suspects=suspects[c],
        )
        for c in range(count)
    )


def _class_scores(
    c: int, codes: NDArray[np.int64], answer: Answer, checkable: bool
) -> dict[str, float | None]:
    """Precision, recall, and the calibration of rows predicted to be of class ``c``."""
    predicted = answer.predicted.numpy()
    mine, claimed = codes == c, (predicted == c) & (codes >= UNKNOWN)
    right = codes[claimed] == c
    enough = len(right) >= MIN_CLASS_ROWS and checkable
    return {
        "precision": float(right.mean()) if len(right) else None,
        "recall": float((predicted[mine] == c).mean()) if mine.any() else None,
        "ece": expected_calibration_error(answer.confidence[claimed], right) if enough else None,
        "noise_floor": noise_floor(answer.confidence[claimed]) if enough else None,
    }


def _network_columns(model: ModelFacts | None, m: int) -> dict[str, Any]:
    if model is None:
        return {}
    columns: dict[str, Any] = {}
    if model.network is not None:
        columns["network_percentile"] = tuple(map(model.network.percentile.get, range(m)))
        near = [model.network.neighbors.get(i, ([], [])) for i in range(m)]
        columns["network_neighbors"] = tuple(tuple(rows) for rows, _ in near)
        columns["network_similarities"] = tuple(tuple(values) for _, values in near)
    if model.layer_class is not None and model.layer_share is not None:
        columns["layers"] = model.story
        columns["layer_class"] = _rows(model.layer_class)
        columns["layer_share"] = _rows(model.layer_share)
    return columns


def _rows(matrix: Tensor) -> Any:
    """What a record makes tuples of; six digits of a float are enough for a page."""
    return significant(matrix.double().numpy()) if matrix.is_floating_point() else matrix.numpy()
