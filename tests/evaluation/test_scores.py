import copy
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

import reference
from vicinal.checks import InputError
from vicinal.evaluation import brier_score, negative_log_likelihood


@pytest.fixture
def rows():
    gen = np.random.default_rng(0)
    p = gen.dirichlet(np.ones(4), 80)
    return p, gen.integers(0, 4, 80)


def test_nll_is_the_mean_surprise_and_scikit_learn_agrees_on_positive_probabilities(rows):
    p, y = rows
    want, infinite = reference.log_loss(p, y)
    got = negative_log_likelihood(p, y)
    assert got == pytest.approx(want, rel=1e-12)
    assert (got.infinite, got.rows) == (infinite, 80) == (0, 80)
    assert got == pytest.approx(log_loss(y, p))
    assert negative_log_likelihood(np.log(p), y, log_probabilities=True) == pytest.approx(want)


def test_a_class_without_mass_makes_the_nll_infinite_and_is_counted(rows):
    # scikit-learn clips such a row to 36: a number that depends on the float kind
    p, y = rows
    p[:3] = 0
    p[np.arange(3), (y[:3] + 1) % 4] = 1
    got = negative_log_likelihood(p, y)
    want, infinite = reference.log_loss(p, y)
    assert math.isinf(got)
    assert (
        (got.infinite, got.finite_mean) == (infinite, pytest.approx(want)) == (3, got.finite_mean)
    )
    assert copy.deepcopy(got).infinite == 3


def test_soft_labels_weigh_the_surprises_and_one_hot_rows_are_hard_labels(rows):
    p, y = rows
    soft = np.random.default_rng(1).dirichlet(np.ones(4), 80)
    want = sum(
        -s * math.log(q) for a, b in zip(soft, p, strict=True) for s, q in zip(a, b, strict=True)
    )
    assert negative_log_likelihood(p, soft) == pytest.approx(want / 80)
    one_hot = np.eye(4)[y]
    assert negative_log_likelihood(p, one_hot) == negative_log_likelihood(p, y)
    assert brier_score(p, one_hot) == brier_score(p, y)


def test_soft_labels_forgive_zero_probability_where_they_ask_for_nothing():
    assert negative_log_likelihood([[1.0, 0.0]], [[1.0, 0.0]]) == 0
    assert negative_log_likelihood([[1.0, 0.0]], [[0.5, 0.5]]).infinite == 1


def test_brier_is_the_squared_distance_to_the_label(rows):
    p, y = rows
    assert brier_score(p, y) == pytest.approx(reference.brier(p, y))
    assert brier_score(torch.tensor(p), torch.tensor(y)) == brier_score(p, y)
    binary = p[:, 0]
    assert brier_score(binary, y == 0) == pytest.approx(brier_score_loss(y == 0, binary))


@pytest.mark.parametrize("metric", [negative_log_likelihood, brier_score])
@pytest.mark.parametrize(
    ("p", "y", "says"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), "at least one row"),
        (np.array([[0.5, 0.5], [0.5, np.nan]]), np.array([0, 1]), "rows 1"),
        (np.array([[0.5, 0.4]]), np.array([0]), "sum to 1"),
        (np.array([[0.5, 0.5]]), np.array([0, 1]), "same number of rows"),
        (np.array([[0.5, 0.5]]), np.array([3]), "columns 0..1"),
        (np.array([[0.5, 0.5]]), np.array([[0.5, 0.25, 0.25]]), "3 columns"),
    ],
)
def test_wrong_input_is_named(metric, p, y, says):
    with pytest.raises(InputError, match=says):
        metric(p, y)
