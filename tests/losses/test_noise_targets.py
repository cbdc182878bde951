"""Noise targets: each sampler has the law it names."""

import pytest
import torch
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.losses import (
    continuous_categorical_noise,
    dirichlet_noise,
    info_nce,
    mixup_noise,
    one_hot_noise,
)

ETA = torch.tensor([0.1, 0.0, 0.3, 0.6])


def test_one_hot_noise_has_the_class_frequencies(rng):
    drawn = one_hot_noise(20_000, ETA, rng)
    assert_close(torch.bincount(drawn, minlength=4) / 20_000, ETA, atol=0.015, rtol=0)


def test_mixup_noise_has_the_mean_of_the_noise(rng):
    rows = mixup_noise(20_000, ETA, 0.8, rng).dense()
    assert_close(rows.mean(0), ETA, atol=0.015, rtol=0)
    assert ((rows > 0).sum(1) <= 2).all()


def test_dirichlet_noise_has_the_mean_and_spread_of_dirichlet(rng):
    concentration = torch.tensor([0.5, 2.0, 0.01])
    rows = dirichlet_noise(40_000, concentration, rng)
    mean = concentration / concentration.sum()
    assert_close(rows.mean(0), mean, atol=0.01, rtol=0)
    variance = mean * (1 - mean) / (concentration.sum() + 1)
    assert_close(rows.var(0), variance, atol=0.005, rtol=0.05)


def test_continuous_categorical_noise_has_the_density_of_the_paper(rng):
    # Self-normalized importance sampling from the flat simplex is the witness of eq. 4.
    eta = torch.tensor([0.9, 0.099, 0.001], dtype=torch.float64)
    rows = continuous_categorical_noise(40_000, eta, rng)
    flat = dirichlet_noise(400_000, torch.ones(3), rng).double()
    weights = (flat @ eta.log()).softmax(0)
    for power in (1, 2):
        assert_close(rows.pow(power).mean(0), weights @ flat.pow(power), atol=0.01, rtol=0)


def test_continuous_categorical_noise_of_two_classes_is_a_truncated_exponential(rng):
    eta = torch.tensor([0.8, 0.2], dtype=torch.float64)
    rate = (eta[0] / eta[1]).log()  # density ∝ e^(rate·a) on [0, 1]
    mean = rate.exp() / (rate.exp() - 1) - 1 / rate
    rows = continuous_categorical_noise(40_000, eta, rng)
    assert_close(rows[:, 0].mean(), mean, atol=0.01, rtol=0)


def test_every_kind_is_a_noise_target_of_info_nce(rng):
    z = torch.randn(6, 4, generator=rng)
    labels = torch.tensor([0, 2, 3, 3, 2, 0])
    for noise in (
        one_hot_noise(9, ETA, rng),
        mixup_noise(9, ETA, 1.0, rng),
        dirichlet_noise(9, torch.ones(4), rng),
        continuous_categorical_noise(9, ETA, rng),
    ):
        assert info_nce(z, labels, noise_targets=noise) > 0


def test_the_same_generator_gives_the_same_noise():
    for draw in (
        lambda g: one_hot_noise(5, ETA, g),
        lambda g: mixup_noise(5, ETA, 1.0, g).dense(),
        lambda g: dirichlet_noise(5, torch.ones(3), g),
        lambda g: continuous_categorical_noise(5, ETA, g),
    ):
        seeds = [torch.Generator().manual_seed(2) for _ in range(2)]
        assert torch.equal(*(draw(g) for g in seeds))


def test_wrong_input_is_named():
    for call, sentence in (
        (lambda: one_hot_noise(0, ETA), "`count`"),
        (lambda: one_hot_noise(3, 2 * ETA), "summing to 1"),
        (lambda: mixup_noise(3, ETA, -1.0), "`alpha`"),
        (lambda: dirichlet_noise(3, torch.zeros(2)), "`concentration`"),
        (lambda: continuous_categorical_noise(3, -ETA), "distribution over the classes"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
