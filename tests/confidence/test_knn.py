"""KNNClassifier against plain loops, scikit-learn, and its own edges."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.confidence.knn import WEIGHTS, KNNClassifier
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.neighbors.search.exact import ExactSearch


@pytest.fixture
def cloud(rng):
    y = torch.randint(0, 3, (60,), generator=rng)
    x = torch.randn(60, 3, generator=rng).double() + y[:, None]
    return x, y, torch.randn(12, 3, generator=rng).double()


@pytest.mark.parametrize("weights", ["uniform", "dudani", "gou"])
@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_the_vote_is_the_loop_on_plain_distances(cloud, weights, metric):
    x, y, queries = cloud
    knn = KNNClassifier(k=9, weights=weights, metric=metric).fit(x, y)
    plain = "cosine" if metric == "cosine" else "euclidean"
    for q, p in zip(queries, knn.predict_proba(queries), strict=True):
        near = reference.nearest_rows(q, x, 9, plain)
        assert_close(p.tolist(), reference.weighted_knn(near, y, 3, weights))


def test_the_uniform_vote_is_scikit_learns(cloud):
    x, y, queries = cloud
    theirs = KNeighborsClassifier(7).fit(x, y).predict_proba(queries)
    assert_close(KNNClassifier(k=7).fit(x, y).predict_proba(queries.numpy()), theirs)


def test_two_weighted_neighbors_are_the_nearest_one(cloud):
    x, y, queries = cloud
    one = KNNClassifier(k=1).fit(x, y).predict(queries)
    for weights in ("dudani", "gou"):
        assert_close(KNNClassifier(k=2, weights=weights).fit(x, y).predict(queries), one)


def test_equal_distances_weigh_the_same_even_at_zero():
    for weights in ("dudani", "gou"):
        knn = KNNClassifier(k=4, weights=weights).fit(np.zeros((4, 2)), [0, 0, 0, 1])
        assert_close(knn.predict_proba(np.zeros((1, 2))), np.array([[0.75, 0.25]]))


def test_ties_go_by_label_order_as_in_scikit_learn():
    knn = KNNClassifier(k=2).fit([[3.0], [-1.0]], ["b", "a"])
    assert knn.predict([[0.0], [4.0]]).tolist() == ["a", "a"]


def test_one_hot_soft_labels_vote_like_hard_ones(cloud):
    x, y, queries = cloud
    hard = KNNClassifier(k=9, weights="gou").fit(x, y).predict_proba(queries)
    assert_close(
        KNNClassifier(k=9, weights="gou").fit(x, torch.eye(3)[y]).predict_proba(queries), hard
    )


def test_leave_one_out_leaves_the_row_out(cloud):
    x, y, _ = cloud
    told = KNNClassifier(k=5).fit(x, y).loo_proba_
    for i in range(60):
        near = reference.nearest_rows(x[i], x, 5, "euclidean", without=i)
        assert_close(told[i].tolist(), reference.weighted_knn(near, y, 3, "uniform"))


def test_smoothing_adds_votes_cast_by_the_class_shares(cloud):
    x, y, queries = cloud
    plain = KNNClassifier(k=5).fit(x, y).predict_proba(queries)
    smooth = KNNClassifier(k=5, smoothing=2.0).fit(x, y).predict_proba(queries)
    shares = (torch.bincount(y).double() + 1 / 3) / 61
    for p, q in zip(plain, smooth, strict=True):
        assert_close(q, (5 * p + 2 * shares) / 7)


def test_fitted_smoothing_has_the_lowest_leave_one_out_loss_and_a_finite_one(cloud):
    x, y, _ = cloud
    strength = KNNClassifier(k=5, smoothing="fit").fit(x, y).smoothing_
    plain = KNNClassifier(k=5).fit(x, y).loo_proba_
    assert (plain[np.arange(60), y] == 0).any()

    def loss(s):
        total = 0.0
        for i in range(60):
            counts = [sum(int(y[j]) == c for j in range(60) if j != i) + 1 / 3 for c in range(3)]
            own = int(y[i])
            total -= np.log((5 * plain[i, own] + s * counts[own] / 60) / (5 + s)) / 60
        return total

    assert np.isfinite(loss(strength))
    assert loss(strength) <= min(loss(s) for s in np.geomspace(5 / 60, 500, 200)) + 1e-6


def test_the_label_that_smoothing_gives_is_the_plain_one_where_classes_are_even():
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(3)).double()
    y = torch.arange(90) % 3
    plain, smooth = (KNNClassifier(k=7, smoothing=s).fit(x, y) for s in (0.0, "fit"))
    tied = (plain.predict_proba(x).sort(1).values[:, -2:].diff(dim=1) == 0)[:, 0]
    assert plain.predict(x)[~tied].tolist() == smooth.predict(x)[~tied].tolist()


def test_rows_that_were_all_right_leave_smoothing_at_its_floor():
    x = np.r_[np.zeros(20), np.ones(20)][:, None] + np.linspace(0, 0.1, 40)[:, None]
    knn = KNNClassifier(k=5, smoothing="fit").fit(x, np.repeat([0, 1], 20))
    assert knn.smoothing_ == pytest.approx(5 / 40, rel=1e-3)
    assert np.isfinite(knn.predict_log_proba(x)).all()


def test_soft_labels_are_smoothed_like_hard_ones(cloud):
    x, y, queries = cloud
    hard = KNNClassifier(k=9, smoothing="fit").fit(x, y)
    soft = KNNClassifier(k=9, smoothing="fit").fit(x, torch.eye(3).double()[y])
    assert soft.smoothing_ == pytest.approx(hard.smoothing_)
    assert_close(soft.predict_proba(queries), hard.predict_proba(queries))


def test_wrong_input_is_named(cloud):
    x, y, _ = cloud
    with pytest.raises(InputError, match="`k`=61"):
        KNNClassifier(k=61).fit(x, y)
    with pytest.raises(InputError, match="Did you mean 'dudani'"):
        KNNClassifier(weights="dudan").fit(x, y)
    with pytest.raises(InputError, match="only 60 rows"):
        KNNClassifier(k=3).fit(x, y).kneighbors(x, k=100)
    with pytest.raises(InputError, match="`smoothing` must be"):
        KNNClassifier(k=3, smoothing=-1.0).fit(x, y)


def test_rows_in_parts_are_the_rows_at_once(rng):
    x, y = torch.randn(40, 3, generator=rng).numpy(), np.arange(40) % 4
    parts = KNNClassifier(k=3, smoothing="fit")
    for rows in (slice(0, 15), slice(15, 16), slice(16, 40)):
        parts.partial_fit(x[rows], y[rows], classes=range(4))
    whole = KNNClassifier(k=3, smoothing="fit").fit(x, y)
    np.testing.assert_allclose(parts.predict_proba(x), whole.predict_proba(x), atol=1e-6)
    with pytest.raises(InputError, match="does not announce"):
        parts.partial_fit(x[:2], [0, 9], classes=range(4))


def heads(k):
    return [*(KNNClassifier(k, weights) for weights in WEIGHTS), NEDClassifier(k)]


def test_one_search_serves_every_k_vote_and_head(cloud, monkeypatch):
    x, y, queries = cloud
    alone = {k: [head.fit(x, y).predict_proba(queries) for head in heads(k)] for k in (20, 30, 40)}
    deepest = NEDClassifier(k=40).fit(x, y)
    near = deepest.neighborhood_of(queries)
    monkeypatch.setattr(ExactSearch, "query", None)  # whoever searches again, fails
    for k, expected in alone.items():
        for head, p in zip(heads(k), expected, strict=True):
            found = head.fit_support(deepest.support_).log_probs_of(near.first(k)).exp()
            assert_close(found, p, atol=1e-9, rtol=1e-7)


def test_a_support_of_another_metric_is_refused(cloud):
    searched = KNNClassifier(3, metric="cosine").fit(*cloud[:2])
    with pytest.raises(InputError, match=r"searched by 'cosine', but `metric` is 'sqeuclidean'"):
        KNNClassifier(3).fit_support(searched.support_)
