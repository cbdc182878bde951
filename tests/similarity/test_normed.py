"""Weight norm's parameters kept as places and one number a feature, against plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from similarity.zoo import per_sample_gradients
from vicinal.checks import InputError
from vicinal.similarity import GradientKernel, SketchedIndex
from vicinal.similarity.engine import Engine
from vicinal.similarity.normed import Normed
from vicinal.similarity.sketch import sketch


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def network(scale=1.0):
    """Rows shorter and longer than v, one of them turned round, one of length 0; two places."""
    torch.manual_seed(0)
    first, second = weight_norm(nn.Linear(5, 16)), weight_norm(nn.Linear(16, 12, bias=False))
    head = weight_norm(nn.Linear(12, 3))
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), Mean(), head).double().eval()
    with torch.no_grad():
        for layer in (first, second, head):
            size, v = (
                layer.parametrizations.weight.original0,
                layer.parametrizations.weight.original1,
            )
            size.copy_(v.norm(dim=1, keepdim=True) * torch.linspace(-2, 1, len(v))[:, None])
        second.parametrizations.weight.original0[1] = 0
        head.parametrizations.weight.original0.mul_(scale)
    return model, torch.randn(9, 2, 5, dtype=torch.float64)


def patches():
    """A linear map at the places of patches, as a picture's few channels are unfolded."""
    torch.manual_seed(0)
    layer = weight_norm(nn.Conv2d(3, 16, 4, 4))
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(256, 6)).double().eval()
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(torch.linspace(-2, 2, 16)[:, None, None, None])
    return model, torch.randn(5, 3, 16, 16, dtype=torch.float64)


def plain_kernel(model, x):
    """K(x, x') of every pair, ``(n, n, d, d)``, from the gradients themselves."""
    g = per_sample_gradients(model, x)
    return torch.einsum("nip,mjp->nmij", g, g)


@pytest.mark.parametrize("build", [network, patches])
def test_the_kernel_of_a_weight_normed_network_is_exact_whatever_the_lengths_of_its_rows(build):
    model, x = build()
    factors = [part.factor for part in Engine(model).capture(x).parts]
    rows = [f.rows.stretch for f in factors if isinstance(f, Normed)]
    assert len(rows) == (3 if build is network else 1)
    assert all(bool((k < -1).any() and (k.abs() < 0.9).any() and (k > 0.9).any()) for k in rows)
    expected = plain_kernel(model, x)
    found = GradientKernel(model).gram(x, kind="inner", summary="matrix")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13 * float(expected.abs().max()))
    trace = expected.diagonal(dim1=2, dim2=3).mean(-1)
    found = GradientKernel(model).gram(x, kind="inner")
    torch.testing.assert_close(found, trace, rtol=0, atol=1e-13 * float(trace.abs().max()))


@pytest.mark.parametrize("budget", [1 << 12, 2 << 30])  # some rows a block, and all
def test_counts_in_linear_time_are_the_sums_of_the_correlations(budget):
    model, x = network()
    expected = plain_kernel(model, x)
    values, vectors = torch.linalg.eigh(expected[range(9), range(9)])
    root = (vectors * values.rsqrt()[:, None]) @ vectors.mT
    exact = torch.einsum("nab,nmbc,mca->nm", root, expected, root) / 3
    kernel = GradientKernel(model, memory_budget=budget)
    torch.testing.assert_close(kernel.gram(x), exact, rtol=1e-10, atol=1e-10)
    many = x.repeat(40, 1, 1)  # enough that sums are cheaper than pairs
    torch.testing.assert_close(
        kernel.neighbors(many), 40 * exact.sum(1).repeat(40), rtol=1e-9, atol=0
    )


def test_factors_go_to_disk_and_into_an_index_and_come_back(tmp_path):
    model, x = network()
    exact = GradientKernel(model).gram(x)
    for _ in range(2):  # written, then read
        kernel = GradientKernel(model, cache=tmp_path / "factors")
        torch.testing.assert_close(kernel.gram(x), exact)
    index = SketchedIndex(GradientKernel(model), dim=64).build(x, tmp_path / "index")
    assert index.error.largest < 1e-9  # as wide as the layers


def test_sketches_of_rows_with_their_own_lengths_have_the_products_of_the_gradients_on_average():
    model, x = network()
    (factor,) = (p.factor for p in Engine(model).capture(x).parts if "2" in p.layer)
    g = factor.dense().flatten(1)
    draws = torch.stack([(s := sketch(factor, 4, seed)) @ s.T for seed in range(600)])
    spread = draws.std(0) / 600**0.5
    assert ((draws.mean(0) - g @ g.T).abs() < 5 * spread).all()


def test_gradients_beyond_the_squares_of_the_precision_are_rescaled_with_them():
    model, x = network(scale=1e-200)
    found = GradientKernel(model).gram(x)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.diagonal(), torch.ones(9, dtype=torch.float64))


def test_one_parameter_of_the_two_by_itself_has_its_own_gradient():
    model, x = network()
    g = per_sample_gradients(model, x, names={"2.parametrizations.weight.original1"})
    kernel = GradientKernel(model, params=["2.parametrizations.weight.original1"])
    found = kernel.gram(x, kind="inner", summary="matrix")
    torch.testing.assert_close(found, torch.einsum("nip,mjp->nmij", g, g))


def test_a_wrong_length_is_an_error_that_names_the_layer(monkeypatch):
    model, x = network()

    def wrong(a, b, s, rows):
        return Normed(a, b, 1.01 * s, rows)

    monkeypatch.setattr("vicinal.similarity.normed.Normed", wrong)
    with pytest.raises(InputError, match="layer `0`"):
        GradientKernel(model).gram(x)
