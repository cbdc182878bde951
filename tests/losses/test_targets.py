"""Soft targets: smoothing toward any noise, mixing with its true share, sparse and dense alike."""

import pytest
import torch
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.losses import MixedTargets, cutmix, mixup, smooth_labels
from vicinal.losses.targets import beta


def test_smoothing_moves_epsilon_of_the_weight_to_the_noise():
    xi = torch.tensor([0.2, 0.3, 0.5])
    found = smooth_labels(torch.tensor([2, 0]), 3, 0.4, noise=xi)
    for row, label in zip(found, (2, 0), strict=True):
        for k in range(3):
            assert row[k] == pytest.approx(0.6 * (k == label) + 0.4 * float(xi[k]))


def test_smoothing_without_noise_is_uniform_and_takes_soft_labels():
    soft = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    assert_close(smooth_labels(soft, 4, 0.2), torch.tensor([[0.45, 0.45, 0.05, 0.05]]))
    assert_close(smooth_labels(soft, 4, 0.0), soft)


def test_mixup_blends_inputs_and_targets_by_one_share(rng):
    x = torch.eye(5).repeat(3, 1)  # a row is its own one-hot label: both mix alike
    labels = torch.arange(5).repeat(3)
    mixed, targets = mixup(x, labels, 0.8, rng)
    assert_close(mixed, targets.dense())
    rows, soft = mixup(x, x, 0.8, rng)
    assert_close(rows, soft)


def test_cutmix_counts_the_share_from_the_clipped_box(rng):
    labels = torch.arange(6)
    images = labels.float().view(6, 1, 1, 1).expand(6, 2, 8, 10).contiguous()
    mixed, targets = cutmix(images, labels, 1.0, rng)
    for i in range(6):
        kept = (mixed[i, 0] == i).double().mean() if targets.b[i] != i else torch.tensor(1.0)
        if targets.b[i] != i:
            assert float(targets.lam[i]) == pytest.approx(float(kept))
        assert set(mixed[i].unique().tolist()) <= {float(i), float(targets.b[i])}
    assert len(targets.lam.unique()) > 1


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_the_same_generator_gives_the_same_mixture(mix):
    images, labels = torch.rand(4, 1, 6, 6), torch.arange(4)
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    (a, s), (b, t) = (mix(images, labels, 0.5, g, num_classes=9, epsilon=0.1) for g in seeds)
    assert torch.equal(a, b)
    assert torch.equal(s.dense(), t.dense())
    assert s.dense().shape == (4, 9)
    assert_close(s.dense().sum(1), torch.ones(4))


@pytest.mark.parametrize("alpha", [1e-3, 0.4, 1.0, 50.0])
def test_beta_draws_have_the_mean_and_variance_of_beta(alpha, rng):
    draws = beta(alpha, 40_000, rng, torch.device("cpu"))
    assert draws.isfinite().all()
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(draws.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_mixed_targets_keep_noise_and_scalar_share():
    xi = torch.tensor([1.0, 0.0])
    targets = MixedTargets(torch.tensor([0, 1]), torch.tensor([1, 1]), 0.25, 0.5, 2, noise=xi)
    assert len(targets) == 2
    assert_close(targets.dense(), torch.tensor([[0.625, 0.375], [0.5, 0.5]]))


def test_wrong_input_is_named():
    zero, x = torch.tensor([0]), torch.rand(1, 2)
    for call, sentence in (
        (lambda: smooth_labels(zero, 2, 1.5), "`epsilon` must lie between 0 and 1"),
        (lambda: smooth_labels(torch.tensor([2]), 2, 0.1), "`labels` must lie between 0 and 1"),
        (lambda: smooth_labels(zero, 2, 0.1, torch.tensor([0.4, 0.4])), "summing to 1"),
        (lambda: smooth_labels(zero, 2, 0.1, torch.ones(3) / 3), "each of the 2 classes"),
        (lambda: mixup(x, zero, 0.0), "`alpha` must be"),
        (lambda: mixup(x, torch.tensor([0, 1]), 1.0), "each of the 1 rows"),
        (lambda: mixup(x, zero, 1.0, epsilon=0.1), "pass `num_classes`"),
        (lambda: cutmix(x, zero, 1.0), "must be images"),
        (lambda: MixedTargets(zero, zero, 1.5, 0.0, 2), "`lam` must lie between 0 and 1"),
        (lambda: MixedTargets(torch.tensor([5]), zero, 0.5, 0.0, 2), "`a` must lie between"),
        (lambda: MixedTargets(zero, torch.tensor([0, 1]), 0.5, 0.0, 2), "same number of rows"),
        (lambda: MixedTargets(zero, zero, 0.5), "`num_classes` must be at least 1"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
