"""Every metric is the same to the last bit for every order of its rows, ties and all."""

import dataclasses

import numpy as np
import pytest
import torch

from vicinal import evaluation as ev

N = 230  # beyond one vector register and one block of every reduction, and no multiple of either


def votes(rng):
    """kNN votes: many ties, many exact ones."""
    c = rng.binomial(10, rng.beta(4, 1, N)) / 10
    return [c, rng.random(N) < c]


def smooth(rng):
    c = rng.random(N)
    return [c, rng.random(N) < c**2]


def singles(rng):
    return [part.astype(np.float32) if part.dtype == float else part for part in smooth(rng)]


def classes(rng):
    p = rng.dirichlet(np.full(4, 0.3), N)
    return [p, rng.integers(0, 4, N)]


def soft(rng):
    return [rng.dirichlet(np.full(4, 0.3), N), rng.dirichlet(np.ones(4), N)]


def tables(rng):
    return [rng.integers(0, 3, N), rng.integers(0, 3, N), smooth(rng)[0]]


def ranks(rng):
    return [np.stack([rng.permutation(40) for _ in range(N)]), rng.integers(0, 4, N)]


def rows(rng):
    return [rng.normal(size=(N, 5)), rng.integers(0, 3, N)]


SUPPORT = np.random.default_rng(9).integers(0, 4, 40)
METRICS = {
    "ece": (ev.expected_calibration_error, [votes, smooth, singles, classes]),
    "ece, equal mass": (
        lambda c, y: ev.expected_calibration_error(c, y, scheme="mass"),
        [votes, smooth, singles, classes],
    ),
    "ece, classwise": (
        lambda p, y: ev.expected_calibration_error(p, y, mode="classwise"),
        [classes],
    ),
    "mce": (ev.maximum_calibration_error, [votes, smooth]),
    "reliability": (ev.reliability, [votes, smooth, singles]),
    "reliability, equal mass": (lambda c, y: ev.reliability(c, y, scheme="mass"), [votes, smooth]),
    "noise floor": (lambda c, _: ev.noise_floor(c), [votes, smooth, singles]),
    "noise floor, classwise": (lambda p, _: ev.noise_floor(p, mode="classwise"), [classes]),
    "bootstrap": (lambda c, y: ev.bootstrap_interval(c, y, resamples=20), [votes, smooth]),
    "nll": (ev.negative_log_likelihood, [classes, soft]),
    "nll, finite rows": (lambda p, y: ev.negative_log_likelihood(p, y).finite_mean, [classes]),
    "brier": (ev.brier_score, [votes, smooth, classes, soft]),
    "risk coverage": (ev.risk_coverage, [votes, smooth, singles]),
    "aurc": (ev.area_under_risk_coverage, [votes, smooth]),
    "augrc": (ev.area_under_generalized_risk_coverage, [votes, smooth]),
    "threshold": (lambda c, y: ev.threshold_for_accuracy(c, y, 0.6), [votes, smooth]),
    "class table": (ev.class_table, [tables]),
    "auroc": (lambda c, y: ev.auroc(c[~y], c[y]), [votes, smooth]),
    "aupr": (lambda c, y: ev.aupr(c[~y], c[y]), [votes, smooth]),
    "aupr, inliers": (lambda c, y: ev.aupr(c[~y], c[y], positive="inlier"), [votes, smooth]),
    "fpr": (lambda c, y: ev.fpr_at_tpr(c[~y], c[y]), [votes, smooth]),
    "recall": (lambda i, y: ev.recall_at_k(i, y, SUPPORT, k=2), [ranks]),
    "map@r": (lambda i, y: ev.map_at_r(i, y, SUPPORT), [ranks]),
    "r-precision": (lambda i, y: ev.r_precision(i, y, SUPPORT), [ranks]),
    "mrr": (lambda i, y: ev.mean_reciprocal_rank(i, y, SUPPORT), [ranks]),
    "entanglement": (ev.entanglement, [rows]),
}


def bits(value):
    """The bytes of a result, record by record: 0.0 and -0.0, or two NaNs, are told apart."""
    if dataclasses.is_dataclass(value):
        return [bits(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [bits(part) for part in value]
    if isinstance(value, str):
        return value
    return np.asarray(value).tobytes()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        pytest.param(n, make, id=f"{n}-{make.__name__}")
        for n, (_, data) in METRICS.items()
        for make in data
    ],
)
def test_no_order_of_the_rows_changes_a_bit(name, make):
    metric = METRICS[name][0]
    rng = np.random.default_rng(0)
    data = make(rng)
    want = bits(metric(*data))
    for _ in range(8):
        order = rng.permutation(N)
        assert bits(metric(*(part[order] for part in data))) == want
    assert bits(metric(*(torch.from_numpy(part) for part in data))) == want  # nor does the kind


def test_scores_of_rows_move_with_their_rows_and_ignore_the_order_of_the_support():
    rng = np.random.default_rng(0)
    x, y = rows(rng)
    query = rng.normal(size=(70, 5)).astype(np.float32)
    x = x.astype(np.float32)
    want = ev.outlier_scores(x, query, labels=y, logits=query, k=9)
    for _ in range(5):
        a, b = rng.permutation(N), rng.permutation(70)
        got = ev.outlier_scores(x[a], query[b], labels=y[a], logits=query[b], k=9)
        for name, score in want.items():
            assert got[name].tobytes() == score[b].tobytes(), name
