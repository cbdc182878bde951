"""Triplet loss: every triplet in a loop, both averages, the three minings, PML as an oracle."""

import pytest
import torch
from pytorch_metric_learning import distances, reducers
from pytorch_metric_learning import losses as pml
from torch.testing import assert_close

from reference import triplets
from vicinal.checks import InputError
from vicinal.losses import TripletLoss, log_partition, triplet_loss

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 7])
MININGS = pytest.mark.parametrize("mining", ["all", "hard", "semihard"])


@pytest.fixture
def x(rng):
    return torch.randn(9, 2, generator=rng, dtype=torch.float64)


def averages(hinges, average):
    """Mean over all triplets, and each anchor's own."""
    kept = [[h for h in anchor if h > 0 or average == "valid"] for anchor in hinges]
    total = [h for anchor in kept for h in anchor]
    return sum(total) / max(len(total), 1), [sum(a) / max(len(a), 1) for a in kept]


@MININGS
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("average", ["active", "valid"])
def test_the_loss_is_the_mean_hinge_of_its_triplets(mining, metric, average, x):
    hinges = triplets(x, LABELS, 0.3, metric, mining)
    mean, rows = averages(hinges, average)
    options = {"margin": 0.3, "metric": metric, "mining": mining, "average": average}
    assert_close(triplet_loss(x, LABELS, **options), torch.tensor(mean, dtype=torch.float64))
    per_anchor = triplet_loss(x, LABELS, **options, reduction="none")
    assert_close(per_anchor, torch.tensor(rows, dtype=torch.float64))
    total = triplet_loss(x, LABELS, **options, reduction="sum")
    assert_close(total, torch.tensor(sum(map(sum, hinges)), dtype=torch.float64))


@MININGS
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_are_exact(mining, metric, reduction, x):
    assert torch.autograd.gradcheck(
        lambda x: triplet_loss(x, LABELS, mining=mining, metric=metric, reduction=reduction),
        x.requires_grad_(),
    )


@MININGS
def test_blocks_change_neither_value_nor_gradient(mining, x, monkeypatch):
    x.requires_grad_()
    whole = triplet_loss(x, LABELS, mining=mining)
    monkeypatch.setattr(log_partition, "BLOCK", 18)
    parts = triplet_loss(x, LABELS, mining=mining)
    assert_close(parts, whole)
    assert_close(*(torch.autograd.grad(v, x)[0] for v in (parts, whole)))


def test_pytorch_metric_learning_agrees_on_both_averages(x):
    distance = distances.LpDistance(normalize_embeddings=False)
    for average, reducer in (
        ("active", reducers.AvgNonZeroReducer()),
        ("valid", reducers.MeanReducer()),
    ):
        theirs = pml.TripletMarginLoss(margin=0.3, distance=distance, reducer=reducer)
        assert_close(triplet_loss(x, LABELS, margin=0.3, average=average), theirs(x, LABELS))


def test_without_fallback_a_positive_beyond_all_negatives_is_left_out():
    x = torch.tensor([[0.0], [10.0], [1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    for fallback in (True, False):
        hinges = triplets(x, labels, 0.2, "euclidean", "semihard", fallback)
        found = triplet_loss(x, labels, mining="semihard", fallback=fallback, reduction="sum")
        assert_close(found, torch.tensor(sum(map(sum, hinges)), dtype=torch.float64))


def test_a_triplet_at_exactly_zero_is_not_active():
    x = torch.tensor([[0.0], [1.0], [2.0]])  # d(0,1) - d(0,2) + 1 = 0, d(1,0) - d(1,2) + 1 = 1
    assert triplet_loss(x, torch.tensor([0, 0, 1]), margin=1.0) == 1.0


def test_many_equal_distances_are_counted_right(rng):
    x = torch.randint(0, 3, (12, 2), generator=rng).double()
    labels = torch.randint(0, 3, (12,), generator=rng)
    for average in ("active", "valid"):
        mean, _ = averages(triplets(x, labels, 1.0), average)
        found = triplet_loss(x, labels, margin=1.0, average=average)
        assert_close(found, torch.tensor(mean, dtype=torch.float64))


@MININGS
def test_one_class_has_no_triplet(mining, x):
    x.requires_grad_()
    loss = triplet_loss(x, torch.zeros(9, dtype=torch.long), mining=mining)
    loss.backward()
    assert loss == 0
    assert_close(x.grad, torch.zeros_like(x))


def test_float32_sums_of_many_near_equal_distances_keep_their_digits(rng):
    x = torch.randn(300, 64, generator=rng)
    labels = torch.arange(300) % 3
    exact = triplet_loss(x.double(), labels, average="valid")
    assert_close(triplet_loss(x, labels, average="valid").double(), exact, rtol=1e-6, atol=0)


def test_the_module_is_the_function(x):
    assert_close(TripletLoss()(x, LABELS), triplet_loss(x, LABELS))
    module = TripletLoss(mining="hard", average="valid", margin=1.0)
    assert_close(
        module(x, LABELS), triplet_loss(x, LABELS, mining="hard", average="valid", margin=1.0)
    )


def test_wrong_input_is_named(x):
    for change, sentence in (
        ({"margin": 0.0}, "`margin` must be"),
        ({"margin": -1.0}, "`margin` must be"),
        ({"mining": "semi-hard"}, "Did you mean 'semihard'"),
        ({"average": "all"}, "`average` must be"),
    ):
        with pytest.raises(InputError, match=sentence):
            triplet_loss(x, LABELS, **change)
    with pytest.raises(InputError, match="integer labels"):
        triplet_loss(x, torch.eye(9))
    with pytest.raises(InputError, match="one label for each of the 9 rows"):
        triplet_loss(x, LABELS[:4])
