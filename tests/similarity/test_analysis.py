from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from similarity.zoo import make, per_sample_gradients
from vicinal.checks import InputError
from vicinal.similarity import (
    Contrast,
    GradientKernel,
    denoising,
    fit_diagnosis,
    perceptual_gram,
    suspicious_labels,
    uncertainty,
)

CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def linear(features=3):
    """f = w·x: the gradient at x is x itself."""
    return nn.Linear(features, 1, bias=False).double()


def test_identical_inputs_denoise_by_the_root_of_their_number_and_orthogonal_ones_not_at_all():
    same = torch.ones(9, 3, dtype=torch.float64)
    found = denoising(GradientKernel(linear()), same)
    torch.testing.assert_close(found.factor, torch.full((9,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(found.shift, torch.zeros(9, 1, dtype=torch.float64))
    apart = torch.eye(3, dtype=torch.float64)
    assert denoising(GradientKernel(linear()), apart).factor.tolist() == [1, 1, 1]


def test_denoising_is_the_formula_of_section_6_3():
    model, x = make("perceptron", n=30)
    kernel = GradientKernel(model, outputs=lambda y, t: y[:, :1], memory_budget=60_000)
    found = denoising(kernel, x, lipschitz=2.0)
    g = per_sample_gradients(model, x, lambda y, t: y[:, :1])[:, 0]
    inner = g @ g.T
    weights = inner / inner.sum(1, keepdim=True)
    y = model(x)[:, :1].detach()
    cosine = inner / g.norm(dim=1)[:, None] / g.norm(dim=1)[None]
    good = inner.sum(1) > 0
    torch.testing.assert_close(found.factor[good], weights.norm(dim=1)[good], **CLOSE)
    torch.testing.assert_close(found.shift[good], (y - weights @ y)[good], **CLOSE)
    bound = math.sqrt(2) * 2 * (weights.abs() * (1 - cosine).clamp_min(0).sqrt()).sum(1)
    torch.testing.assert_close(found.bound[good], bound[good], rtol=1e-6, atol=1e-6)


def test_the_bound_holds_with_the_constant_seen():
    model, x = make("perceptron", n=30)
    found = denoising(GradientKernel(model), x)
    assert found.averaged.all()
    assert (found.shift.norm(dim=1) <= found.bound + 1e-9).all()
    assert found.lipschitz > 0


def test_at_a_minimum_the_predictions_average_to_what_the_labels_average_to():
    """E_k[ŷ] = E_k[ỹ] where ∇E = 0: a linear model fitted by least squares to noisy labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    noisy = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    model = linear()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, noisy).solution.T)
    kernel = GradientKernel(model)
    y = model(x).detach()
    own, given = denoising(kernel, x), denoising(kernel, x, predictions=noisy)
    torch.testing.assert_close(y - own.shift, noisy - given.shift, **CLOSE)


def test_rows_whose_weights_have_no_positive_sum_are_marked():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1], [0.0, 0.0]], dtype=torch.float64)
    found = denoising(GradientKernel(linear(2)), x)
    assert found.averaged.tolist() == [False, True, True, False]
    assert found.factor[[0, 3]].tolist() == [1, 1]
    assert torch.isfinite(torch.cat([found.factor, found.bound, found.shift.flatten()])).all()
    positive = denoising(GradientKernel(linear(2)), x, positive_part=True)
    assert positive.averaged.tolist() == [True, True, True, False]


def test_uncertainty_is_the_step_one_may_take_for_a_unit_of_disturbance():
    model, x = make("perceptron", n=12)
    one = lambda y, t: y[:, :1]
    g = per_sample_gradients(model, x, one)[:, 0]
    inner = g @ g.T
    kernel = GradientKernel(model, outputs=one)
    exact = inner[:4].diagonal() / inner[:4].abs().sum(1)
    torch.testing.assert_close(uncertainty(kernel, x[:4], x), exact, **CLOSE)
    quick = inner[:4].diagonal() / inner[:4].sum(1)
    found = uncertainty(kernel, x[:4], x, fast=True)
    good = quick > 0
    torch.testing.assert_close(found[good], quick[good], **CLOSE)
    assert found[~good].isinf().all()


def test_uncertainty_of_several_outputs_averages_over_directions():
    model, x = make("perceptron", n=10)
    operator = GradientKernel(model).gram(x[:3], x, kind="influence", summary="matrix")
    expected = 1 / (operator.flatten(2).norm(dim=2) / math.sqrt(3)).sum(1)
    torch.testing.assert_close(uncertainty(GradientKernel(model), x[:3], x), expected, **CLOSE)
    trace = GradientKernel(model).gram(x[:3], x, kind="influence")
    quick = uncertainty(GradientKernel(model), x[:3], x, fast=True)
    torch.testing.assert_close(quick, 1 / trace.sum(1), **CLOSE)


def test_a_prediction_without_gradient_cannot_be_moved():
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for fast in (False, True):
        found = uncertainty(GradientKernel(linear(2)), x, x, fast=fast)
        assert found.tolist() == pytest.approx([0, 1])


def groups():
    """Two directions with twenty points each, and one point in a third direction."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.05 * torch.rand(41, 3, generator=generator, dtype=torch.float64)
    centers = torch.eye(3, dtype=torch.float64)[[0] * 20 + [1] * 20 + [2]]
    return centers + noise, torch.tensor([0] * 20 + [1] * 20 + [0])


def test_a_diagnosis_tells_the_four_kinds_of_neighborhood():
    x, labels = groups()
    kernel = GradientKernel(linear(), memory_budget=20_000)
    clean = fit_diagnosis(kernel, x, labels, few=10)
    assert set(fit_diagnosis(kernel, x, labels, few=10, estimator=("hard", 0.9)).verdict[:40]) == {
        "well fitted"
    }
    assert set(clean.verdict[:40]) == {"well fitted"}
    assert clean.verdict[40] in ("isolated", "memorized")
    mixed = labels.clone()
    mixed[:20:2] = 1
    assert set(fit_diagnosis(kernel, x, mixed, few=10).verdict[:20]) == {"ambiguous"}
    lone = torch.cat([x[:40], torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.05, 1.0]]).double()])
    few = fit_diagnosis(kernel, lone, torch.cat([labels[:40], torch.tensor([2, 2])]), few=10)
    assert few.verdict[40:] == ("isolated", "isolated")
    contrary = fit_diagnosis(kernel, lone, torch.cat([labels[:40], torch.tensor([2, 3])]), few=10)
    assert contrary.verdict[40:] == ("memorized", "memorized")
    assert few.share("isolated") == 2 / 42


def test_the_count_of_a_diagnosis_is_the_positive_count_without_oneself():
    model, x = make("perceptron", n=25)
    kernel = GradientKernel(model)
    found = fit_diagnosis(kernel, x, torch.arange(25) % 3)
    expected = kernel.neighbors(x, estimator=found.estimator, include_self=False)
    torch.testing.assert_close(found.count, expected, **CLOSE)
    assert (found.count < found.few).float().mean() == pytest.approx(0.1, abs=0.05)


def test_a_flipped_label_is_the_most_suspicious_and_its_own_is_suggested():
    x, labels = groups()
    flipped = labels.clone()
    flipped[3], flipped[27] = 1, 0
    found = suspicious_labels(GradientKernel(linear()), x, flipped, k=5)
    assert set(found.order[:2].tolist()) == {3, 27}
    assert found.suggested[[3, 27]].tolist() == [0, 1]
    assert found.score[0] < 0.5 < found.score[3]
    asked = suspicious_labels(GradientKernel(linear()), x, flipped)  # 50, or all there are
    everyone = suspicious_labels(GradientKernel(linear()), x, flipped, k=min(50, len(x) - 1))
    torch.testing.assert_close(asked.score, everyone.score)


def test_a_sample_is_not_its_own_witness_even_among_copies():
    x = torch.ones(6, 3, dtype=torch.float64)
    labels = torch.tensor([1, 0, 0, 0, 0, 0])
    assert suspicious_labels(GradientKernel(linear()), x, labels, k=5).score[0] == 1


def test_the_perceptual_gram_is_the_weighted_product_of_activations():
    model, x = make("perceptron", n=6)
    first = model[1](model[0](x)).detach()
    second = model[3](model[2](first)).detach()
    inner = perceptual_gram(model, x, layers=["1", "3"], weights={"3": 4.0}, kind="inner")
    torch.testing.assert_close(inner, first @ first.T + 4 * second @ second.T, **CLOSE)
    cosine = perceptual_gram(model, x[:2], x, layers=["3"])
    expected = nn.functional.cosine_similarity(second[:2, None], second[None], dim=2)
    torch.testing.assert_close(cosine, expected, **CLOSE)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda k, x: fit_diagnosis(k, x, torch.zeros(3)), "one label for each of the 8"),
        (lambda k, x: denoising(k, x, predictions=torch.zeros(3, 1)), "one row for each of the 8"),
        (lambda k, x: suspicious_labels(k, x, torch.zeros(8), k=8), "without the sample itself"),
        (lambda k, x: perceptual_gram(k.engine.model, x, layers=[]), "empty"),
    ],
)
def test_a_wrong_call_gets_a_sentence(call, match):
    model, x = make("perceptron", n=8)
    with pytest.raises(InputError, match=match):
        call(GradientKernel(model), x)


def test_a_diagnosis_needs_a_kernel_across_classes():
    model, x = make("perceptron", n=6)
    with pytest.raises(InputError, match="labels do not vary"):
        fit_diagnosis(GradientKernel(model, outputs=Contrast()), x, torch.zeros(6).long())
