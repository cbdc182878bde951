"""Which detector tells foreign inputs from familiar ones? AUROC and FPR95 side by side.

Scores are oriented so that larger means more outlying. FPR95 is the share of inliers flagged when
95 % of the outliers are (``positive="outlier"``), or of outliers let in when 95 % of the inliers
are (``"inlier"``, the older papers' reading): the record says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from vicinal.checks import InputError, as_matrix, as_tensor, check_k
from vicinal.evaluation import auroc, fpr_at_tpr, outlier_scores
from vicinal.labels import labels_of
from vicinal.neighbors import optimal_temperature
from vicinal.records import Record

NOT_TESTED = "not tested"
Score = Callable[[Any], Any]


@dataclass(frozen=True)
class Detector(Record):
    """One score on one outlier set; None where no outlier set was given."""

    detector: str
    outliers: str | None
    auroc: float | None
    fpr95: float | None


@dataclass(frozen=True)
class CredibilityHistogram(Record):
    """Credibilities of one set in equal bins of [0, 1]."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float


@dataclass(frozen=True)
class OutlierStudy(Record):
    """Detectors × outlier sets. ``print(study)`` is the table."""

    detectors: tuple[Detector, ...]
    credibility: tuple[CredibilityHistogram, ...]
    inlier_rows: int
    outlier_rows: dict[str, int]
    positive: str
    k: int
    temperature: float | None
    not_tested: tuple[str, ...]

    def best(self, outliers: str) -> Detector:
        """The detector with the highest AUROC on one outlier set."""
        mine = [d for d in self.detectors if d.outliers == outliers and d.auroc is not None]
        if not mine:
            raise InputError(
                f"no outlier set {outliers!r} was tested. Sets: {', '.join(self.outlier_rows)}."
            )
        return max(mine, key=lambda d: d.auroc or 0.0)

    def __str__(self) -> str:
        lines = [f"{'outliers':<20}{'detector':<16}{'AUROC':>12}{'FPR95':>12}"]
        for d in self.detectors:
            shown = [NOT_TESTED if v is None else f"{v:.3f}" for v in (d.auroc, d.fpr95)]
            lines.append(f"{d.outliers or '—':<20}{d.detector:<16}{shown[0]:>12}{shown[1]:>12}")
        lines += [f"credibility of {h.name}: mean {h.mean:.3f}" for h in self.credibility]
        return "\n".join([*lines, *(f"{NOT_TESTED}: {words}" for words in self.not_tested)])


def outlier_study(
    support: Any,
    inliers: Any,
    outliers: Any = None,
    *,
    labels: Any = None,
    logits: Score | None = None,
    credibility: Score | None = None,
    detectors: Mapping[str, Score] | None = None,
    k: int = 50,
    temperature: float | None = None,
    metric: str = "sqeuclidean",
    bins: int = 20,
    positive: str = "outlier",
) -> OutlierStudy:
    """Every detector the inputs allow, on each outlier set.

    Parameters
    ----------
    support, inliers : rows (n, d): what is known, and new rows of the same kind. The distance to
        the k-th neighbor is always a detector.
    outliers : rows, ``{name: rows}``, or None, and then each detector is listed as not tested.
    labels : classes of the support: add NED's density, Mahalanobis and relative Mahalanobis
        distance, ViM's residual and trust score.
    logits : a function of the rows: adds maximum softmax and energy.
    credibility : a function of the rows: adds itself and its histograms, in ``bins`` bins.
    detectors : others by name, each a function of the rows, larger = more outlying.
    k, temperature, metric : of the neighbors and their weights; a temperature of None is fitted
        on ``labels``.
    bins : of the histograms.
    positive : which side FPR95 finds 95 % of: ``"outlier"`` or ``"inlier"``.
    """
    rows, known = as_matrix(support, "support"), as_matrix(inliers, "inliers")
    check_k(k, len(rows), "k", "the support")
    sets = _sets(outliers)
    if labels is not None and temperature is None:
        y = labels_of(labels, len(rows), "labels").codes
        temperature = optimal_temperature(rows, y, metric=metric, k=min(k, len(rows) - 1))
    own = {} if credibility is None else {"credibility": credibility}

    def scores(z: Tensor) -> dict[str, Any]:
        found = outlier_scores(
            rows, z, labels=labels, logits=None if logits is None else logits(z),
            k=k, temperature=temperature, metric=metric,
        )  # fmt: skip
        found |= {name: -_column(score(z), name, len(z)) for name, score in own.items()}
        others = (detectors or {}).items()
        return found | {name: _column(score(z), name, len(z)) for name, score in others}

    inside, outside = scores(known), {name: scores(z) for name, z in sets.items()}
    table = [
        Detector(name, which, auroc(inside[name], theirs[name]),
                 fpr_at_tpr(inside[name], theirs[name], positive=positive))
        for which, theirs in outside.items()
        for name in inside
    ]  # fmt: skip
    every = {"inliers": inside, **outside} if credibility is not None else {}
    return OutlierStudy(
        detectors=tuple(table or [Detector(name, None, None, None) for name in inside]),
        credibility=tuple(_histogram(n, -s["credibility"], bins) for n, s in every.items()),
        inlier_rows=len(known), outlier_rows={name: len(z) for name, z in sets.items()},
        positive=positive, k=k, temperature=temperature,
        not_tested=_missing(sets, logits, credibility, labels),
    )  # fmt: skip


def _missing(sets: Any, logits: Any, credibility: Any, labels: Any) -> tuple[str, ...]:
    reasons = {
        "outliers: no outlier set was given": not sets,
        "max softmax and energy: no logits were given": logits is None,
        "credibility: no credibility function was given": credibility is None,
        "NED density, Mahalanobis, ViM, trust score: no labels were given": labels is None,
    }
    return tuple(words for words, missing in reasons.items() if missing)


def _sets(outliers: Any) -> dict[str, Tensor]:
    if outliers is None:
        return {}
    if isinstance(outliers, Mapping):
        return {str(name): as_matrix(z, f"outliers[{name!r}]") for name, z in outliers.items()}
    return {"outliers": as_matrix(outliers, "outliers")}


def _column(values: Any, name: str, rows: int) -> Tensor:
    x = as_tensor(values, name).double()
    if x.shape != (rows,):
        raise InputError(
            f"detector {name!r} must return one score for each of the {rows} rows, got shape "
            f"{tuple(x.shape)}."
        )
    return x


def _histogram(name: str, credibility: Tensor, bins: int) -> CredibilityHistogram:
    counts, edges = np.histogram(credibility.numpy(), bins=bins, range=(0.0, 1.0))
    return CredibilityHistogram(name, tuple(edges), tuple(counts), float(credibility.mean()))
