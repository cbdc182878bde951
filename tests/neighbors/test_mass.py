"""Masses are sums of weights, kept as logarithms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.neighbors.mass import class_log_mass, log_mass, own_log_mass

rows = st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 3)), min_size=1, max_size=8)


@settings(deadline=None)
@given(rows)
def test_class_masses_are_those_of_a_plain_loop_and_sum_to_the_mass(pairs):
    logs = torch.tensor([[p[0] for p in pairs]], dtype=torch.float64)
    labels = torch.tensor([[p[1] for p in pairs]])
    expected = reference.class_masses([math.exp(p[0]) for p in pairs], labels[0], 4)
    masses = class_log_mass(logs, labels, 4)
    assert_close(masses.exp()[0], torch.tensor(expected, dtype=torch.float64))
    assert_close(masses.logsumexp(1), log_mass(logs))


def test_soft_labels_that_are_one_hot_are_hard_labels(rng):
    logs = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, 3, (4, 6), generator=rng)
    soft = torch.nn.functional.one_hot(labels, 5).double()
    assert_close(class_log_mass(logs, soft, 5), class_log_mass(logs, labels, 5))


def test_the_mass_of_ones_own_class_is_the_class_mass_at_ones_label(rng):
    logs = torch.randn(4, 6, generator=rng)
    labels, mine = torch.randint(0, 3, (4, 6), generator=rng), torch.tensor([0, 1, 2, 0])
    same = labels == mine[:, None]
    expected = class_log_mass(logs, labels, 3).gather(1, mine[:, None])[:, 0]
    assert_close(own_log_mass(logs, same), expected)
    assert_close(own_log_mass(logs, same.float()), expected)
    assert_close(own_log_mass(logs, torch.full_like(logs, 0.5)), log_mass(logs) - math.log(2))


def test_an_absent_class_has_log_mass_minus_infinity_and_sends_no_nan_back():
    logs = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    masses = class_log_mass(logs, torch.tensor([[0, 1, 0]]), 3)
    assert masses.isneginf().tolist() == [[False, True, True]]
    (grad,) = torch.autograd.grad(masses.exp().sum() + masses[0, 0], logs)
    assert grad.isfinite().all()
    empty = torch.full((1, 3), -torch.inf, requires_grad=True)
    (grad,) = torch.autograd.grad(log_mass(empty).exp().sum(), empty)
    assert grad.tolist() == [[0.0, 0.0, 0.0]]


def test_masses_far_below_the_smallest_float_keep_their_ratio():
    logs = torch.tensor([[-9000.0, -9001.0, -20000.0]])
    masses = class_log_mass(logs, torch.tensor([[0, 1, 2]]), 3)
    assert_close(masses, logs)
    assert_close(log_mass(logs), torch.tensor([-9000 + math.log1p(math.exp(-1))]))


def test_gradients_of_all_masses_are_exact(rng):
    logs = torch.randn(3, 5, generator=rng, dtype=torch.float64).requires_grad_()
    labels = torch.arange(5).remainder(3).expand(3, 5)
    soft = torch.rand(3, 5, 4, generator=rng, dtype=torch.float64).requires_grad_()
    share = torch.rand(3, 5, generator=rng, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(log_mass, (logs,))
    assert torch.autograd.gradcheck(own_log_mass, (logs, share))
    assert torch.autograd.gradcheck(lambda a: class_log_mass(a, labels, 3), (logs,))
    assert torch.autograd.gradcheck(lambda a, b: class_log_mass(a, b, 4), (logs, soft))


def test_nan_in_is_nan_out():
    logs = torch.tensor([[0.0, math.nan]])
    assert log_mass(logs).isnan().all()
    assert class_log_mass(logs, torch.tensor([[0, 1]]), 2).isnan().tolist() == [[False, True]]


def test_labels_outside_the_classes_or_of_the_wrong_shape_are_refused():
    with pytest.raises(InputError, match=r"0\.\.1.*got 2"):
        class_log_mass(torch.zeros(1, 2), torch.tensor([[0, 2]]), 2)
    with pytest.raises(InputError, match=r"labels\[neighbors.indices\]"):
        class_log_mass(torch.zeros(1, 2), torch.tensor([0, 1]), 2)


@pytest.mark.parametrize(
    "mass", [log_mass, lambda w: class_log_mass(w, torch.tensor([[0, 1, 0], [1, 1, 0]]), 2)]
)
def test_masses_keep_forward_mode_derivatives(mass):
    x, slope = torch.linspace(-1, 1, 6).double().view(2, 3), torch.ones(2, 3).double()
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(mass(forward_ad.make_dual(x, slope))).tangent
    assert_close(found, torch.func.jvp(mass, (x,), (slope,))[1])
