"""Cross-entropy against soft targets, in a loop, with any smoothing noise."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from reference import cross_entropy_rows
from vicinal.checks import InputError
from vicinal.losses import (
    MixedTargets,
    SoftTargetCrossEntropyLoss,
    smooth_labels,
    soft_target_cross_entropy,
)


@pytest.fixture
def logits(rng):
    return torch.randn(5, 4, generator=rng, dtype=torch.float64)


LABELS = torch.tensor([0, 3, 1, 1, 2])


def test_it_is_the_papers_equation_3(logits, rng):
    soft = torch.rand(5, 4, generator=rng, dtype=torch.float64).softmax(1)
    expected = torch.tensor(cross_entropy_rows(logits, soft), dtype=torch.float64)
    assert_close(soft_target_cross_entropy(logits, soft, reduction="none"), expected)
    assert_close(soft_target_cross_entropy(logits, soft), expected.mean())
    assert_close(soft_target_cross_entropy(logits, soft), F.cross_entropy(logits, soft))


def test_hard_labels_are_the_usual_cross_entropy(logits):
    assert_close(soft_target_cross_entropy(logits, LABELS), F.cross_entropy(logits, LABELS))


@pytest.mark.parametrize("noise", [None, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)])
def test_smoothing_in_the_loss_is_smoothing_of_the_targets(noise, logits):
    smoothed = smooth_labels(F.one_hot(LABELS, 4).double(), 4, 0.3, noise)
    expected = soft_target_cross_entropy(logits, smoothed)
    assert_close(soft_target_cross_entropy(logits, LABELS, epsilon=0.3, noise=noise), expected)
    assert_close(SoftTargetCrossEntropyLoss(epsilon=0.3, noise=noise)(logits, LABELS), expected)


@pytest.mark.parametrize("noise", [None, torch.tensor([0.7, 0.2, 0.1, 0.0], dtype=torch.float64)])
def test_mixed_targets_are_their_dense_rows(noise, logits):
    lam = torch.tensor([0.0, 1.0, 0.3, 0.5, 0.9], dtype=torch.float64)
    mixed = MixedTargets(LABELS, LABELS.flip(0), lam, 0.2, 4, noise)
    logits.requires_grad_()
    values = [soft_target_cross_entropy(logits, t) for t in (mixed, mixed.dense())]
    assert_close(values[0], values[1])
    assert_close(*(torch.autograd.grad(v, logits)[0] for v in values))


def test_an_impossible_class_without_weight_costs_nothing(logits):
    logits[:, 3] = float("-inf")
    soft = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64).expand(5, 4)
    logits.requires_grad_()
    loss = soft_target_cross_entropy(logits, soft)
    loss.backward()
    assert_close(loss.detach(), soft_target_cross_entropy(logits[:, :3].detach(), soft[:, :3]))
    assert logits.grad.isfinite().all()


def test_wrong_input_is_named(logits):
    for targets, sentence in (
        (torch.full((5, 4), 0.3), "must sum to 1"),
        (torch.tensor([[2.0, -1.0, 0.0, 0.0]] * 5), "negative entry"),
        (torch.tensor([0, 1, 2, 3, 4]), "between 0 and 3"),
        (LABELS[:3], "each of the 5 rows"),
    ):
        with pytest.raises(InputError, match=sentence):
            soft_target_cross_entropy(logits, targets)
    with pytest.raises(InputError, match="`epsilon`"):
        soft_target_cross_entropy(logits, LABELS, epsilon=2.0)
