"""What the estimators share: once fitted, their ``repr`` says what is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.base import BaseEstimator

INSIDE: dict[str, Callable[[Any], str]] = {  # attribute of a fitted estimator -> in words
    "support_": lambda rows: f"{len(rows):,} support rows",
    "n_features_in_": lambda width: f"{width:,} columns",
    "classes_": lambda classes: f"{len(classes):,} classes",
    "layers_": lambda names: f"layers {', '.join(names)}",
    "rows_": lambda counts: f"{int(counts.sum()):,} calibration rows",
    "space_": lambda space: f"{space.name} space",
    "temperature_": lambda t: f"T={t:.4g}",
    "blend_": lambda parts: f"weights {parts.neighbors:.2f} and {parts.linear:.2f} (linear)",
}


class Estimator(BaseEstimator):
    """scikit-learn's base; after the parameters ``repr`` tells what a fit has made of them."""

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        found = [(getattr(self, name, None), words) for name, words in INSIDE.items()]
        inside = [words(value) for value, words in found if value is not None]
        plain = super().__repr__(N_CHAR_MAX)
        return f"{plain}: {', '.join(inside)}" if inside else plain
