"""Distances are exact where a matrix product is not: near pairs, offsets, zero rows, halves."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from reference import distance
from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS, neighbor_distances, pairwise_distances, unit_rows


def loops(x, y, metric):
    return torch.tensor([[distance(a, b, metric) for b in y] for a in x], dtype=torch.float64)


def normal(*shape, rng, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


@pytest.mark.parametrize("metric", METRICS)
def test_distances_are_those_of_a_plain_loop(metric, rng):
    x, y = normal(7, 5, rng=rng), normal(4, 5, rng=rng)
    assert_close(pairwise_distances(x, y, metric), loops(x, y, metric))
    assert_close(pairwise_distances(x, metric=metric), loops(x, x, metric))
    gathered = y[None].expand(7, 4, 5)
    assert_close(neighbor_distances(x, gathered, metric), loops(x, y, metric))


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_are_those_of_finite_differences(metric, rng):
    x, y = normal(5, 3, rng=rng).requires_grad_(), normal(4, 3, rng=rng).requires_grad_()
    near = normal(4, 5, 3, rng=rng).requires_grad_()
    assert gradcheck(lambda x: pairwise_distances(x, metric=metric), (x,))
    assert gradcheck(lambda x, y: pairwise_distances(x, y, metric), (x, y))
    assert gradcheck(lambda y, z: neighbor_distances(y, z, metric), (y, near))


@pytest.mark.parametrize("metric", METRICS)
def test_the_distance_to_oneself_is_exactly_zero(metric, rng):
    x = normal(40, 6, rng=rng, dtype=torch.float32) + 1000
    x[3] = 0
    d = pairwise_distances(x, metric=metric)
    assert torch.equal(d.diagonal(), torch.zeros(40))
    assert (d >= 0).all()


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_a_common_offset_costs_no_digits(offset, rng):
    x = (normal(60, 8, rng=rng, dtype=torch.float32) + offset).clone()
    exact = loops(x, x, "sqeuclidean")  # of the rows as float32 holds them
    assert_close(pairwise_distances(x).double(), exact, rtol=2e-5, atol=0)


@pytest.mark.parametrize("gap", [1e-2, 1e-3, 1e-4, 1e-6])
def test_near_duplicates_keep_their_distance_and_a_gradient_of_length_one(gap, rng):
    x = normal(50, 16, rng=rng, dtype=torch.float32)
    x[1] = x[0] + gap * unit_rows(normal(16, rng=rng, dtype=torch.float32))
    x.requires_grad_()
    d = pairwise_distances(x, metric="euclidean")
    assert_close(d[0, 1].item(), distance(*x.detach()[:2], "euclidean"), rtol=1e-5, atol=0)
    (g,) = torch.autograd.grad(d[0, 1], x)
    away = (x[0] - x[1]).detach()
    assert_close(g[0], away / away.norm(), rtol=1e-4, atol=1e-5)
    assert_close(g[1], -g[0])
    assert g[2:].abs().max() == 0


def test_a_batch_of_near_duplicates_only_is_still_exact(rng):
    x = normal(1, 8, rng=rng, dtype=torch.float32) + 1e-4 * normal(
        64, 8, rng=rng, dtype=torch.float32
    )
    x[-1] += 10  # a far row, so that centering alone does not save the others
    x.requires_grad_()
    d = pairwise_distances(x, metric="euclidean")
    exact = loops(x.detach(), x.detach(), "euclidean")
    assert_close(d.double(), exact, rtol=1e-5, atol=0)
    twin = x.detach().double().requires_grad_()
    (g,) = torch.autograd.grad(d.sum(), x)
    (h,) = torch.autograd.grad(pairwise_distances(twin, metric="euclidean").sum(), twin)
    assert_close(g.double(), h, rtol=1e-4, atol=1e-4)


def test_nearly_parallel_rows_have_an_exact_cosine_distance():
    angle = 1e-4
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)], [0.0, 1.0]])
    d = pairwise_distances(x, metric="cosine")
    # 1 - cos of an angle a is 2 sin²(a/2); in float32, 1 - cos(1e-4) itself is 0.
    assert_close(d[0, 1].item(), 2 * math.sin(angle / 2) ** 2, rtol=1e-4, atol=0)


@pytest.mark.parametrize("metric", METRICS)
def test_duplicates_and_zero_rows_have_finite_gradients(metric, rng):
    x = normal(6, 4, rng=rng)
    x[1], x[2], x[3] = x[0], 0, 0
    x.requires_grad_()
    d = pairwise_distances(x, metric=metric)
    (g,) = torch.autograd.grad(d.sum(), x)
    assert torch.isfinite(g).all()
    if metric == "cosine":
        assert torch.equal(g[2:4], torch.zeros(2, 4, dtype=g.dtype))
        assert d[2, 3] == 1
    else:
        assert d[0, 1] == 0
        assert d[2, 3] == 0


def test_a_zero_row_stays_zero_and_any_other_has_length_one():
    x = torch.tensor([[0.0, 0.0], [1e-30, 0.0], [3e30, 4e30]], requires_grad=True)
    u = unit_rows(x)
    assert_close(u, torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.6, 0.8]]))
    (g,) = torch.autograd.grad(u.sum(), x)
    assert torch.equal(g[0], torch.zeros(2))
    assert torch.isfinite(g).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("metric", METRICS)
def test_half_precision_is_computed_in_float32(dtype, metric, rng):
    x = normal(20, 8, rng=rng).to(dtype).requires_grad_()
    d = pairwise_distances(x, metric=metric)
    assert d.dtype == torch.float32
    assert_close(d.double(), loops(x.detach(), x.detach(), metric), rtol=1e-4, atol=1e-6)
    assert torch.autograd.grad(d.sum(), x)[0].dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pairwise_distances(x, metric=metric), d)


@pytest.mark.parametrize("metric", METRICS)
def test_nan_rows_give_nan(metric, rng):
    x = normal(5, 3, rng=rng)
    x[2, 1] = torch.nan
    x.requires_grad_()
    d = pairwise_distances(x, metric=metric)
    assert d[2, [0, 1, 3, 4]].isnan().all()
    assert d[[0, 1, 3, 4], 2].isnan().all()
    assert torch.autograd.grad(d.sum(), x)[0][2].isnan().any()


@pytest.mark.parametrize("metric", METRICS)
def test_compiles_into_one_graph(metric, rng):
    def total(x):
        return pairwise_distances(x, metric=metric).sum()

    x = normal(6, 3, rng=rng).requires_grad_()
    torch._dynamo.reset()
    assert torch._dynamo.explain(total)(x).graph_break_count == 0
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(total(x), x)
    assert_close(torch.autograd.grad(compiled(x), x)[0], expected)


def test_wrong_inputs_are_named():
    x = torch.zeros(3, 2)
    with pytest.raises(InputError, match="Did you mean 'euclidean'"):
        pairwise_distances(x, metric="euclidian")
    with pytest.raises(InputError, match="2 dimensions but `y` has 5"):
        pairwise_distances(x, torch.zeros(3, 5))
    with pytest.raises(InputError, match="matrix with one row per sample"):
        pairwise_distances(torch.zeros(3))
    with pytest.raises(InputError, match=r"must be \(n, k, d\)"):
        neighbor_distances(x, torch.zeros(4, 1, 2))
