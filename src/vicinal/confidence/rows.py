"""The rows an estimator is given: numpy, torch, lists or data frames.

scikit-learn's own checks run on everything but tensors, so its conventions hold (feature names,
column counts, sparse and complex input refused); the sentence about NaN rows is this library's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.utils.validation import validate_data
from torch import Tensor

from vicinal.checks import InputError, as_matrix


def rows_of(estimator: Any, X: Any, *, reset: bool = False) -> Float[Tensor, "n d"]:
    """``X`` as finite rows of the estimator's width (``reset``: the width is learned here)."""
    if not isinstance(X, Tensor):
        X = validate_data(
            estimator, X, reset=reset, ensure_all_finite=False, dtype=[np.float64, np.float32]
        )
        return as_matrix(X, "X")
    x = as_matrix(X.detach(), "X")
    if reset:
        estimator.n_features_in_ = x.shape[1]
    elif x.shape[1] != estimator.n_features_in_:
        raise InputError(
            f"X has {x.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input. "
            "They must come from the same model and layer."
        )
    return x
