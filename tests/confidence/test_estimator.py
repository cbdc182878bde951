"""A fitted estimator says what is inside, an unfitted one its parameters."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from vicinal.confidence import (
    ConformalSets,
    DeepKNN,
    KNNClassifier,
    LinearClassifier,
    NEDClassifier,
    NEDLinear,
    TemperatureScaling,
    TrustScore,
)
from vicinal.confidence.head import TrustHead
from vicinal.confidence.made_from import MadeFrom

Y = np.arange(60) % 3
X = (np.random.default_rng(0).normal(size=(60, 4)) + Y[:, None]).astype(np.float32)
LAYERS = {"one": torch.from_numpy(X), "two": torch.from_numpy(X)}


@pytest.mark.parametrize(
    ("estimator", "rows", "inside"),
    [
        (NEDClassifier(k=5), X, "60 support rows, 4 columns, 3 classes, raw space, T="),
        (KNNClassifier(k=5), X, "60 support rows, 4 columns, 3 classes"),
        (LinearClassifier(), X, "4 columns, 3 classes, T="),
        (NEDLinear(NEDClassifier(k=5)), X, "4 columns, 3 classes, weights "),
        (TrustScore(), X, "4 columns, 3 classes"),
        (DeepKNN(k=5), LAYERS, "3 classes, layers one, two"),
        (TemperatureScaling(), X[:, :3], "3 columns, 3 classes, T="),
    ],
)
def test_repr_goes_on_with_what_was_learned(estimator, rows, inside):
    plain = repr(estimator)
    assert ": " not in plain
    assert repr(estimator.fit(rows, Y)).startswith(f"{plain}: {inside}")
    assert repr(clone(estimator)) == plain


def test_conformal_sets_tell_how_many_rows_calibrated_them():
    sets = ConformalSets(KNNClassifier(k=5).fit(X[:40], Y[:40]))
    assert repr(sets.calibrate(X[40:], Y[40:])).endswith(": 3 classes, 20 calibration rows")


def test_tables_of_predictions_name_the_classes_whatever_the_rows_came_as():
    ned = NEDClassifier(k=5).fit(X, Y)
    head = TrustHead(ned, TrustHead.of(ned).standards, MadeFrom(names={"2": "cat"}))
    for judged in (ned.judge, head.predict):
        assert repr(judged(torch.from_numpy(X[:3]))) == repr(judged(X[:3]))
    assert [line.split()[0] for line in repr(head.predict(X[:3])).splitlines()[1:]] == [
        *(["0", "1", "cat"][label] for label in head.predict(X[:3]).label),
        "3",
    ]
