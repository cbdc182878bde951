r"""Softmax confidence, and the one number that calibrates it.

.. math:: p(c \mid z) = \frac{e^{z_c/T}}{\sum_j e^{z_j/T}}, \qquad
          T = \arg\min_T\; -\frac1n\sum_i \log p(y_i \mid z_i)

(Guo et al. 2017). With :math:`\beta = 1/T` the loss is convex,

.. math:: f'(\beta) = \tfrac1n\sum_i \mathbb E_p[z_i] - z_{i,y_i}, \qquad
          f''(\beta) = \tfrac1n\sum_i \operatorname{Var}_p[z_i] \ge 0,

so :math:`T` is the one root of :math:`f'`, found in :math:`\log\beta`. The arg max never changes.
Logits that rank every label first have no finite best T: the fit stops at a bound and says so.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.optimize import root_scalar
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_same_rows,
    same_kind,
)
from vicinal.evaluation.outliers import energy_score, max_softmax_score
from vicinal.labels import Labels, codes_of, named

_REACH = math.log(1e4)  # the bracket: logits' spread times or divided by this much


def max_softmax(logits: Any, *, temperature: float = 1.0) -> Any:
    """The confidence max_c p(c): in [1/c, 1], same kind as the logits.

    >>> max_softmax([[0.0, 0.0]])
    array([0.5])
    """
    return same_kind(-max_softmax_score(logits, temperature), logits)


def energy(logits: Any, *, temperature: float = 1.0) -> Any:
    """T log Σ_c exp(z_c / T) (Liu et al. 2020): larger where the network has seen such inputs.

    >>> energy([[0.0, 0.0]]).round(4)
    array([0.6931])
    """
    return same_kind(-energy_score(logits, temperature), logits)


def fit_softmax_temperature(
    logits: Float[Tensor, "n c"], columns: Int[Tensor, " n"]
) -> tuple[float, bool]:
    """``(T, at_bound)`` that minimizes the mean log loss; T = 1 where no logit differs."""
    z = logits.double() - logits.double().amax(1, keepdim=True)
    spread = float(z.std(1, correction=0).mean())
    if spread == 0:
        return 1.0, False
    right = z.gather(1, columns[:, None]).squeeze(1)
    low, high = -math.log(spread) - _REACH, -math.log(spread) + _REACH  # of log β

    def slope(log_beta: float) -> float:
        p = torch.softmax(math.exp(log_beta) * z, 1)
        return float(((p * z).sum(1) - right).mean())

    if slope(low) >= 0:
        return math.exp(-low), True
    if slope(high) <= 0:
        return math.exp(-high), True
    return math.exp(-root_scalar(slope, bracket=(low, high), xtol=1e-13).root), False


class TemperatureScaling(ClassifierMixin, BaseEstimator):
    """Calibrate logits by one temperature, fitted on rows the network was not trained on.

    ``fit(logits, y)``: ``y`` holds column numbers, or names from ``classes``. Logits are not
    features, their columns are the classes, so this is a classifier on top of a network.

    >>> logits = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]
    >>> head = TemperatureScaling().fit(logits, [0, 0, 1, 1])     # three of four right
    >>> head.predict_proba(logits)[0].round(3)
    array([0.75, 0.25])
    """

    def __init__(self, classes: Any = None) -> None:
        self.classes = classes

    def fit(self, X: Any, y: Any) -> Self:
        z = as_matrix(X, "logits").detach()
        self.n_features_in_ = z.shape[1]
        self.classes_ = self._names(z.shape[1])
        columns = _columns(y, self.classes_, len(z))
        self.temperature_, self.at_bound_ = fit_softmax_temperature(z, columns.to(z.device))
        if self.at_bound_:
            warnings.warn(
                f"the temperature ran into its bound, T = {self.temperature_:.3g}: the labels are "
                "ranked first everywhere (training rows?) or no better than by chance. "
                "Fit on held-out rows.",
                stacklevel=2,
            )
        return self

    def predict_log_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        z = as_matrix(X, "logits")
        if z.shape[1] != self.n_features_in_:
            raise InputError(
                f"`logits` has {z.shape[1]} columns, but the temperature was fitted on "
                f"{self.n_features_in_} classes. They must come from the same network."
            )
        return same_kind(torch.log_softmax(z.double() / self.temperature_, 1), X)

    def predict_proba(self, X: Any) -> Any:
        log_p = self.predict_log_proba(X)
        return log_p.exp() if isinstance(log_p, Tensor) else np.exp(log_p)

    def predict(self, X: Any) -> Any:
        return named(self.classes_, as_tensor(self.predict_log_proba(X), "logits").argmax(1), X)

    def _names(self, width: int) -> NDArray[Any]:
        names = np.arange(width) if self.classes is None else np.asarray(self.classes)
        if names.shape != (width,) or len(np.unique(names)) != width:
            raise InputError(
                f"`classes` must name each of the {width} columns of the logits once, "
                f"got {names.shape}."
            )
        return names


def _columns(y: Any, classes: NDArray[Any], rows: int) -> Int[Tensor, " n"]:
    """Labels as positions in ``classes``; float kinds and unknown names are errors."""
    check_same_rows(range(rows), y, "logits", "y")
    if np.asarray(y).dtype.kind == "f":
        raise InputError("`y` must be class labels (n,), got floats. Pass y.astype(int).")
    columns = codes_of(y, rows, Labels(classes))
    unknown = (columns < 0).nonzero().flatten().tolist()
    if unknown:
        raise InputError(
            f"`y` row {unknown[0]} is {y[unknown[0]]!r}, not one of the {len(classes)} "
            "classes of the columns. Pass `classes` with the name of each column."
        )
    return columns
