"""Supervised contrastive and NT-Xent: the sums in plain loops, PML where it is right, edges."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml
from torch.testing import assert_close

from reference import nt_xent_rows, supervised_contrastive_rows
from vicinal import losses
from vicinal.checks import InputError
from vicinal.losses import log_partition

PAIRS = {
    "supervised_contrastive": (losses.supervised_contrastive_loss, supervised_contrastive_rows),
    "nt_xent": (losses.nt_xent_loss, nt_xent_rows),
}
BOTH = pytest.mark.parametrize("name", PAIRS)
METRICS = pytest.mark.parametrize("metric", ["cosine", "sqeuclidean", "euclidean"])


@pytest.fixture
def x(rng):
    return torch.randn(8, 3, generator=rng, dtype=torch.float64)


LABELS = torch.tensor([5, 5, -1, -1, -1, 9, 5, 7])  # any integers; 9 and 7 are alone


@BOTH
@METRICS
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_loss_is_its_sum_over_pairs(name, metric, kind, x, rng):
    call, loop = PAIRS[name]
    soft = torch.rand(8, 3, generator=rng, dtype=torch.float64).softmax(1)
    labels = LABELS if kind == "hard" else soft
    expected = loop(x, labels, temperature=0.5, metric=metric)
    found = call(x, labels, temperature=0.5, metric=metric, reduction="none")
    assert_close(found, torch.tensor([v or 0.0 for v in expected], dtype=torch.float64))
    mean = call(x, labels, temperature=0.5, metric=metric)
    known = [v for v in expected if v is not None]
    assert_close(mean, torch.tensor(sum(known) / len(known), dtype=torch.float64))


@BOTH
@METRICS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_are_exact_for_every_metric_and_reduction(name, metric, reduction, x):
    call = PAIRS[name][0]
    reference = x.flip(0)[:5] + 0.3
    temperature = torch.tensor(0.6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, t: call(x, LABELS, temperature=t, metric=metric, reduction=reduction),
        (x.requires_grad_(), temperature.requires_grad_()),
    )
    assert torch.autograd.gradcheck(
        lambda x, r: call(
            x, LABELS, temperature=0.6, metric=metric, reduction=reduction,
            reference=r, reference_labels=LABELS[:5],
        ),
        (x, reference.requires_grad_()),
    )  # fmt: skip


@BOTH
@METRICS
def test_blocks_change_neither_value_nor_gradient(name, metric, x, monkeypatch):
    call = PAIRS[name][0]
    x.requires_grad_()
    whole = call(x, LABELS, metric=metric)
    monkeypatch.setattr(log_partition, "BLOCK", 24)
    parts = call(x, LABELS, metric=metric)
    assert_close(parts, whole)
    assert_close(*(torch.autograd.grad(v, x)[0] for v in (parts, whole)))


@BOTH
def test_one_hot_soft_labels_are_hard_labels(name, x):
    call = PAIRS[name][0]
    hard = torch.arange(8) % 3
    assert_close(call(x, F.one_hot(hard, 3).double()), call(x, hard))


@BOTH
def test_pytorch_metric_learning_agrees_where_classes_have_equal_size(name, x):
    theirs = {"supervised_contrastive": pml.SupConLoss, "nt_xent": pml.NTXentLoss}[name]
    labels = torch.arange(4).repeat(2)
    expected = theirs(temperature=0.3)(x, labels)
    assert_close(PAIRS[name][0](x, labels, temperature=0.3), expected)


@BOTH
def test_scaling_rows_does_not_change_a_cosine_loss(name, x):
    call = PAIRS[name][0]
    scale = torch.linspace(0.1, 1e4, 8, dtype=torch.float64)[:, None]
    assert_close(call(x * scale, LABELS), call(x, LABELS))


@BOTH
def test_moving_all_points_does_not_change_a_distance_loss(name, x):
    call = PAIRS[name][0]
    moved = (x + 1000).float()
    assert_close(
        call(moved, LABELS, metric="sqeuclidean", temperature=1.0),
        call(moved.double(), LABELS, metric="sqeuclidean", temperature=1.0).float(),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


@BOTH
def test_scaling_points_and_temperature_together_changes_nothing(name, x):
    call = PAIRS[name][0]
    assert_close(
        call(3 * x, LABELS, metric="sqeuclidean", temperature=9.0),
        call(x, LABELS, metric="sqeuclidean", temperature=1.0),
    )


def test_with_two_views_of_each_instance_both_losses_are_one(x):
    labels = torch.arange(4).repeat(2)
    assert_close(losses.nt_xent_loss(x, labels), losses.supervised_contrastive_loss(x, labels))


def test_nt_xent_of_one_class_is_exactly_zero(x):
    x.requires_grad_()
    loss = losses.nt_xent_loss(x, torch.zeros(8, dtype=torch.long))
    loss.backward()
    assert loss == 0
    assert_close(x.grad, torch.zeros_like(x))


@BOTH
def test_far_points_at_a_small_temperature_stay_exact(name):
    x = torch.tensor([[0.0], [100.0], [1.0], [101.0]])
    labels = torch.tensor([0, 0, 1, 1])
    call, loop = PAIRS[name]
    found = call(x, labels, metric="sqeuclidean", temperature=0.01)
    expected = loop(x.double(), labels, 0.01, "sqeuclidean")
    assert_close(found.double(), torch.tensor(sum(expected) / 4).double(), rtol=1e-5, atol=0)


@BOTH
def test_the_module_is_the_function(name, x):
    module = {"supervised_contrastive": losses.SupervisedContrastiveLoss,
              "nt_xent": losses.NTXentLoss}[name]  # fmt: skip
    assert_close(module()(x, LABELS), PAIRS[name][0](x, LABELS))
    compared = {"reference": x, "reference_labels": LABELS}
    assert_close(
        module(temperature=0.7)(x, LABELS, **compared),
        PAIRS[name][0](x, LABELS, temperature=0.7, **compared),
    )


@BOTH
def test_wrong_input_is_named(name, x):
    call = PAIRS[name][0]
    for change, sentence in (
        ({"temperature": 0.0}, "`temperature` must be"),
        ({"metric": "cosin"}, "Did you mean 'cosine'"),
        ({"reference": x}, "go together"),
        ({"reference": x[:, :2], "reference_labels": LABELS}, "3 dimensions but `reference` has 2"),
        ({"reference": x, "reference_labels": torch.ones(8, 1)}, "of one kind"),
    ):
        with pytest.raises(InputError, match=sentence):
            call(x, LABELS, **change)
    with pytest.raises(InputError, match="sum to 1"):
        call(x, torch.full((8, 3), 0.5))
