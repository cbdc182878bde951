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
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import InputError, as_matrix, as_tensor, as_weights, same_kind
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.support import rows_of
from vicinal.evaluation.outliers import energy_score, max_softmax_score
from vicinal.labels import hard_labels_of, known_codes, named

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
    logits: Float[Tensor, "n c"],
    columns: Int[Tensor, " n"],
    weight: Float[Tensor, " n"] | None = None,
) -> tuple[float, bool]:
    """``(T, at_bound)`` that minimizes the (weighted) mean log loss; 1 where no logit differs."""
    z = logits.double() - logits.double().amax(1, keepdim=True)
    share = torch.full_like(z[:, 0], 1 / len(z)) if weight is None else weight / weight.sum()
    spread = float(z.std(1, correction=0) @ share)
    if spread == 0:
        return 1.0, False
    right = z.gather(1, columns[:, None]).squeeze(1)
    low, high = -math.log(spread) - _REACH, -math.log(spread) + _REACH  # of log β

    def slope(log_beta: float) -> float:
        p = torch.softmax(math.exp(log_beta) * z, 1)
        return float(((p * z).sum(1) - right) @ share)

    if slope(low) >= 0:
        return math.exp(-low), True
    if slope(high) <= 0:
        return math.exp(-high), True
    return math.exp(-root_scalar(slope, bracket=(low, high), xtol=1e-13).root), False


class TemperatureScaling(ClassifierMixin, Estimator):
    """Calibrate logits by one temperature, fitted on rows the network was not trained on.

    Logits are not features: their columns are the classes, so this is a classifier on top of a
    network. ``y`` holds column numbers; or as many names as there are columns, in sorted order, as
    scikit-learn's own decision functions have them; or one more, where the first class has logit 0
    and no column (a network with one output for two classes). ``classes`` names the columns
    otherwise.

    >>> logits = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]
    >>> head = TemperatureScaling().fit(logits, [0, 0, 1, 1])     # three of four right
    >>> head.predict_proba(logits)[0].round(3)
    array([0.75, 0.25])
    >>> TemperatureScaling().fit([[2.0], [2.0], [-2.0]], ["cat", "dog", "cat"]).predict([[3.0]])
    array(['dog'], dtype='<U3')
    """

    def __init__(self, classes: Any = None) -> None:
        self.classes = classes

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit T to logits ``X`` (n, c) and labels, each row weighed where weights are given."""
        z = rows_of(self, X, reset=True)
        labels = hard_labels_of(y, len(z), "each names a column")
        self.classes_ = self._names(labels.classes, z.shape[1])
        unknown = f"is {{}}, not one of the {len(self.classes_)} `classes` of the columns."
        columns = known_codes(y, len(z), self.classes_, unknown)
        weight = None if sample_weight is None else as_weights(sample_weight, len(z)).to(z.device)
        z = self._scores(z.double())
        self.temperature_, self.at_bound_ = fit_softmax_temperature(z, columns.to(z.device), weight)
        if self.at_bound_:
            warnings.warn(
                f"the temperature ran into its bound, T = {self.temperature_:.3g}: the labels are "
                "ranked first everywhere (training rows?) or no better than by chance. "
                "Fit on held-out rows.",
                stacklevel=2,
            )
        return self

    def predict_log_proba(self, X: Any) -> Any:
        """Log-probabilities (n, c), differentiable where the logits are a tensor."""
        check_is_fitted(self)
        rows = rows_of(self, X)  # the width must fit
        z = as_matrix(X, "logits") if isinstance(X, Tensor) else rows
        return same_kind(torch.log_softmax(self._scores(z.double()) / self.temperature_, 1), X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (n, c) in the order of ``classes_``."""
        log_p = self.predict_log_proba(X)
        return log_p.exp() if isinstance(log_p, Tensor) else np.exp(log_p)

    def predict(self, X: Any) -> Any:
        """The class of the largest logit."""
        log_p = as_tensor(self.predict_log_proba(X), "logits")
        return named(self.classes_, log_p.argmax(1), X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # it moves no border: features are not its business
        return tags

    def _names(self, given: NDArray[Any], width: int) -> NDArray[Any]:
        """The class of each column, the one without a column first."""
        if self.classes is not None:
            names = np.asarray(self.classes)
            if names.ndim != 1 or len(names) not in (width, width + 1):
                raise _misnamed(f"`classes` has shape {names.shape}", width)
            if len(np.unique(names)) != len(names):
                raise _misnamed("`classes` names one twice", width)
            return names
        if len(given) < 2:
            raise InputError(
                f"`y` holds one class only, {given[0]!r}: no temperature is best for it alone. "
                "Pass held-out rows of several classes, or `classes`."
            )
        numbers = np.arange(width)
        if given.dtype.kind in "iuf" and np.isin(given, numbers).all():
            return numbers
        if len(given) in (width, width + 1):
            return given
        raise _misnamed(f"`y` has {len(given)} different labels", width)

    def _scores(self, z: Float[Tensor, "n k"]) -> Float[Tensor, "n c"]:
        if len(self.classes_) == z.shape[1]:
            return z
        return torch.cat([torch.zeros_like(z[:, :1]), z], 1)


def _misnamed(what: str, width: int) -> InputError:
    return InputError(
        f"{what}, but the logits have n_features={width} columns, one for each class (or for each "
        "but the first). Pass `classes` with the name of each column."
    )
