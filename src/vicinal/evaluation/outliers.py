r"""How foreign is an input, and does the score tell foreign from familiar?

Every score says **larger = more outlying**. From one search among support rows:

.. math::

    \text{knn} = d_k(x) \qquad
    \text{ned} = -\log \tfrac1N \sum_{i \in kNN} e^{-d_i^2/T}

from logits :math:`-\max_c p_c` and :math:`-\log\sum_c e^{z_c}`, from class means the smallest
Mahalanobis distance :math:`\min_c (x-\mu_c)^\top \Sigma^{-1} (x-\mu_c)` (Lee et al. 2018), the
same less the distance to all rows' Gaussian, and ViM's residual (:mod:`.gaussians`); from the
distances to the nearest row of each class minus the trust score, second nearest over nearest.

The metrics below need no probabilities: they compare ranks, count ties half and take infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_choice,
    check_k,
    check_positive,
    check_same_width,
    same_kind,
)
from vicinal.evaluation.gaussians import gaussian_scores
from vicinal.evaluation.inputs import FloatArray, as_classes, by_class, exact_sum, row_order
from vicinal.neighbors.mass import log_mass
from vicinal.neighbors.search import Search, make_search
from vicinal.neighbors.temperature import optimal_temperature

SIDES = ("outlier", "inlier")


class OutlierDetection(NamedTuple):
    """Ranking quality of one score; ``fpr`` where ``tpr`` of the ``positive`` side is found."""

    auroc: float
    aupr_outlier: float
    aupr_inlier: float
    fpr: float
    tpr: float
    positive: str
    inliers: int
    outliers: int


def outlier_scores(
    support: Any,
    query: Any,
    *,
    labels: Any = None,
    logits: Any = None,
    k: int = 50,
    temperature: float | None = None,
    metric: str = "sqeuclidean",
    search: str | Search = "exact",
    space: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """Every score the inputs allow, ``(n,)`` each, larger = more outlying; one neighbor search.

    Always ``"knn"``; more where there is more to go by.

    Parameters
    ----------
    support, query : rows ``(m, d)`` that are familiar, and rows ``(n, d)`` to score.
    labels : of the support: adds ``"mahalanobis"``, ``"relative_mahalanobis"``, ``"vim"`` (its
        residual), with two classes or more ``"trust_score"`` and, with the temperature fitted on
        them, ``"ned"``.
    logits : of the queries, ``(n, c)``: adds ``"max_softmax"`` and ``"energy"``.
    k : how many neighbors.
    temperature : of ``"ned"``, instead of a fitted one.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    search : a name, or a search; one that already holds ``support`` is not built again.
    space : a map of rows to rows, :func:`vicinal.neighbors.distances.unit_rows` say: adds
        ``"knn_space"``, the distance to the k-th neighbor among mapped rows.

    >>> support, query = torch.eye(4), torch.tensor([[1.0, 0, 0, 0], [9.0, 9, 9, 9]])
    >>> scores = outlier_scores(support, query, k=1, temperature=1.0)
    >>> bool(scores["knn"][1] > scores["knn"][0]), bool(scores["ned"][1] > scores["ned"][0])
    (True, True)
    """
    x, rows = as_matrix(support, "support"), as_matrix(query, "query")
    check_same_width(x, rows, "support", "query")
    check_k(k, len(x), "k", "support")
    finder = make_search(search, metric)
    if finder is not search or len(finder) == 0:
        finder = finder.build(x)
    distances = finder.query(rows, k).distances
    scores = {"knn": distances[:, -1]}
    if labels is not None and temperature is None:
        sorted_rows = by_class(x, as_classes(labels, len(x), "labels"))
        temperature = optimal_temperature(*sorted_rows, metric=metric, k=min(k, len(x) - 1))
    if temperature is not None:
        scores["ned"] = -ned_log_density(distances, temperature, len(x))
    if labels is not None:
        scores["mahalanobis"] = mahalanobis_distance(x, labels, rows)
        scores |= gaussian_scores(x, labels, rows)
        if len(np.unique(as_classes(labels, len(x), "labels"))) > 1:
            scores["trust_score"] = trust_ratio(x, labels, rows, metric)
    if space is not None:
        other = make_search("exact", metric).build(as_matrix(space(x), "space(support)"))
        scores["knn_space"] = other.query(space(rows), k).distances[:, -1]
    if logits is not None:
        z = as_matrix(logits, "logits")
        scores |= {"max_softmax": max_softmax_score(z), "energy": energy_score(z)}
    return {name: same_kind(score, query) for name, score in scores.items()}


def ned_log_density(distances: Tensor, temperature: float, support_size: int) -> Tensor:
    """log (1/N) Σ exp(−d/T) over the neighbors found: ``(n, k)`` distances to ``(n,)``.

    What lies beyond k is left out, so the density is never overstated.
    """
    check_positive(temperature, "temperature")
    return log_mass(-distances.double() / temperature) - math.log(support_size)


def max_softmax_score(logits: Any, temperature: float = 1.0) -> Tensor:
    """−max_c p_c (Hendrycks and Gimpel 2017): the plain baseline."""
    check_positive(temperature, "temperature")
    return -torch.softmax(as_matrix(logits, "logits").double() / temperature, 1).amax(1)


def energy_score(logits: Any, temperature: float = 1.0) -> Tensor:
    """−T log Σ_c exp(z_c / T) (Liu et al. 2020): keeps the scale that a softmax divides out."""
    check_positive(temperature, "temperature")
    z = as_matrix(logits, "logits").double()
    return -temperature * torch.logsumexp(z / temperature, 1)


def mahalanobis_distance(support: Any, labels: Any, query: Any) -> Tensor:
    """Squared distance to the nearest class mean under the pooled within-class covariance.

    Directions in which no class varies count as infinitely stiff in theory; here the pseudoinverse
    leaves them out, as a support of fewer rows than dimensions cannot measure them.
    """
    x, rows = as_matrix(support, "support").double(), as_matrix(query, "query").double()
    x, y = by_class(x, as_classes(labels, len(x), "labels"))
    index = y.unique(return_inverse=True)[1]
    counts = torch.bincount(index).double()
    means = torch.zeros(len(counts), x.shape[1], dtype=torch.float64).index_add_(0, index, x)
    means /= counts[:, None]
    centered = x - means[index]
    values, vectors = torch.linalg.eigh(centered.T @ centered / len(x))
    kept = values > values[-1].clamp(min=0) * len(values) * 1e-12
    if not bool(kept.any()):
        raise InputError(
            "`support` does not vary within its classes, so there is no Mahalanobis distance. "
            "Pass more rows per class."
        )
    white = vectors[:, kept] / values[kept].sqrt()
    place = torch.from_numpy(row_order(rows.numpy()))
    ordered, exactly = rows[place.argsort()] @ white, "donot_use_mm_for_euclid_dist"
    return torch.cdist(ordered, means @ white, compute_mode=exactly).amin(1).square()[place]


def trust_ratio(support: Any, labels: Any, query: Any, metric: str = "euclidean") -> Tensor:
    """Minus the distance to the second nearest class over that to the nearest (Jiang et al. 2018).

    0/0 is 1: two classes at one point say nothing. As :class:`vicinal.confidence.TrustScore` of its
    own prediction; squared distances keep the order.
    """
    x, rows = as_matrix(support, "support"), as_matrix(query, "query")
    y = torch.from_numpy(as_classes(labels, len(x), "labels"))
    finders = [make_search("exact", metric).build(x[y == name]) for name in y.unique()]
    nearest = torch.cat([finder.query(rows, 1).distances for finder in finders], 1).double()
    own, other = nearest.topk(2, 1, largest=False).values.unbind(1)
    return -torch.where(other == 0, torch.ones_like(own), other / own)


def auroc(inliers: Any, outliers: Any) -> float:
    """Chance that an outlier scores above an inlier, ties half: ranks in integers, no squashing.

    >>> auroc([1.0, 2.0, 3.0], [3.0, 40.0])
    0.9166666666666666
    """
    low, high = _scores(inliers, outliers)
    twice = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return int(twice.sum()) / (2 * len(low) * len(high))


def aupr(inliers: Any, outliers: Any, *, positive: str = "outlier") -> float:
    """Average precision with the given side as the positive one; a tie group counts at once.

    >>> aupr([1.0, 2.0], [2.0, 3.0])  # 1/2 · 1 + 1/2 · 2/3
    0.8333333333333333
    """
    check_choice(positive, "positive", SIDES)
    low, high = _scores(inliers, outliers)
    wanted, others = (high, low) if positive == "outlier" else (-low[::-1], -high[::-1])
    steps, counts = np.unique(wanted, return_counts=True)
    found = len(wanted) - np.searchsorted(wanted, steps)  # at or above each step
    mistaken = len(others) - np.searchsorted(others, steps)
    return exact_sum(counts * (found / (found + mistaken)).astype(float)) / len(wanted)


def fpr_at_tpr(
    inliers: Any, outliers: Any, tpr: float = 0.95, *, positive: str = "outlier"
) -> float:
    """Share of the other side caught when at least ``tpr`` of the ``positive`` side is.

    Parameters
    ----------
    inliers, outliers : scores, larger = more outlying.
    tpr : the share of the positive side to catch.
    positive : ``"outlier"``: inliers flagged when 95 % of the outliers are (OpenOOD's reading);
        ``"inlier"``: outliers let in when 95 % of the inliers are (the older papers').

    >>> fpr_at_tpr([1.0, 2.0, 3.0, 4.0], [3.5, 5.0], tpr=1.0)
    0.25
    """
    check_choice(positive, "positive", SIDES)
    if not 0 < tpr <= 1:
        raise InputError(f"`tpr` must lie in (0, 1], got {tpr!r}.")
    low, high = _scores(inliers, outliers)
    wanted, others = (high, low) if positive == "outlier" else (-low[::-1], -high[::-1])
    needed = math.ceil(tpr * len(wanted))
    while needed > 1 and (needed - 1) / len(wanted) >= tpr:  # 0.07 · 100 = 7.000000000000001
        needed -= 1
    cut = wanted[len(wanted) - needed]
    return (len(others) - int(np.searchsorted(others, cut))) / len(others)


def outlier_report(
    inliers: Any, outliers: Any, *, tpr: float = 0.95, positive: str = "outlier"
) -> OutlierDetection:
    """AUROC, AUPR of both sides and FPR at TPR of one score.

    Parameters
    ----------
    inliers, outliers, tpr, positive : as in :func:`fpr_at_tpr`.
    """
    low, high = _scores(inliers, outliers)
    return OutlierDetection(
        auroc(low, high),
        aupr(low, high, positive="outlier"),
        aupr(low, high, positive="inlier"),
        fpr_at_tpr(low, high, tpr, positive=positive),
        tpr,
        positive,
        len(low),
        len(high),
    )


def _scores(inliers: Any, outliers: Any) -> tuple[FloatArray, FloatArray]:
    """Both score vectors in float64, sorted; infinite is a rank, NaN is none."""
    return _sorted_scores(inliers, "inliers"), _sorted_scores(outliers, "outliers")


def _sorted_scores(value: Any, name: str) -> FloatArray:
    x = as_tensor(value, name).detach().cpu().double()
    if x.ndim != 1 or len(x) == 0:
        raise InputError(
            f"`{name}` must be a vector with at least one score, got shape {tuple(x.shape)}."
        )
    if bool(x.isnan().any()):
        row = int(x.isnan().nonzero()[0])
        raise InputError(f"`{name}` is NaN in row {row}. A score must have a rank.")
    return np.sort(x.numpy()) + 0.0
