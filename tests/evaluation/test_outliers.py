import math

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import average_precision_score, roc_auc_score

import reference
from vicinal.checks import InputError
from vicinal.confidence import TrustScore
from vicinal.evaluation import aupr, auroc, fpr_at_tpr, outlier_report, outlier_scores
from vicinal.evaluation.outliers import mahalanobis_distance, ned_log_density
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.search import ExactSearch


def scores(seed, ties):
    """Distances of 15 to 40: a sigmoid would flatten them all to 1."""
    rng = np.random.default_rng(seed)
    low, high = rng.normal(22, 4, 60), rng.normal(28, 4, 45)
    return (low.round(), high.round()) if ties else (low, high)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_the_share_of_pairs_in_order_and_scikit_learn_agrees(ties):
    # torchmetrics squashes scores outside [0, 1] by a sigmoid first, so it is no witness here.
    low, high = scores(0, ties)
    assert auroc(low, high) == pytest.approx(reference.area_under_roc(low, high), rel=1e-14)
    labels = np.r_[np.zeros(60), np.ones(45)]
    assert auroc(low, high) == pytest.approx(roc_auc_score(labels, np.r_[low, high]))


@pytest.mark.parametrize("ties", [False, True])
def test_aupr_of_both_sides_agrees_with_scikit_learn(ties):
    low, high = scores(1, ties)
    out, both = np.r_[np.zeros(60), np.ones(45)], np.r_[low, high]
    assert aupr(low, high) == pytest.approx(average_precision_score(out, both))
    assert aupr(low, high, positive="inlier") == pytest.approx(
        average_precision_score(1 - out, -both)
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("tpr", [0.07, 0.5, 0.8, 0.95, 1.0])
def test_fpr_at_tpr_is_the_least_false_alarm_that_keeps_the_named_side(ties, tpr):
    low, high = scores(2, ties)
    want = reference.false_positive_rate(low, high, tpr)
    assert fpr_at_tpr(low, high, tpr) == pytest.approx(want)
    want = reference.false_positive_rate(-high, -low, tpr)
    assert fpr_at_tpr(low, high, tpr, positive="inlier") == pytest.approx(want)


def test_the_two_readings_of_fpr_differ_so_the_side_is_named():
    report = outlier_report([0.0] * 9 + [5.0], [4.0, 6.0], tpr=0.9)
    assert (report.fpr, report.positive) == (0.1, "outlier")
    assert fpr_at_tpr([0.0] * 9 + [5.0], [4.0, 6.0], 0.9, positive="inlier") == 0


def test_infinite_scores_have_a_rank_and_nan_has_none():
    assert auroc([0.0, -math.inf], [math.inf]) == 1
    assert auroc([math.inf], [math.inf]) == 0.5
    with pytest.raises(InputError, match="NaN in row 1"):
        auroc([0.0], [1.0, math.nan])
    with pytest.raises(InputError, match="inliers"):
        auroc([], [1.0])
    with pytest.raises(InputError, match="tpr"):
        fpr_at_tpr([0.0], [1.0], 0.0)


def test_equal_scores_everywhere_tell_nothing():
    report = outlier_report([1.0] * 6, [1.0] * 3)
    assert (report.auroc, report.fpr) == (0.5, 1.0)
    assert report.aupr_outlier == pytest.approx(1 / 3)


@pytest.fixture
def space():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = rng.normal(size=(90, 4)) @ np.diag([1, 2, 0.5, 1]) + 4 * np.eye(3, 4)[y]
    return x, y, np.r_[x[:5] + 0.1, rng.normal(size=(5, 4)) * 20]


def test_every_score_follows_from_its_formula(space):
    x, y, query = space
    logits = query[:, :3]
    got = outlier_scores(x, query, labels=y, logits=logits, k=7, temperature=2.0)
    fitted = {"mahalanobis", "relative_mahalanobis", "vim", "trust_score"}
    assert set(got) == {"knn", "ned", "max_softmax", "energy", *fitted}
    for i, q in enumerate(query):
        near = sorted(reference.distance(q, s) for s in x)[:7]
        assert got["knn"][i] == pytest.approx(near[-1])
        density = reference.log_sum_exp(-d / 2.0 for d in near) - math.log(90)
        assert got["ned"][i] == pytest.approx(-density)
        mass = reference.log_sum_exp(logits[i])
        assert got["energy"][i] == pytest.approx(-mass)
        assert got["max_softmax"][i] == pytest.approx(-math.exp(max(logits[i]) - mass))


def test_mahalanobis_agrees_with_scikit_learns_pooled_covariance(space):
    x, y, query = space
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    pooled = EmpiricalCovariance(assume_centered=True).fit(x - means[y])
    want = np.min([pooled.mahalanobis(query - mean) for mean in means], 0)
    np.testing.assert_allclose(mahalanobis_distance(x, y, query), want, rtol=1e-8)


def test_mahalanobis_leaves_out_directions_that_do_not_vary(space):
    x, y, query = space
    wide = np.c_[x, np.full(90, 7.0)], np.c_[query, np.full(10, 7.0)]
    np.testing.assert_allclose(
        mahalanobis_distance(wide[0], y, wide[1]), mahalanobis_distance(x, y, query), rtol=1e-6
    )
    with pytest.raises(InputError, match="does not vary"):
        mahalanobis_distance(np.eye(3), [0, 1, 2], np.eye(3))


def test_the_trust_score_is_that_of_the_class_in_confidence_and_larger_is_stranger(space):
    x, y, query = space
    trust = TrustScore(metric="sqeuclidean").fit(x, y)
    got = outlier_scores(x, query, labels=y, k=5)["trust_score"]
    np.testing.assert_allclose(got, -trust.score(query, trust.predict(query)))
    assert "trust_score" not in outlier_scores(x, query, labels=np.zeros(90, dtype=int), k=5)


def test_a_given_space_adds_the_distance_among_mapped_rows(space):
    x, _, query = space
    got = outlier_scores(x, query, k=5, space=unit_rows)["knn_space"]
    unit = [row / np.linalg.norm(row) for row in x]
    for q, score in zip(query, got, strict=True):
        near = sorted(reference.distance(q / np.linalg.norm(q), s) for s in unit)
        assert score == pytest.approx(near[4])


@pytest.mark.parametrize("name", ["knn", "ned", "mahalanobis"])
def test_what_is_far_scores_higher_and_the_temperature_can_come_from_the_labels(space, name):
    x, y, query = space
    got = outlier_scores(x, query, labels=y, k=5)[name]
    assert auroc(got[:5], got[5:]) == 1


def test_a_density_far_away_underflows_to_no_infinity():
    far = ned_log_density(torch.tensor([[1e6]]), 1e-3, 10)
    assert float(far) == pytest.approx(-1e9 - math.log(10))


def test_torch_gives_torch_and_a_built_search_is_used_as_it_is(space):
    x, _, query = space
    search = ExactSearch().build(torch.tensor(x))
    got = outlier_scores(torch.tensor(x), torch.tensor(query), k=5, search=search)
    assert isinstance(got["knn"], torch.Tensor)
    assert set(got) == {"knn"}
    np.testing.assert_array_equal(got["knn"], outlier_scores(x, query, k=5)["knn"])


def test_a_k_beyond_the_support_and_other_dimensions_are_refused(space):
    x, _, query = space
    with pytest.raises(InputError, match="k"):
        outlier_scores(x, query, k=91)
    with pytest.raises(InputError, match="dimensions"):
        outlier_scores(x, query[:, :2])
