r"""Softmax confidence, and the one number that calibrates it.

.. math:: p(c \mid z) = \frac{e^{z_c/T}}{\sum_j e^{z_j/T}}, \qquad
          T = \arg\min_T\; -\frac1n\sum_i \log p(y_i \mid z_i)

(Guo et al. 2017). With :math:`\beta = 1/T` the loss is convex, with derivatives

.. math:: f'(\beta) = \tfrac1n\sum_i \mathbb E_p[z_i] - z_{i,y_i}, \qquad
          f''(\beta) = \tfrac1n\sum_i \operatorname{Var}_p[z_i] \ge 0,

so :math:`T` is the root of :math:`f'`: Newton in :math:`\log\beta`, kept inside a bracket. The
arg max never changes. Logits that rank every label first have no finite best T: the fit stops at a
bound and says so.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_positive,
    check_same_rows,
    same_kind,
)
from vicinal.labels import named

_REACH = math.log(1e4)  # the bracket: logits' spread times or divided by this much


def max_softmax(logits: Any, *, temperature: float = 1.0) -> Any:
    """The confidence max_c p(c): in [1/c, 1], same kind as the logits.

    >>> max_softmax([[0.0, 0.0]])
    array([0.5])
    """
    check_positive(temperature, "temperature")
    z = as_matrix(logits, "logits").double() / temperature
    return same_kind(torch.softmax(z, 1).amax(1), logits)


def energy(logits: Any, *, temperature: float = 1.0) -> Any:
    """T log Σ_c exp(z_c / T) (Liu et al. 2020): larger where the network has seen such inputs.

    >>> energy([[0.0, 0.0]]).round(4)
    array([0.6931])
    """
    check_positive(temperature, "temperature")
    z = as_matrix(logits, "logits").double()
    return same_kind(temperature * torch.logsumexp(z / temperature, 1), logits)


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
    for edge, outward in ((low, 1.0), (high, -1.0)):
        if outward * _slopes(z, right, math.exp(edge))[0] >= 0:
            return math.exp(-edge), True
    u = min(max(0.0, low), high)
    for _ in range(100):
        beta = math.exp(u)
        slope, curve = _slopes(z, right, beta)
        low, high = (low, u) if slope > 0 else (u, high)
        # d/du f = β f', d²/du² f = β f' + β² f''; where that is not convex, halve the bracket
        bend = slope + beta * curve
        step = u - slope / bend if bend > 0 else math.inf
        following = step if low < step < high else (low + high) / 2
        if abs(following - u) <= 1e-12 * max(1.0, abs(u)):
            break
        u = following
    return math.exp(-u), False


def _slopes(z: Tensor, right: Tensor, beta: float) -> tuple[float, float]:
    p = torch.softmax(beta * z, 1)
    mean = (p * z).sum(1)
    return float((mean - right).mean()), float((p * (z - mean[:, None]).square()).sum(1).mean())


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
        columns = _columns(y, self.classes_)
        check_same_rows(z, columns, "logits", "y")
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


def _columns(y: Any, classes: NDArray[Any]) -> Int[Tensor, " n"]:
    """Labels as positions in ``classes``; float kinds and unknown names are errors."""
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind == "f":
        raise InputError(
            f"`y` must be class labels (n,), got shape {labels.shape} of {labels.dtype}."
        )
    place = np.argsort(classes, kind="stable")
    at = np.searchsorted(classes, labels, sorter=place).clip(max=len(classes) - 1)
    columns = place[at]
    unknown = np.flatnonzero(classes[columns] != labels)
    if len(unknown):
        raise InputError(
            f"`y` row {unknown[0]} is {labels[unknown[0]]!r}, not one of the {len(classes)} "
            "classes of the columns. Pass `classes` with the name of each column."
        )
    return torch.from_numpy(columns)
