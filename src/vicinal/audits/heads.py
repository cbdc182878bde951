"""Heads on trial: each turns the same neighbors, or logits, into log-probabilities out of fold.

What is fitted is fitted on rows that are not scored with it: on the calibration set if there is
one, else on one half of the query for the other half (two-fold cross-fit), else, with no query, on
the support leave-one-out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from vicinal.audits.record import Head, ReliabilityBin, RiskCoverage, Sweep, Threshold
from vicinal.confidence.ned.posterior import NEDParameters, best_class, ned_log_probs
from vicinal.confidence.ned.recipe import Recipe, fit_recipe, with_prior
from vicinal.confidence.support import Evidence
from vicinal.evaluation import (
    expected_calibration_error,
    negative_log_likelihood,
    noise_floor,
    reliability,
    risk_coverage,
    threshold_for_accuracy,
)
from vicinal.evaluation.intervals import clopper_pearson_lower
from vicinal.neighbors.kernels import dudani, gou, uniform
from vicinal.neighbors.mass import class_log_mass
from vicinal.neighbors.neighborhood import Neighborhood

MIN_ECE_ROWS = 100  # below, even a perfect head reads an ECE of several points
LINEAR_ROWS = 20_000
RECIPES = {
    "ned": Recipe.of(None, 1.0, 0.0, "shared"),
    "ned_fitted": Recipe.of(None, "fit", "fit", "class"),
}


class Fold(NamedTuple):
    """Fit on ``evidence``; score the query rows ``scored``."""

    evidence: Evidence
    scored: Int[Tensor, " s"]
    fitted_on: Int[Tensor, " f"] | None  # query rows in the evidence, where they are query rows


@dataclass(frozen=True)
class Trial:
    """What one head says about every query row, and what was fitted for it, per fold."""

    name: str
    title: str
    log_probs: Float[Tensor, "m c"]
    predicted: Int[Tensor, " m"]
    parameters: tuple[NEDParameters, ...] = ()

    @property
    def confidence(self) -> NDArray[np.float64]:
        return self.log_probs.gather(1, self.predicted[:, None])[:, 0].exp().double().numpy()


def ned_trial(
    name: str,
    title: str,
    neighborhood: Neighborhood,
    folds: list[Fold],
    num_classes: int,
    dims: int,
    prior: str = "support",
) -> Trial:
    """NED with the parameters of each fold (``RECIPES[name]``)."""
    log_probs = neighborhood.distances.new_zeros(
        len(neighborhood.distances), num_classes, dtype=torch.float64
    )
    predicted = torch.zeros(len(log_probs), dtype=torch.long)
    fitted = []
    for fold in folds:
        found = fit_recipe(RECIPES[name], fold.evidence, num_classes, dims).parameters
        counts = fold.evidence.counts
        found = with_prior(found, counts, prior)
        fitted.append(found)
        part = neighborhood.rows(fold.scored).double()
        logs = ned_log_probs(part, num_classes, found)
        log_probs[fold.scored] = logs
        predicted[fold.scored] = best_class(logs, part)
    return Trial(name, title, log_probs, predicted, tuple(fitted))


def vote_trials(
    neighborhood: Neighborhood, k_vote: int, num_classes: int, metric: str
) -> list[Trial]:
    """1-NN, kNN, and the distance-weighted votes of Dudani (1976) and Gou (2012)."""
    plain = neighborhood.distances.double()
    plain = plain.sqrt() if metric == "sqeuclidean" else plain
    weighted = max(k_vote, min(20, plain.shape[1]))  # the k-th voter of Dudani and Gou has weight 0
    forms: list[tuple[str, str, int, Callable[[Tensor], Tensor]]] = [
        ("1nn", "1-NN", 1, uniform),
        ("knn", f"kNN, k={k_vote}", k_vote, uniform),
        ("dudani", f"weighted kNN (Dudani), k={weighted}", weighted, dudani),
        ("gou", f"weighted kNN (Gou), k={weighted}", weighted, gou),
    ]
    trials = []
    for name, title, k, weights in forms:
        masses = class_log_mass(weights(plain[:, :k]), neighborhood.labels[:, :k], num_classes)
        logs = masses.log_softmax(1)
        best = best_class(
            logs, Neighborhood(plain, *neighborhood[1:], neighborhood.labels).first(k)
        )
        trials.append(Trial(name, title, logs, best))
    return trials


def best_vote_k(graph: Neighborhood, labels: Int[Tensor, " n"], num_classes: int) -> int:
    """The k whose plain vote is right most often on the support, leave-one-out; ties: smaller."""
    ks = [k for k in (1, 3, 5, 10, 20, 50, 100, 200) if k <= graph.distances.shape[1]]
    votes = torch.zeros(len(labels), num_classes)
    scores, done = [], 0
    for k in ks:
        step = torch.ones_like(graph.labels[:, done:k], dtype=votes.dtype)
        votes.scatter_add_(1, graph.labels[:, done:k], step)
        done = k
        scores.append(float((votes.argmax(1) == labels).double().mean()))
    return ks[int(np.argmax(scores))]


def softmax_trials(
    logits: Float[Tensor, "m c"], labels: Int[Tensor, " m"] | None, folds: list[Fold]
) -> list[Trial]:
    """The given softmax head as it is, and temperature-scaled out of fold where labels allow."""
    logs = logits.double().log_softmax(1)
    trials = [Trial("softmax", "softmax (given)", logs, logs.argmax(1))]
    if labels is None or any(fold.fitted_on is None for fold in folds):
        return trials
    from vicinal.confidence import TemperatureScaling

    scaled = logs.clone()
    for fold in folds:
        assert fold.fitted_on is not None
        fit = fold.fitted_on[labels[fold.fitted_on] >= 0]
        scaling = TemperatureScaling().fit(logits[fit].double().numpy(), labels[fit].numpy())
        temperature = float(scaling.temperature_)
        scaled[fold.scored] = (logits[fold.scored].double() / temperature).log_softmax(1)
    trials.append(Trial("softmax_scaled", "softmax, temperature-scaled", scaled, scaled.argmax(1)))
    return trials


def linear_trial(
    support: Tensor, labels: Tensor, query: Tensor, num_classes: int, seed: int
) -> Trial | None:
    """Logistic regression on the embeddings: what a linear head would say. A reference."""
    if len(labels.unique()) < 2:
        return None
    rows = np.random.default_rng(seed).permutation(len(support))[:LINEAR_ROWS]
    x, y = support[rows].double().numpy(), labels[rows].numpy()
    mean, scale = x.mean(0), max(float(x.std()), 1e-12)
    model = LogisticRegression(max_iter=300, tol=1e-3).fit((x - mean) / scale, y)
    logs = torch.full((len(query), num_classes), -math.inf, dtype=torch.float64)
    found = model.predict_log_proba((query.double().numpy() - mean) / scale)
    logs[:, model.classes_] = torch.from_numpy(found)
    title = "logistic regression"
    title += f" ({LINEAR_ROWS:,} rows)" if len(support) > LINEAR_ROWS else ""
    return Trial("linear", title, logs, logs.argmax(1))


def judged(
    trial: Trial, labels: NDArray[np.int64] | None, target: float, force_ece: bool
) -> tuple[Head, list[str]]:
    """Accuracy with its standard error, ECE with its floor, NLL, coverage at the target.

    ``labels``: -1 is a class the support does not know, -2 a row without label (not scored).
    """
    if labels is None:
        empty = Head(trial.name, trial.title, None, None, None, None, None, None)
        return empty, []
    scored = labels >= -1
    confidence = np.minimum(trial.confidence[scored], 1.0)
    right = trial.predicted.numpy()[scored] == labels[scored]
    accuracy, n = float(right.mean()), int(scored.sum())
    notes = []
    known = labels >= 0
    loss = negative_log_likelihood(
        trial.log_probs[torch.from_numpy(known)].numpy(), labels[known], log_probabilities=True
    )
    nll = float(loss) if math.isfinite(loss) else None
    if nll is None and trial.name != "1nn":
        notes.append(
            f"{trial.title} gives probability 0 to the true class of {loss.infinite} rows: its NLL "
            "is infinite."
        )
    enough = n >= MIN_ECE_ROWS or force_ece
    cut = threshold_for_accuracy(confidence, right, target)
    head = Head(
        name=trial.name,
        title=trial.title,
        accuracy=accuracy,
        accuracy_se=math.sqrt(accuracy * (1 - accuracy) / n),
        ece=expected_calibration_error(confidence, right) if enough else None,
        noise_floor=noise_floor(confidence),
        nll=nll,
        coverage_at_target=float(cut.coverage) if cut.reachable else 0.0,
        overconfidence=float(confidence.mean() - accuracy),
        bins=tuple(reliability_bins(confidence, right)),
    )
    return head, notes


def sweep_over_k(
    neighborhood: Neighborhood,
    labels: NDArray[np.int64],
    folds: list[Fold],
    num_classes: int,
    dims: int,
) -> Sweep:
    """Eq. 3's NED refitted, out of fold, at each number of neighbors."""
    full = neighborhood.distances.shape[1]
    ks = sorted({k for k in (1, 2, 5, 10, 20, 50, 100, 200) if k < full} | {full})
    scored = labels >= -1
    accuracy, ece, nll = [], [], []
    for k in ks:
        cut = [fold._replace(evidence=fold.evidence.first(k)) for fold in folds]
        head, _ = judged(
            ned_trial("ned", "", neighborhood.first(k), cut, num_classes, dims), labels, 0.99, True
        )
        assert head.accuracy is not None
        accuracy.append(head.accuracy)
        ece.append(head.ece if scored.sum() >= MIN_ECE_ROWS else None)
        nll.append(head.nll)
    return Sweep(tuple(ks), tuple(accuracy), tuple(ece), tuple(nll), chosen=full)


def risk_coverage_of(trusted: Trial, scores: NDArray[np.int64], target: float) -> RiskCoverage:
    """Accuracy against coverage at up to 400 thresholds, and the one that keeps the target."""
    rows = scores >= -1
    sure = np.minimum(trusted.confidence[rows], 1.0)
    right = (trusted.predicted.numpy() == scores)[rows]
    curve = risk_coverage(sure, right)
    keep = np.unique(np.linspace(0, len(curve.threshold) - 1, 400).round().astype(int))
    accepted, errors = curve.accepted[keep], curve.errors[keep]
    low = clopper_pearson_lower(accepted - errors, accepted, 0.05)
    cut = threshold_for_accuracy(sure, right, target)
    return RiskCoverage(
        head=trusted.name,
        threshold=tuple(curve.threshold[keep].tolist()),
        coverage=tuple((accepted / len(sure)).tolist()),
        accuracy=tuple((1 - errors / accepted).tolist()),
        lower_bound=tuple(low.tolist()),
        chosen=Threshold(
            target=target,
            value=float(cut.threshold) if cut.reachable else None,
            coverage=float(cut.coverage),
            accuracy=cut.accuracy,
            lower_bound=cut.lower_bound,
            rows=len(sure),
            delta=cut.delta,
        ),
    )


def reliability_bins(
    score: NDArray[np.float64], right: NDArray[np.bool_], bins: int = 15
) -> list[ReliabilityBin]:
    """Accuracy by score, with 95 % intervals; an empty bin has no accuracy."""
    table = reliability(score, right, bins=bins)
    found = []
    for at in range(len(table.count)):
        some = bool(table.count[at] > 0)
        found.append(
            ReliabilityBin(
                low=float(table.lower[at]),
                high=float(table.upper[at]),
                count=int(table.count[at]),
                score=float(table.confidence[at]) if some else None,
                accuracy=float(table.accuracy[at]) if some else None,
                accuracy_low=float(table.low[at]) if some else None,
                accuracy_high=float(table.high[at]) if some else None,
            )
        )
    return found
