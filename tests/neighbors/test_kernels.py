"""Kernels turn distances into log-weights, with exact limits and the papers' edge rules."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.neighbors.mass import dudani, exponential, gou, uniform

ascending = st.lists(st.floats(0, 1e3), min_size=1, max_size=7).map(sorted)


@settings(deadline=None)
@given(ascending, st.sampled_from([0.0, 1e-3, 0.5, 10.0, math.inf]))
def test_the_shares_of_the_exponential_kernel_are_those_of_a_plain_loop(row, temperature):
    shares = exponential(torch.tensor([row], dtype=torch.float64), temperature).softmax(1)
    expected = reference.exponential_shares(row, temperature)
    assert_close(shares[0], torch.tensor(expected, dtype=torch.float64))


def test_at_temperature_zero_ties_for_the_nearest_share_the_weight():
    assert_close(
        exponential(torch.tensor([[3.0, 2.0, 2.0]]), 0.0).exp(), torch.tensor([[0.0, 1, 1]])
    )


def test_a_tensor_temperature_gives_what_the_number_gives_limits_included():
    d = torch.tensor([[0.0, 0.5, 0.5, 2.0], [1.0, 3.0, 4.0, 5.0]])
    for t in (0.0, 0.3, math.inf):
        assert_close(exponential(d, torch.tensor(t)), exponential(d, t))
    per_neighbor = torch.tensor([[0.1, 1.0, 10.0, math.inf]])
    assert_close(exponential(d, per_neighbor), -d / per_neighbor)


def test_a_temperature_too_small_for_the_float_kind_still_leaves_mass_on_the_nearest():
    shares = exponential(torch.tensor([[1.0, 1.0, 2.0]]), 1e-40).softmax(1)
    assert_close(shares, torch.tensor([[0.5, 0.5, 0.0]]))


@settings(deadline=None)
@given(ascending)
def test_dudani_and_gou_weigh_as_their_papers_write(row):
    d = torch.tensor([row], dtype=torch.float64)
    assert_close(
        dudani(d).exp()[0], torch.tensor(reference.dudani_weights(row), dtype=torch.float64)
    )
    assert_close(gou(d).exp()[0], torch.tensor(reference.gou_weights(row), dtype=torch.float64))


@pytest.mark.parametrize("kernel", [dudani, gou])
def test_equal_distances_zero_ones_included_weigh_one_each_and_so_does_a_single_neighbor(kernel):
    for row in ([0.0, 0.0, 0.0], [2.0, 2.0], [5.0], [0.0]):
        assert kernel(torch.tensor([row])).exp().tolist() == [[1.0] * len(row)]


@pytest.mark.parametrize("kernel", [dudani, gou])
def test_the_last_of_several_neighbors_has_no_vote_so_two_are_one_nearest_neighbor(kernel):
    assert kernel(torch.tensor([[1.0, 3.0]])).exp().tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("kernel", [dudani, gou])
def test_the_scale_of_distances_does_not_matter_to_dudani_and_gou(kernel, rng):
    d = torch.rand(5, 6, generator=rng, dtype=torch.float64).sort(1).values
    assert_close(kernel(d), kernel(1000 * d))


@pytest.mark.parametrize("kernel", [dudani, gou])
def test_dudani_and_gou_refuse_distances_that_do_not_ascend(kernel):
    with pytest.raises(InputError, match=r"ascending.*row 1"):
        kernel(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


def test_uniform_counts():
    assert uniform(torch.rand(2, 3)).exp().sum(1).tolist() == [3.0, 3.0]


def test_gradients_are_exact_and_finite_even_beside_weights_of_zero(rng):
    d = torch.rand(3, 5, generator=rng, dtype=torch.float64).sort(1).values.requires_grad_()
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(exponential, (d, t))
    for kernel in (dudani, gou):
        assert torch.autograd.gradcheck(lambda d, k=kernel: k(d).exp(), (d,))
        (grad,) = torch.autograd.grad(kernel(d).exp().square().sum(), d)
        assert grad.isfinite().all()


@pytest.mark.parametrize("temperature", [-1.0, math.nan, torch.tensor(-1.0)])
def test_a_temperature_below_zero_is_refused_by_name(temperature):
    with pytest.raises(InputError, match="`temperature`"):
        exponential(torch.ones(1, 2), temperature)


def test_nan_distances_stay_nan_at_every_temperature():
    for t in (0.0, 1.0):
        assert exponential(torch.tensor([[1.0, math.nan]]), t).softmax(1).isnan().all()
