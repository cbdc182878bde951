"""A rival that no neighbor explains: an RBF-SVC with calibrated confidence."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

from vicinal.checks import InputError
from vicinal.confidence.softmax import TemperatureScaling


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
