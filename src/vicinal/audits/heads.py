"""The heads: each turns the same neighbors, or logits, into log-probabilities of the same rows.

``HEADS`` is the one table of them; an audit and :func:`vicinal.studies.compare_heads` read it. What
is fitted is fitted per fold, on rows that are not scored with it: on the calibration set if there
is one, else on one half of the query for the other half (two-fold cross-fit), else on the support
leave-one-out. A comparison without folds is one fold that scores every row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.knn import knn_log_probs
from vicinal.confidence.ned.fit import fit_recipe
from vicinal.confidence.ned.posterior import (
    NEDParameters,
    Recipe,
    best_class,
    ned_log_probs,
    with_prior,
)
from vicinal.confidence.softmax import TemperatureScaling
from vicinal.confidence.support import Evidence
from vicinal.neighbors.distances import plain_distances
from vicinal.neighbors.neighborhood import Neighborhood

SVC_ROWS = 4_000  # its cost grows with the square of the rows, for every class and fold
LOGISTIC_ROWS = 20_000
BLOCK = 4096
RECIPES = {
    "ned": Recipe.of(None, 1.0, 0.0, "shared"),
    "ned_fitted": Recipe.of(None, "fit", "fit", "class"),
}


class Fold(NamedTuple):
    """Fit on ``evidence``; score the query rows ``scored``, whose neighbors are here in float64."""

    evidence: Evidence
    scored: Int[Tensor, " s"]
    neighborhood: Neighborhood
    fitted_on: Int[Tensor, " f"] | None = None  # query rows in the evidence, if they are query rows


@dataclass(frozen=True, eq=False)
class Task:
    """What every head is given: labeled support rows, the query, its neighbors, and the folds.

    ``vote_k`` and ``weighted_k`` neighbors vote, plainly and weighted by distance. ``logits`` are
    the query's, columns in the order of the codes; ``scaling`` holds, per fold, the query rows
    to scale and the logits and codes that the temperature is fitted on.
    """

    support: Float[Tensor, "n d"]
    codes: Int[Tensor, " n"]
    query: Float[Tensor, "m d"]
    neighborhood: Neighborhood
    folds: tuple[Fold, ...]
    num_classes: int
    metric: str
    vote_k: int
    weighted_k: int
    prior: str = "support"
    logits: Float[Tensor, "m c"] | None = None
    scaling: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Answer:
    """What one head says of every query row; what was fitted for it per fold, and said of it."""

    title: str
    log_probs: Float[Tensor, "m c"]
    predicted: Int[Tensor, " m"]
    parameters: tuple[NEDParameters, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of the predicted class, at most 1 whatever the rounding."""
        top = self.log_probs.gather(1, self.predicted[:, None])[:, 0]
        return top.double().exp().clamp_max(1.0).numpy()


def ned(task: Task, name: str, title: str) -> Answer:
    """NED with the parameters of each fold (``RECIPES[name]``)."""
    m, dims = task.neighborhood.size, task.support.shape[1]
    log_probs = torch.zeros(m, task.num_classes, dtype=torch.float64)
    predicted = torch.zeros(m, dtype=torch.long)
    fitted: list[NEDParameters] = []
    notes: list[str] = []
    for fold in task.folds:
        fit = fit_recipe(RECIPES[name], fold.evidence, task.num_classes, dims)
        fitted.append(with_prior(fit.parameters, fold.evidence.counts, task.prior))
        notes += fit.warnings
        log_probs[fold.scored], predicted[fold.scored] = _in_blocks(
            fold.neighborhood,
            partial(ned_log_probs, num_classes=task.num_classes, parameters=fitted[-1]),
        )
    return Answer(title, log_probs, predicted, tuple(fitted), tuple(dict.fromkeys(notes)))


def vote(task: Task, k: int, weights: str, title: str) -> Answer:
    """The vote of the k nearest, plain or weighted by distance; a tie goes to the nearer class."""
    near = task.neighborhood.first(k).double()
    plain = plain_distances(near.distances, task.metric)
    near = Neighborhood(plain, near.indices, near.labels)

    def share(part: Neighborhood) -> Tensor:
        return knn_log_probs(part.distances, part.labels, task.num_classes, weights=weights)

    return Answer(title, *_in_blocks(near, share))


def _in_blocks(
    neighborhood: Neighborhood, log_probs_of: Callable[[Neighborhood], Tensor]
) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
    """Log-probabilities and predicted codes; blocks stay in the cache, four times as fast."""
    logs, best = [], []
    for part in neighborhood.blocks(BLOCK):
        logs.append(log_probs_of(part))
        best.append(best_class(logs[-1], part))
    return torch.cat(logs), torch.cat(best)


def softmax(task: Task, scaling: Sequence[tuple[Tensor, Tensor, Tensor]], title: str) -> Answer:
    """The given logits, over the temperature of each fold of ``scaling``."""
    assert task.logits is not None
    logs = task.logits.double().log_softmax(1)
    for rows, logits, codes in scaling:
        fitted = TemperatureScaling().fit(logits.double().numpy(), codes.numpy())
        logs[rows] = (task.logits[rows].double() / float(fitted.temperature_)).log_softmax(1)
    return Answer(title, logs, logs.argmax(1))


def trained(task: Task, model: Callable[[], Any], most: int, title: str) -> Answer:
    """A scikit-learn head on the embeddings: a seeded sample of the support if that is too large.

    Rows are centered and divided by one common scale: scaling each dimension by itself would blow
    up those in which an embedding hardly varies.
    """
    n, note = len(task.support), ""
    rows = np.arange(n)
    if n > most:
        rows = np.sort(np.random.default_rng(task.seed).permutation(n)[:most])
        note, title = f"fitted on {most} of {n} support rows.", f"{title} ({most:,} rows)"
    x, y = task.support[rows].double().numpy(), task.codes[rows].numpy()
    if y.min() == y.max():
        raise InputError("it needs at least two classes in the support.")
    mean, scale = x.mean(0), float(x.std()) or 1.0
    head = model().fit((x - mean) / scale, y)
    found = head.predict_proba((task.query.double().numpy() - mean) / scale)
    p = torch.zeros(len(task.query), task.num_classes, dtype=torch.float64)
    p[:, head.classes_] = torch.from_numpy(found)
    return Answer(title, p.log(), p.argmax(1), notes=(note,) if note else ())


class ScaledSVC:
    """An RBF-SVC that says how sure it is: one-vs-rest margins, calibrated by one temperature.

    The margins that the temperature is fitted on are cross-validated, as those of training rows are
    too wide. scikit-learn's own ways are no fair rival: calibrating ``SVC`` directly sees
    one-vs-one *votes*, which hardly rank (AURC 0.069 against 0.014 on noisy digits), and
    ``probability=True`` is on its way out.

    >>> x = np.array([[0.0], [0.1], [0.2], [1.0], [1.1], [0.15]])
    >>> head = ScaledSVC().fit(x, np.array([0, 0, 0, 1, 1, 1]))
    >>> head.predict_proba(x).shape
    (6, 2)
    """

    def fit(self, x: NDArray[np.float64], y: NDArray[np.int64]) -> Self:
        self.classes_, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        if counts.min() < 2:
            raise InputError("its calibration needs two support rows of every class.")
        self.margins_ = OneVsRestClassifier(SVC())
        folds = min(5, int(counts.min()))
        held_out = cross_val_predict(self.margins_, x, codes, cv=folds, method="decision_function")
        self.scaling_ = TemperatureScaling().fit(_columns(held_out), codes)
        self.margins_.fit(x, codes)
        return self

    def predict_proba(self, x: NDArray[np.float64]) -> Any:
        return self.scaling_.predict_proba(_columns(self.margins_.decision_function(x)))


def _columns(margins: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two classes share one margin: it speaks for the second and against the first."""
    return margins if margins.ndim == 2 else np.stack([-margins, margins], 1)


def logistic(task: Task) -> Answer:
    """Logistic regression: what a linear head would say. A reference."""
    model = partial(LogisticRegression, max_iter=300, tol=1e-3)
    return trained(task, model, LOGISTIC_ROWS, "logistic regression")


HEADS: dict[str, Callable[[Task], Answer]] = {
    "softmax": lambda task: softmax(task, (), "softmax (given)"),
    "softmax_scaled": lambda task: softmax(task, task.scaling, "softmax, temperature-scaled"),
    "1nn": lambda task: vote(task, 1, "uniform", "1-NN"),
    "knn": lambda task: vote(task, task.vote_k, "uniform", f"kNN, k={task.vote_k}"),
    "dudani": lambda task: vote(
        task, task.weighted_k, "dudani", f"weighted kNN (Dudani), k={task.weighted_k}"
    ),
    "gou": lambda task: vote(
        task, task.weighted_k, "gou", f"weighted kNN (Gou), k={task.weighted_k}"
    ),
    "ned": lambda task: ned(task, "ned", "NED"),
    "ned_fitted": lambda task: ned(task, "ned_fitted", "NED, everything fitted"),
    "linear": logistic,
    "logistic": logistic,
    "svc": lambda task: trained(task, ScaledSVC, SVC_ROWS, "RBF-SVC"),
}


def best_vote_k(graph: Neighborhood, codes: Int[Tensor, " n"], num_classes: int) -> int:
    """The k whose plain vote is right most often on the support, leave-one-out; ties: smaller."""
    ks = [k for k in (1, 3, 5, 10, 20, 50, 100, 200) if k <= graph.k]
    votes = torch.zeros(len(codes), num_classes)
    scores, done = [], 0
    for k in ks:
        step = torch.ones_like(graph.labels[:, done:k], dtype=votes.dtype)
        votes.scatter_add_(1, graph.labels[:, done:k], step)
        done = k
        scores.append(float((votes.argmax(1) == codes).double().mean()))
    return ks[int(np.argmax(scores))]
