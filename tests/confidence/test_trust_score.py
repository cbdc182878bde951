import math

import numpy as np
import pytest
import torch

import reference
from vicinal.checks import InputError
from vicinal.confidence import TrustScore


@pytest.fixture
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    return rng.normal(size=(60, 4)) + y[:, None], y


@pytest.mark.parametrize("k", [1, 3])
def test_trust_is_the_ratio_of_class_distances(blobs, k):
    x, y = blobs
    query, guess = x[:10] + 0.1, (y[:10] + 1) % 3
    got = TrustScore(k=k).fit(x, y).score(query, guess)
    want = [reference.trust_score(q, g, x, y, k) for q, g in zip(query, guess, strict=True)]
    np.testing.assert_allclose(got, want)


def test_trust_above_one_means_the_predicted_class_is_the_nearest(blobs):
    x, y = blobs
    head = TrustScore().fit(x, y)
    query = x + 0.3
    assert (head.score(query, head.predict(query)) >= 1).all()


def test_labels_may_be_any_names_and_torch_gives_torch(blobs):
    x, y = blobs
    plain = TrustScore().fit(x, y).score(x + 0.1, y)
    named = (
        TrustScore()
        .fit(x, np.array(["a", "b", "z"])[y])
        .score(x + 0.1, np.array(["a", "b", "z"])[y])
    )
    np.testing.assert_array_equal(plain, named)
    got = TrustScore().fit(torch.tensor(x), torch.tensor(y)).score(torch.tensor(x) + 0.1, y)
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got, plain)


def test_at_distance_zero_two_classes_say_nothing_and_one_says_all():
    head = TrustScore().fit([[0.0], [0.0], [5.0]], [0, 1, 1])
    assert head.score([[0.0], [0.0]], [0, 1]).tolist() == [1, 1]
    assert head.score([[5.0], [5.0]], [1, 0]).tolist() == [math.inf, 0]


def test_a_class_of_one_row_is_fine_and_a_k_beyond_it_is_refused_by_name():
    x, y = [[0.0], [1.0], [2.0]], [0, 0, 1]
    assert TrustScore().fit(x, y).score([[0.5]], [0])[0] == 3
    with pytest.raises(InputError, match="class 1 has only 1"):
        TrustScore(k=2).fit(x, y)


def test_the_density_filter_drops_the_rows_whose_own_class_is_farthest(blobs):
    x, y = blobs
    head = TrustScore(alpha=0.2, density_k=3).fit(x, y)
    for c in range(3):
        mine = np.flatnonzero(y == c)
        radius = [
            sorted(reference.distance(x[i], x[j], "euclidean") for j in mine if j != i)[2]
            for i in mine
        ]
        dropped = mine[np.argsort(radius)[math.ceil(0.8 * len(mine)) :]]
        assert set(mine[~head.kept_[mine]]) == set(dropped)
    stray = np.vstack([x, [[50.0] * 4]]), np.append(y, 0)
    near_stray = [[49.0] * 4]
    assert TrustScore().fit(*stray).score(near_stray, [0]) > 1
    assert TrustScore(alpha=0.1, density_k=3).fit(*stray).score(near_stray, [0]) < 1


def test_a_filter_that_needs_more_rows_than_a_class_has_is_refused(blobs):
    x, y = blobs
    with pytest.raises(InputError, match="density_k"):
        TrustScore(alpha=0.1, density_k=59).fit(x, y)


def test_an_unknown_prediction_and_a_single_class_are_refused(blobs):
    x, y = blobs
    with pytest.raises(InputError, match="row 0 predicts"):
        TrustScore().fit(x, y).score(x, np.full(60, 7))
    with pytest.raises(InputError, match="one class"):
        TrustScore().fit(x, np.zeros(60, int)).score(x, np.zeros(60, int))
