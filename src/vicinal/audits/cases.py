"""Every query row judged: a verdict, its reason, and the neighbors that say so, out of fold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.heads import Fold, Trial, reliability_bins
from vicinal.audits.inputs import About, AuditSettings, Sets
from vicinal.audits.model import ModelFacts
from vicinal.audits.record import (
    Cases,
    ClassFacts,
    Credibility,
    Histogram,
    LabelAudit,
    ReliabilityBin,
)
from vicinal.confidence import verdicts
from vicinal.confidence.head import TrustHead
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.posterior import neighbor_log_weights
from vicinal.confidence.support import Evidence
from vicinal.confidence.verdicts import VERDICTS, Standards, standards_of
from vicinal.evaluation import expected_calibration_error, noise_floor, threshold_for_accuracy
from vicinal.neighbors.neighborhood import Neighborhood

SHOWN_NEIGHBORS = 20
MIN_CLASS_ROWS = 100


@dataclass(frozen=True)
class Judged:
    """One entry per query row."""

    credibility: Float[Tensor, " m"]
    near_percentile: Float[Tensor, " m"]
    density_percentile: Float[Tensor, " m"]
    crowding: Float[Tensor, " m"] | None
    codes: Int[Tensor, " m"]  # positions in VERDICTS
    threshold: float
    standards: tuple[Standards, ...]  # one per fold
    fold: Int[Tensor, " m"]


def judge(
    neighborhood: Neighborhood,
    trusted: Trial,
    folds: list[Fold],
    sets: Sets,
    settings: AuditSettings,
    facts: ModelFacts | None,
) -> Judged:
    """Each row against the held-out rows of the fold it was not fitted in."""
    m = len(neighborhood.distances)
    threshold = _threshold(trusted, sets, settings)
    confidence = torch.from_numpy(trusted.confidence)
    parts = {name: torch.zeros(m, dtype=torch.float64) for name in ("cred", "near", "dense")}
    codes, fold_of = torch.zeros(m, dtype=torch.long), torch.zeros(m, dtype=torch.long)
    crowd = _crowding(facts, m)
    standards = []
    for at, (fold, parameters) in enumerate(zip(folds, trusted.parameters, strict=True)):
        seen, rows = fold.evidence, fold.scored
        held = standards_of(seen, parameters, threshold, settings.target_accuracy)
        part = neighborhood.rows(rows)
        some = None if crowd is None else crowd[rows]
        found = verdicts.judge(
            part, trusted.predicted[rows], confidence[rows], parameters, held, some
        )
        parts["cred"][rows], parts["near"][rows], parts["dense"][rows] = found[:3]
        codes[rows] = found.codes
        fold_of[rows] = at
        standards.append(held)
    return Judged(
        parts["cred"], parts["near"], parts["dense"], crowd, codes, threshold,
        tuple(standards), fold_of,
    )  # fmt: skip


def cases_of(
    judged: Judged,
    neighborhood: Neighborhood,
    weights: Float[Tensor, "m k"],
    trusted: Trial,
    sets: Sets,
    facts: ModelFacts | None,
    about: About,
) -> Cases:
    """The columns of ``samples.csv``, and each row's nearest neighbors."""
    m, shown = len(neighborhood.distances), neighborhood.first(SHOWN_NEIGHBORS)
    ids = tuple(about.query_ids or map(str, range(m)))
    codes = sets.query.codes
    labels = [None] * m if codes is None else [c if c >= 0 else None for c in codes.tolist()]
    return Cases(
        id=ids,
        label=tuple(labels),
        predicted=tuple(trusted.predicted.tolist()),
        confidence=tuple(np.minimum(trusted.confidence, 1.0).tolist()),
        credibility=tuple(judged.credibility.tolist()),
        near_percentile=tuple(judged.near_percentile.tolist()),
        verdict=tuple(VERDICTS[code] for code in judged.codes.tolist()),
        reason=tuple(_reasons(judged, neighborhood, trusted, sets)),
        neighbors=_rows(shown.indices),
        weights=_rows(weights[:, :SHOWN_NEIGHBORS]),
        distances=_rows(shown.distances.double()),
        head=trusted.name,
        **_network_columns(facts, m),
    )


def weights_of(
    neighborhood: Neighborhood, trusted: Trial, folds: list[Fold]
) -> Float[Tensor, "m k"]:
    """The share of each neighbor in its row's answer, with the parameters of the row's fold."""
    weights = torch.zeros(neighborhood.distances.shape, dtype=torch.float64)
    for fold, parameters in zip(folds, trusted.parameters, strict=True):
        part = neighborhood.rows(fold.scored)
        logs = neighbor_log_weights(part.double(), parameters)
        weights[fold.scored] = logs.softmax(1)
    return weights


def credibility_of(
    judged: Judged, trusted: Trial, scores: NDArray[np.int64] | None, k: int
) -> Credibility:
    """Accuracy by credibility, and the p-values' histogram: flat where the sets are alike."""
    p = judged.credibility.numpy()
    edges = np.linspace(0, 1, 11)
    counts, _ = np.histogram(p, bins=edges)
    some = scores is not None and bool((scores >= -1).any())
    bins: tuple[ReliabilityBin, ...] = ()
    if some and scores is not None:
        rows = scores >= -1
        right = (trusted.predicted.numpy() == scores)[rows]
        bins = tuple(reliability_bins(p[rows], right, 10))
    how = f"neighbors (k={k}) that do not have the predicted label, ranked among held-out rows"
    return Credibility(bins, (Histogram("query", tuple(edges), tuple(counts.tolist())),), how)


def class_facts(
    sets: Sets, trusted: Trial, labels: LabelAudit, entangled: NDArray[np.float64] | None
) -> tuple[ClassFacts, ...]:
    """Per class: sizes, precision and recall, calibration where there are rows enough."""
    assert sets.support.codes is not None
    support = torch.bincount(sets.support.codes, minlength=len(sets.names)).tolist()
    suspects = Counter(suspect.given for suspect in labels.suspects)
    codes = None if sets.query.codes is None else sets.query.codes.numpy()
    predicted, confidence = trusted.predicted.numpy(), np.minimum(trusted.confidence, 1.0)
    found = []
    for c in range(len(sets.names)):
        precision = recall = ece = floor = None
        n = 0
        if codes is not None:
            mine, said = codes == c, (predicted == c) & (codes >= -1)
            n = int(mine.sum())
            recall = float((predicted[mine] == c).mean()) if n else None
            precision = float((codes[said] == c).mean()) if said.any() else None
            if said.sum() >= MIN_CLASS_ROWS and support[c] > 1:
                ece = expected_calibration_error(confidence[said], codes[said] == c)
                floor = noise_floor(confidence[said])
        found.append(
            ClassFacts(
                label=c,
                support=support[c],
                query=n,
                precision=precision,
                recall=recall,
                ece=ece,
                noise_floor=floor,
                entanglement=None if entangled is None else float(entangled[c]),
                suspects=suspects[c],
            )
        )
    return tuple(found)


def trust_head(
    ned: NEDClassifier, evidence: Evidence, threshold: float, settings: AuditSettings
) -> TrustHead:
    """The head to keep: standards from all held-out rows, the audit's own threshold."""
    return TrustHead(
        ned, standards_of(evidence, ned.parameters_, threshold, settings.target_accuracy)
    )


def _threshold(trusted: Trial, sets: Sets, settings: AuditSettings) -> float:
    """The confidence that keeps the target accuracy; infinite where none can be shown to."""
    codes = None if sets.query.codes is None else sets.query.codes.numpy()
    if codes is None or not (codes >= -1).any():
        return float("inf")
    rows = codes >= -1
    right = (trusted.predicted.numpy() == codes)[rows]
    sure = np.minimum(trusted.confidence[rows], 1.0)
    cut = threshold_for_accuracy(sure, right, settings.target_accuracy)
    return float(cut.threshold) if cut.reachable else float("inf")


def _reasons(judged: Judged, neighborhood: Neighborhood, trusted: Trial, sets: Sets) -> list[str]:
    found = [""] * len(neighborhood.distances)
    confidence = torch.from_numpy(trusted.confidence)
    for at, held in enumerate(judged.standards):
        rows = (judged.fold == at).nonzero().flatten()
        crowd = None if judged.crowding is None else judged.crowding[rows]
        own = verdicts.Judged(
            judged.credibility[rows],
            judged.near_percentile[rows],
            judged.density_percentile[rows],
            judged.codes[rows],
            crowd,
        )
        part, predicted = neighborhood.rows(rows), trusted.predicted[rows]
        lines = verdicts.reasons(own, part, predicted, confidence[rows], held, sets.names)
        for row, line in zip(rows.tolist(), lines, strict=True):
            found[row] = line
    return found


def _crowding(facts: ModelFacts | None, m: int) -> Tensor | None:
    """Percentiles of N_S for the rows the network was asked about; 100 (no doubt) for others."""
    if facts is None or not facts.network_percentile:
        return None
    crowd = torch.full((m,), 100.0, dtype=torch.float64)
    for row, percentile in facts.network_percentile.items():
        crowd[row] = percentile
    return crowd


def _network_columns(facts: ModelFacts | None, m: int) -> dict[str, Any]:
    if facts is None:
        return {}
    columns: dict[str, Any] = {}
    if facts.network_percentile:
        columns["network_percentile"] = tuple(facts.network_percentile.get(i) for i in range(m))
        near = [facts.network_neighbors.get(i, ([], [])) for i in range(m)]
        columns["network_neighbors"] = tuple(tuple(rows) for rows, _ in near)
        columns["network_similarities"] = tuple(tuple(values) for _, values in near)
    if facts.layer_class is not None and facts.layer_share is not None:
        columns["layers"] = facts.story
        columns["layer_class"] = _rows(facts.layer_class)
        columns["layer_share"] = _rows(facts.layer_share.double())
    return columns


def _rows(matrix: Tensor) -> Any:
    """Rows as tuples; six digits of a float are enough for a page."""
    if matrix.is_floating_point():
        return tuple(tuple(float(f"{v:.6g}") for v in row) for row in matrix.tolist())
    return tuple(map(tuple, matrix.tolist()))
