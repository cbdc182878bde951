"""The heads: each turns the same neighbors, or logits, into log-probabilities of the same rows.

``HEADS`` is the one table of them; an audit and :func:`vicinal.studies.compare_heads` read it. What
is fitted is fitted per fold, on rows that are not scored with it: on the calibration set if there
is one, else on one half of the query for the other half (two-fold cross-fit), else on the support
leave-one-out. A comparison without folds is one fold that scores every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC
from torch import Tensor

from vicinal.audits.linear_view import LinearView
from vicinal.checks import InputError
from vicinal.confidence.blend import Blend, blended_log_probs, fit_blend, linear_share
from vicinal.confidence.knn import fit_smoothing, knn_log_probs, smoothed
from vicinal.confidence.linear import calibrated
from vicinal.confidence.ned.fit import RecipeFit, fit_recipe
from vicinal.confidence.ned.posterior import (
    BLOCK,
    NEDParameters,
    Recipe,
    best_class,
    ned_log_probs,
    with_prior,
)
from vicinal.confidence.ned_linear import enough_rows
from vicinal.confidence.softmax import TemperatureScaling
from vicinal.confidence.support import Evidence
from vicinal.labels import at_codes, log_class_shares
from vicinal.neighbors.distances import plain_distances
from vicinal.neighbors.mass import log_shares
from vicinal.neighbors.neighborhood import Neighborhood

SVC_ROWS = 4_000  # its cost grows with the square of the rows, for every class and fold
RECIPES = {
    "ned": Recipe.of(None, 1.0, 0.0, "shared"),
    "ned_fitted": Recipe.of(None, "fit", "fit", "class"),
}


Fitted = TypeVar("Fitted")


class Fold(NamedTuple):
    """Fit on ``evidence``; score the query rows ``scored``, whose neighbors are here in float64.

    Few support rows do not weigh two heads well: ``more`` are the query's, beside them.
    """

    evidence: Evidence
    scored: Int[Tensor, " s"]
    neighborhood: Neighborhood
    fitted_on: Int[Tensor, " f"] | None = None  # rows of the query: those of ``more`` or evidence
    more: Evidence | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """What every head is given: labeled support rows, the query, its neighbors, and the folds.

    ``vote_k`` and ``weighted_k`` neighbors vote, plainly and weighted by distance. ``logits`` are
    the query's, columns in the order of the codes; ``scaling`` holds, per fold, the query rows
    to scale and the logits and codes that the temperature is fitted on. Rows are as they came;
    ``linear`` is what a linear head says. ``alone``: the query is the support, left out in turn.
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
    linear: LinearView | None = None
    alone: bool = False
    fits: dict[tuple[str, Evidence], RecipeFit] = field(default_factory=dict)  # each made once

    @cached_property
    def plain_vote(self) -> Answer:
        """Its own row of the table, and what others smooth."""
        return vote(self, self.vote_k, "uniform", f"kNN, k={self.vote_k}, raw votes")

    @cached_property
    def fitted_ned(self) -> Answer:
        """Its own row of the table, and the neighbors' part of others."""
        return ned(self, "ned_fitted", "NED, everything fitted")

    def fit_of(self, name: str, evidence: Evidence) -> RecipeFit:
        """NED's parameters by ``RECIPES[name]``."""
        if (name, evidence) not in self.fits:
            given = evidence, self.num_classes, self.support.shape[1]
            self.fits[name, evidence] = fit_recipe(RECIPES[name], *given)
        return self.fits[name, evidence]

    def per_fold(self, fit: Callable[[Fold], Fitted]) -> list[Fitted]:
        """What is fitted for each fold; once where all folds are fitted on the same rows."""
        first, *others = self.folds
        if all(fold.evidence is first.evidence for fold in others):
            return [fit(first)] * len(self.folds)
        return [fit(fold) for fold in self.folds]


@dataclass(frozen=True, eq=False)
class Answer:
    """What one head says of every query row; what was fitted for it per fold, and said of it.

    ``parameters`` are those of NED, ``blends`` the weights of the linear part beside it.
    """

    title: str
    log_probs: Float[Tensor, "m c"]
    predicted: Int[Tensor, " m"]
    parameters: tuple[NEDParameters, ...] = ()
    notes: tuple[str, ...] = ()
    blends: tuple[Blend, ...] = ()
    linear_share: Float[Tensor, " m"] | None = None

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of the predicted class, at most 1 whatever the rounding."""
        return at_codes(self.log_probs, self.predicted).double().exp().clamp_max(1.0).numpy()


def ned(task: Task, name: str, title: str) -> Answer:
    """NED with the parameters of each fold (``RECIPES[name]``)."""
    m, fits = task.neighborhood.size, [task.fit_of(name, fold.evidence) for fold in task.folds]
    log_probs = torch.zeros(m, task.num_classes, dtype=torch.float64)
    predicted = torch.zeros(m, dtype=torch.long)
    fitted = list[NEDParameters]()
    for fold, fit in zip(task.folds, fits, strict=True):
        fitted.append(with_prior(fit.parameters, fold.evidence.counts, task.prior))
        found = ned_in_blocks(fold.neighborhood, task.num_classes, fitted[-1])
        log_probs[fold.scored], predicted[fold.scored] = found
    notes = dict.fromkeys(note for fit in fits for note in fit.warnings)
    return Answer(title, log_probs, predicted, tuple(fitted), tuple(notes))


def vote(task: Task, k: int, weights: str, title: str) -> Answer:
    """The vote of the k nearest, plain or weighted by distance; a tie goes to the nearer class."""
    plain = (
        Neighborhood(plain_distances(near.distances, task.metric), near.indices, near.labels)
        for near in map(Neighborhood.double, task.neighborhood.first(k).blocks(BLOCK))
    )
    return Answer(title, *in_blocks(plain, partial(votes_of, task.num_classes, weights)))


def votes_of(num_classes: int, weights: str, near: Neighborhood) -> Float[Tensor, "m c"]:
    return knn_log_probs(near.distances, near.labels, num_classes, weights=weights)


def in_blocks(
    blocks: Iterable[Neighborhood], log_probs_of: Callable[[Neighborhood], Tensor]
) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
    """Log-probabilities and predicted codes; blocks stay in the cache, four times as fast."""
    logs, best = [], []
    for part in blocks:
        logs.append(log_probs_of(part))
        best.append(best_class(logs[-1], part))
    return torch.cat(logs), torch.cat(best)


def ned_in_blocks(
    neighborhood: Neighborhood, num_classes: int, parameters: NEDParameters
) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
    """The same of NED."""
    asked = partial(ned_log_probs, num_classes=num_classes, parameters=parameters)
    return in_blocks(neighborhood.blocks(BLOCK), asked)


def softmax(task: Task, scaling: Sequence[tuple[Tensor, Tensor, Tensor]], title: str) -> Answer:
    """The given logits, over the temperature of each fold of ``scaling``."""
    assert task.logits is not None
    logs = task.logits.double().log_softmax(1)
    for rows, logits, codes in scaling:
        head = TemperatureScaling(range(logits.shape[1]))
        fitted = head.fit(logits.double().numpy(), codes.numpy())
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


def smoothed_vote(task: Task, title: str) -> Answer:
    """The plain vote with votes of the class shares added, as many as each fold's rows want."""
    votes, k = task.plain_vote, task.vote_k
    log_probs, shares = votes.log_probs.clone(), log_class_shares(task.codes, task.num_classes)

    def strength_on(fold: Fold) -> float:
        near = fold.evidence.neighborhood.first(k).blocks(BLOCK)  # a plain vote: no unit
        seen = [votes_of(task.num_classes, "uniform", part) for part in near]
        return fit_smoothing(torch.cat(seen), fold.evidence.targets, k)

    for fold, strength in zip(task.folds, task.per_fold(strength_on), strict=True):
        log_probs[fold.scored] = smoothed(log_probs[fold.scored], shares, k, strength)
    return Answer(title, log_probs, votes.predicted)


def logistic(task: Task, title: str, *, scaled: bool) -> Answer:
    """Logistic regression, λ by cross-validation: at T = 1, or at the T of each fold's rows."""
    view = _view(task)
    log_probs, weights = view.query.clone(), task.per_fold(partial(logistic_weight, task, scaled))
    for fold, weight in zip(task.folds, weights, strict=True):
        log_probs[fold.scored] = log_shares(weight * log_probs[fold.scored])
    share = torch.ones(len(log_probs), dtype=torch.float64)
    near, blends = task.fitted_ned.parameters, tuple(Blend(0.0, w, 0.0) for w in weights)
    return Answer(title, log_probs, log_probs.argmax(1), near, view.notes, blends, share)


def logistic_weight(task: Task, scaled: bool, fold: Fold) -> float:
    """What the view's logits are multiplied by: back to T = 1, or on to the held-out rows' T."""
    if not scaled:
        return float(_view(task).head.temperature_)
    if fold.evidence.leave_one_out:
        return 1.0  # calibrated on these rows already
    return 1 / calibrated(held_out_view(task, fold), fold.evidence.targets)[0]


def ned_linear(task: Task, title: str) -> Answer:
    """NED, everything fitted, and the linear view together, by the weights of each fold."""
    if task.prior != "support":
        raise InputError(
            f"the linear part knows the support's class shares, but prior is {task.prior!r}."
        )
    view, near, count = _view(task), task.fitted_ned, task.num_classes
    log_probs, predicted = torch.zeros_like(view.query), torch.zeros(len(view.query)).long()
    share, blends = torch.zeros(len(view.query), dtype=torch.float64), list[Blend]()
    log_prior = log_class_shares(task.codes, count, leave_one_out=task.alone)
    for fold, parameters in zip(task.folds, near.parameters, strict=True):
        same = blends and fold.evidence is task.folds[0].evidence and fold.more is None
        blends.append(blends[0] if same else blend_of(task, fold, parameters))
        rows = fold.scored
        parts = near.log_probs[rows], view.query[rows], log_prior, blends[-1]
        log_probs[rows] = blended_log_probs(*parts)
        predicted[rows] = best_class(log_probs[rows], fold.neighborhood)
        share[rows] = linear_share(*parts, predicted[rows])
    return Answer(title, log_probs, predicted, near.parameters, view.notes, tuple(blends), share)


def blend_of(task: Task, fold: Fold, parameters: NEDParameters) -> Blend:
    """The weights of both parts that the fold's rows want; four numbers need no more of them."""
    count, seen = task.num_classes, [(fold.evidence, held_out_view(task, fold))]
    if fold.more is not None:
        seen.append((fold.more, _view(task).query[fold.fitted_on]))
    left, parts = enough_rows(count), []
    for evidence, log_linear in seen:
        n = len(evidence)
        rows = torch.linspace(0, n - 1, min(n, left)).long()
        some, left = evidence.rows(rows), left - len(rows)
        log_ned = ned_in_blocks(some.neighborhood, count, parameters)[0]
        parts.append((log_ned, log_linear[rows], some.targets))
    return fit_blend(*(torch.cat(part) for part in zip(*parts, strict=True)))


def held_out_view(task: Task, fold: Fold) -> Float[Tensor, "n c"]:
    """What the linear view says of the rows that a fold is fitted on."""
    view = _view(task)
    if fold.evidence.leave_one_out:
        return view.support
    if fold.fitted_on is not None:
        return view.query[fold.fitted_on]
    assert view.calib is not None
    return view.calib


def _view(task: Task) -> LinearView:
    if task.linear is None:
        raise InputError("it needs at least two classes in the support.")
    return task.linear


HEADS: dict[str, Callable[[Task], Answer]] = {
    "softmax": lambda task: softmax(task, (), "softmax (given)"),
    "softmax_scaled": lambda task: softmax(task, task.scaling, "softmax, temperature-scaled"),
    "1nn": lambda task: vote(task, 1, "uniform", "1-NN"),
    "knn": lambda task: task.plain_vote,
    "knn_smoothed": lambda task: smoothed_vote(task, f"kNN, k={task.vote_k}, smoothed"),
    "dudani": lambda task: vote(
        task, task.weighted_k, "dudani", f"weighted kNN (Dudani), k={task.weighted_k}"
    ),
    "gou": lambda task: vote(
        task, task.weighted_k, "gou", f"weighted kNN (Gou), k={task.weighted_k}"
    ),
    "ned": lambda task: ned(task, "ned", "NED"),
    "ned_fitted": lambda task: task.fitted_ned,
    "logistic": lambda task: logistic(task, "logistic regression, raw", scaled=False),
    "logistic_scaled": lambda task: logistic(task, "logistic regression, scaled", scaled=True),
    "ned_linear": lambda task: ned_linear(task, "NED × linear"),
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
