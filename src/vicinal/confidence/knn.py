r"""k nearest neighbors, plain and distance-weighted: what NED is compared with.

.. math:: p(c \mid z) = \frac{\sum_{i \le k} w_i \, [y_i = c]}{\sum_{i \le k} w_i}

with :math:`w_i = 1`, Dudani's :math:`(d_k-d_i)/(d_k-d_1)` (1976) or Gou's, which is Dudani's times
:math:`(d_k+d_1)/(d_k+d_i)` (2012). Dudani's and Gou's weights are defined on plain, unsquared
distances and know no bandwidth, so nothing in them can be calibrated; the k-th neighbor weighs 0,
so k neighbors are k - 1 voters.

A class nobody voted for has probability 0, and one such row makes the log-loss infinite. Smoothing
adds s votes that are cast by the class shares :math:`\pi` of the support,

.. math:: p_s(c \mid z) = \frac{k \, p(c \mid z) + s \, \pi_c}{k + s},

and ``"fit"`` takes the s with the lowest leave-one-out log-loss, at least :math:`k/n`: n rows that
were all right do not show that the next one will be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_k, number_or_fit, same_kind
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.support import LabeledSupport, check_announced, rows_of
from vicinal.labels import labels_of, log_class_shares, named
from vicinal.neighbors.distances import plain_distances
from vicinal.neighbors.mass import class_log_mass, dudani, gou, uniform
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import Search, make_search

WEIGHTS = {"uniform": uniform, "dudani": dudani, "gou": gou}


def knn_log_probs(
    distances: Tensor, labels: Tensor, num_classes: int, *, weights: str = "uniform"
) -> Tensor:
    """Log-share of the vote for every class.

    Parameters
    ----------
    distances : (n, k), not squared, ascending.
    labels : the neighbors', codes (n, k) or soft labels (n, k, c).
    num_classes : how many classes there are.
    weights : ``"uniform"``, ``"dudani"`` or ``"gou"``.

    >>> near = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0, 1, 1]])
    >>> knn_log_probs(*near, 2, weights="dudani").exp()
    tensor([[0.6667, 0.3333]])
    """
    return class_log_mass(WEIGHTS[weights](distances), labels, num_classes).log_softmax(1)


def smoothed(log_votes: Tensor, log_shares: Tensor, k: int, strength: float) -> Tensor:
    """Log-shares of the vote with ``strength`` more votes cast by the class shares.

    >>> smoothed(torch.tensor([[1.0, 0.0]]).log(), torch.tensor([0.5, 0.5]).log(), 3, 1.0).exp()
    tensor([[0.8750, 0.1250]])
    """
    if strength == 0:
        return log_votes
    cast = math.log(k / (k + strength)) + log_votes
    return torch.logaddexp(cast, (math.log(strength / (k + strength)) + log_shares).expand_as(cast))


def fit_smoothing(log_votes: Tensor, targets: Tensor, k: int) -> float:
    """The strength with the lowest log-loss of rows that had no vote on themselves.

    Parameters
    ----------
    log_votes : (n, c), leave-one-out.
    targets : the rows' codes (n,), or soft labels (n, c).
    k : neighbors that voted.
    """
    n, count = log_votes.shape
    log_shares = log_class_shares(targets, count, leave_one_out=True)
    own: Tensor | float = targets
    if targets.ndim == 1:  # of a row its own class alone
        log_votes, log_shares = (x.gather(1, targets[:, None]) for x in (log_votes, log_shares))
        own = 1.0

    def loss(u: float) -> float:
        return -float((own * smoothed(log_votes, log_shares, k, math.exp(u))).sum() / n)

    bounds = (math.log(k / n), math.log(100 * k))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)


class KNNClassifier(ClassifierMixin, Estimator):
    """Vote of the k nearest support rows; labels may be soft (n, c).

    The vote is piecewise constant in the query, so there is no ``module()``: its gradient is zero
    almost everywhere. To attack a kNN head, take the surrogate
    ``NEDClassifier(k, temperature).fit(X, y).module()``.

    Parameters
    ----------
    k : neighbors that vote; more than the support has is an error.
    weights : ``"uniform"``, ``"dudani"`` or ``"gou"``.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    search : ``"exact"``, ``"faiss"``, ``"auto"`` or a :class:`vicinal.neighbors.Search`.
    smoothing : votes added by the support's class shares: a number, 0 for the plain vote, or
        ``"fit"``, leave-one-out; ``smoothing_`` is what was used.

    >>> knn = KNNClassifier(k=3).fit([[0.0], [1.0], [2.0], [3.0]], ["a", "a", "b", "b"])
    >>> knn.predict_proba([[0.0]])
    array([[0.66666667, 0.33333333]])
    """

    def __init__(
        self,
        k: int = 10,
        weights: str = "uniform",
        metric: str = "sqeuclidean",
        search: str | Search = "exact",
        smoothing: float | str = 0.0,
    ) -> None:
        self.k = k
        self.weights = weights
        self.metric = metric
        self.search = search
        self.smoothing = smoothing

    def fit(self, X: Any, y: Any) -> KNNClassifier:
        """Take rows ``X`` with labels ``y`` (n,), or soft (n, c), as the support."""
        x = rows_of(self, X, reset=True)
        labels = labels_of(y, len(x))
        self._check(len(x))
        made = make_search(self.search, self.metric, shape=(len(x), x.shape[1]))
        self.support_ = LabeledSupport(made.build(x), labels)
        return self._counted()

    def fit_support(self, support: LabeledSupport) -> KNNClassifier:
        """The same for a support that is in its search already: one serves every k and head.

        >>> deepest = KNNClassifier(k=2).fit([[0.0], [1.0], [2.0]], ["a", "b", "b"])
        >>> near = deepest.neighborhood_of([[0.4]])
        >>> KNNClassifier(k=1).fit_support(deepest.support_).log_probs_of(near.first(1)).exp()
        tensor([[1., 0.]], dtype=torch.float64)
        """
        self._check(len(support))
        if (theirs := support.search.metric) != self.metric:
            told = f"`support` was searched by {theirs!r}, but `metric` is {self.metric!r}."
            raise InputError(f"{told} Pass KNNClassifier(metric={theirs!r}).")
        self.n_features_in_, self.support_ = support.width, support
        return self._counted()

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> KNNClassifier:
        """:meth:`fit` at the first call, more rows at the next; new classes may come at any.

        ``classes``: what scikit-learn lets one announce; labels are checked against it.
        """
        check_announced(y, classes)
        if not hasattr(self, "support_"):
            return self.fit(X, y)
        self.support_.add(rows_of(self, X).to(self.support_.rows), y)
        return self._counted()

    def _counted(self) -> KNNClassifier:
        """What follows from the support: classes, their shares, the smoothing."""
        labels = self.support_.labels
        given = number_or_fit(self.smoothing, "smoothing", math.inf)
        self.classes_: NDArray[Any] = labels.classes
        self.log_shares_ = log_class_shares(labels.codes, len(labels.classes))
        self.smoothing_ = 0.0
        if given is None:
            others = self.support_.leave_one_out(self.k)
            given = fit_smoothing(self.log_probs_of(others), labels.codes, others.k)
        self.smoothing_ = given
        return self

    def predict_log_proba(self, X: Any) -> Any:
        """Log of the vote's shares (n, c); -inf where nobody voted."""
        return same_kind(self.log_probs_of(self.neighborhood_of(X)).to(self.support_.dtype), X)

    def predict_proba(self, X: Any) -> Any:
        """Shares of the vote (n, c) in the order of ``classes_``."""
        p = self.log_probs_of(self.neighborhood_of(X)).exp()
        return same_kind(p.to(self.support_.dtype), X)

    def predict(self, X: Any) -> Any:
        """The class with most of the vote; ties, frequent among counts, go by label order.

        (scikit-learn's contract: the label is the arg max of the probabilities.)
        """
        near = self.neighborhood_of(X)  # says so where nothing was fitted
        return named(self.classes_, self.log_probs_of(near).argmax(1), X)

    def kneighbors(self, X: Any, k: int | None = None) -> Neighborhood:
        """Distances (n, k) in the metric's unit and ids of the nearest support rows."""
        neighborhood = self.neighborhood_of(X, k)
        ids = self.support_.ids[neighborhood.indices]
        return Neighborhood(same_kind(neighborhood.distances, X), same_kind(ids, X))

    @property
    def loo_proba_(self) -> NDArray[np.floating[Any]]:
        """Leave-one-out probabilities of the support rows (k at most the others there are)."""
        check_is_fitted(self)
        log_probs = self.log_probs_of(self.support_.leave_one_out(self.k))
        return log_probs.exp().to(self.support_.dtype).numpy()

    def neighborhood_of(self, X: Any, k: int | None = None) -> Neighborhood:
        """The search itself: the k nearest support rows, labeled; indices are positions."""
        check_is_fitted(self)
        x = rows_of(self, X).to(self.support_.like)
        return self.support_.query(x, self.k if k is None else k)

    def log_probs_of(self, neighborhood: Neighborhood) -> Tensor:
        """Log-shares of the vote (n, c) in float64 of labeled neighbors found before."""
        count, parts = len(self.classes_), []
        for part in neighborhood.blocks(neighborhood.block_rows(count)):
            d = plain_distances(part.distances.double(), self.metric)
            parts.append(knn_log_probs(d, part.labels, count, weights=self.weights))
        return smoothed(torch.cat(parts), self.log_shares_, neighborhood.k, self.smoothing_)

    def _check(self, rows: int) -> None:
        check_choice(self.weights, "weights", tuple(WEIGHTS))
        if rows == 1 and self.k != 1:
            raise InputError(f"`k`={self.k} but the support has 1 sample. Pass more rows, or k=1.")
        check_k(self.k, rows, "k", "the support")
        number_or_fit(self.smoothing, "smoothing", math.inf)
