r"""Trust score: is another class nearer than the predicted one?

.. math:: t(x) = \frac{\min_{c \ne \hat y} d_c(x)}{d_{\hat y}(x)}, \qquad
          d_c(x) = \text{distance to the k-th nearest row of class } c

(Jiang et al. 2018). Above 1 the prediction's class is the nearest; the scale is free, only the
order means something, and features of unlike scale should be standardized first. The *density
filter* drops from each class the share ``alpha`` of rows whose ``density_k``-th neighbor within the
class is farthest, so that a stray row does not vouch for its class.

At distance zero: 0/0 is 1 (two classes at one point say nothing), anything else over 0 is infinite.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_k, check_share, same_kind
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.support import rows_of
from vicinal.labels import hard_labels_of, known_codes, named
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.search import Search, leave_one_out, make_search


def dense_rows(search: Search, k: int, alpha: float) -> Bool[Tensor, " n"]:
    """All but the share ``alpha`` of rows with the farthest k-th neighbor; rows tied there stay."""
    n = len(search)
    radius = leave_one_out(search, k).distances[:, -1]
    kept = math.ceil(round((1 - alpha) * n, 9))  # 0.9 · 10 must not round up to 10
    return radius <= radius.sort().values[max(kept, 1) - 1]


class TrustScore(Estimator):
    """Distance to the nearest other class over distance to the predicted class.

    Parameters
    ----------
    k : which neighbor of a class its distance is to.
    alpha : share of each class's rows that the density filter drops.
    density_k : which neighbor within the class tells how dense it is around a row.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    search : ``"exact"``, ``"faiss"`` or ``"auto"``.

    >>> x = [[0.0], [1.0], [10.0], [11.0]]
    >>> TrustScore().fit(x, [0, 0, 1, 1]).score([[2.0], [9.0]], [0, 0])
    array([8.   , 0.125])
    """

    def __init__(
        self,
        k: int = 1,
        *,
        alpha: float = 0.0,
        density_k: int = 10,
        metric: str = "euclidean",
        search: str = "exact",
    ) -> None:
        self.k = k
        self.alpha = alpha
        self.density_k = density_k
        self.metric = metric
        self.search = search

    def fit(self, X: Any, y: Any) -> Self:
        """One search per class, after the density filter."""
        check_choice(self.metric, "metric", METRICS)
        if self.alpha != 0:
            check_share(self.alpha, "alpha")
        x = rows_of(self, X, reset=True)
        labels = hard_labels_of(y, len(x), "a row belongs to one class")
        self.classes_ = labels.classes
        self.searches_: list[Search] = []
        self.kept_ = np.ones(len(x), dtype=bool)
        for c, name in enumerate(self.classes_):
            mine = (labels.codes == c).nonzero().flatten()
            finder = make_search(self.search, self.metric).build(x[mine])
            if self.alpha > 0:
                check_k(self.density_k, len(mine) - 1, "density_k", f"class {name} (less itself)")
                dense = dense_rows(finder, self.density_k, self.alpha)
                self.kept_[mine[~dense].numpy()] = False
                finder = make_search(self.search, self.metric).build(x[mine[dense]])
            check_k(self.k, len(finder), "k", f"class {name}")
            self.searches_.append(finder)
        return self

    def distances(self, X: Any) -> Float[Tensor, "n c"]:
        """(n, c) to the k-th nearest kept row of each class."""
        check_is_fitted(self)
        return same_kind(self._distances(X), X)

    def score(self, X: Any, y: Any) -> Float[Tensor, " n"]:
        """The trust in each predicted label ``y``; larger is more trusted. Not an accuracy."""
        check_is_fitted(self)
        d = self._distances(X)
        unknown = "predicts {}, which has no support row. Fit on rows of every class there is."
        codes = known_codes(y, len(d), self.classes_, unknown)
        if d.shape[1] == 1:
            raise InputError(
                "the support has one class only, so there is no other class to compare with."
            )
        own = d.gather(1, codes[:, None]).squeeze(1)
        other = d.scatter(1, codes[:, None], torch.inf).amin(1)
        ratio = torch.where((own == 0) & (other == 0), torch.ones_like(own), other / own)
        return same_kind(ratio, X)

    def predict(self, X: Any) -> Any:
        """The nearest class; among equals the first in order."""
        check_is_fitted(self)
        return named(self.classes_, self._distances(X).argmin(1), X)

    def _distances(self, X: Any) -> Float[Tensor, "n c"]:
        x = rows_of(self, X)
        kth = [finder.query(x, self.k).distances[:, -1] for finder in self.searches_]
        return torch.stack(kth, 1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
