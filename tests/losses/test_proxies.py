"""Proxy-NCA and the normalized softmax: loops, both denominators, PML where it is right."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml
from torch.testing import assert_close

from reference import proxy_nca_rows
from vicinal.checks import InputError
from vicinal.losses import (
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    normalized_softmax_loss,
    proxy_nca_loss,
)

LABELS = torch.tensor([0, 1, 2, 2, 3])


@pytest.fixture
def x(rng):
    return torch.randn(5, 3, generator=rng, dtype=torch.float64)


@pytest.fixture
def proxies(rng):
    return torch.randn(4, 3, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("include", [True, False])
def test_proxy_nca_is_its_sum_over_proxies(include, x, proxies):
    expected = proxy_nca_rows(x, LABELS, proxies, 0.33, include)
    found = proxy_nca_loss(
        x, LABELS, proxies, temperature=0.33, include_positive=include, reduction="none"
    )
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_normalized_proxy_nca_is_that_of_pytorch_metric_learning(x, proxies):
    theirs = pml.ProxyNCALoss(4, 3, softmax_scale=1 / 0.33).double()
    theirs.proxies.data.copy_(proxies)
    found = proxy_nca_loss(x, LABELS, proxies, temperature=0.33, normalize=True)
    assert_close(found, theirs(x, LABELS))


def test_normalized_softmax_is_that_of_pytorch_metric_learning(x, proxies):
    theirs = pml.NormalizedSoftmaxLoss(4, 3, temperature=0.05).double()
    theirs.W.data.copy_(proxies.T)
    assert_close(normalized_softmax_loss(x, LABELS, proxies), theirs(x, LABELS))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("include", [True, False])
def test_gradients_are_exact_in_rows_and_proxies(include, reduction, x, proxies):
    inputs = (x.requires_grad_(), proxies.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda x, p: proxy_nca_loss(
            x, LABELS, p, include_positive=include, reduction=reduction, normalize=include
        ),
        inputs,
    )
    assert torch.autograd.gradcheck(
        lambda x, p: normalized_softmax_loss(x, LABELS, p, temperature=0.5, reduction=reduction),
        inputs,
    )


def test_one_hot_soft_labels_are_hard_labels(x, proxies):
    soft = F.one_hot(LABELS, 4).double()
    assert_close(proxy_nca_loss(x, soft, proxies), proxy_nca_loss(x, LABELS, proxies))
    assert_close(
        normalized_softmax_loss(x, soft, proxies), normalized_softmax_loss(x, LABELS, proxies)
    )


def test_moving_rows_and_proxies_together_changes_nothing_even_in_float32(x, proxies):
    far, moved = (x + 1000).float(), (proxies + 1000).float()
    exact = proxy_nca_loss(far.double(), LABELS, moved.double())
    assert_close(proxy_nca_loss(far, LABELS, moved).double(), exact, rtol=1e-4, atol=1e-4)


def test_half_precision_batches_leave_the_proxies_as_they_are(x):
    module = ProxyNCALoss(4, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        module(x.bfloat16(), LABELS).backward()
    assert module.proxies.dtype == module.proxies.grad.dtype == torch.float32


def test_a_zero_row_gets_no_gradient(x, proxies):
    x[2] = 0
    x.requires_grad_()
    normalized_softmax_loss(x, LABELS, proxies).backward()
    assert_close(x.grad[2], torch.zeros(3, dtype=torch.float64))
    assert x.grad.isfinite().all()


def test_the_modules_are_the_functions_of_their_parameters(x):
    proxy, softmax = ProxyNCALoss(4, 3).double(), NormalizedSoftmaxLoss(4, 3).double()
    assert_close(proxy(x, LABELS), proxy_nca_loss(x, LABELS, proxy.proxies))
    assert_close(softmax(x, LABELS), normalized_softmax_loss(x, LABELS, softmax.weights))


def test_wrong_input_is_named(x, proxies):
    for call, sentence in (
        (lambda: proxy_nca_loss(x, LABELS + 1, proxies), "between 0 and 3"),
        (lambda: proxy_nca_loss(x, LABELS, proxies[:, :2]), "3 dimensions but `proxies` has 2"),
        (lambda: proxy_nca_loss(x, LABELS, proxies, temperature=0.0), "`temperature`"),
        (lambda: normalized_softmax_loss(x, LABELS[:2], proxies), "each of the 5 rows"),
        (
            lambda: proxy_nca_loss(x, torch.full((5, 4), 0.25), proxies, include_positive=False),
            "needs integer `labels`",
        ),
        (
            lambda: proxy_nca_loss(x, LABELS * 0, proxies[:1], include_positive=False),
            "`proxies` has one row",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
