"""KNNClassifier against plain loops, scikit-learn, and its own edges."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.confidence.knn import KNNClassifier


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


def test_wrong_input_is_named(cloud):
    x, y, _ = cloud
    with pytest.raises(InputError, match="`k`=61"):
        KNNClassifier(k=61).fit(x, y)
    with pytest.raises(InputError, match="Did you mean 'dudani'"):
        KNNClassifier(weights="dudan").fit(x, y)
    with pytest.raises(InputError, match="only 60 rows"):
        KNNClassifier(k=3).fit(x, y).kneighbors(x, k=100)
