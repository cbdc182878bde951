"""Rows whose squares leave float32's range: the value of float64, or infinity, never NaN."""

import numpy as np
import pandas
import pytest
import torch
from torch.testing import assert_close

from losses.catalog import CATALOG
from vicinal import losses
from vicinal.checks import InputError

SCALES = (1e-44, 1e-30, 1e-20, 1e16, 1e19, 1e20, 1e25, 1e30, 1e37)
NAMED = [c[:2] for c in CATALOG]
# The plain path of the cosine reads directions alone: no scale is too far for it.
COMPARED = [c for c in CATALOG if c[2] != "logits" and c[0] != "snnl_cosine"]
# The others make targets of their labels before the loss sees them.
MADE = ("supervised_contrastive_soft", "nt_xent_soft", "info_nce_soft", "info_nce_mixed",
        "soft_distribution_info_nce", "soft_target_cross_entropy", "mixed_cross_entropy",
        )  # fmt: skip
LABELED = [c[:2] for c in CATALOG if c[0] not in MADE]


def graded(call, x, y):
    x = x.clone().requires_grad_()
    value = call(x, y)
    value.backward()
    return value.detach(), x.grad


@pytest.mark.parametrize(("name", "call"), NAMED, ids=[c[0] for c in CATALOG])
def test_far_float32_rows_have_the_loss_and_gradient_of_float64(name, call, rng):
    base, y = torch.randn(9, 3, generator=rng), torch.arange(9) % 3
    for scale in SCALES:
        x = (base.double() * scale).float()
        value, grad = graded(call, x, y)
        exact, exact_grad = (t.float() for t in graded(call, x.double(), y))
        assert value.dtype == torch.float32
        if exact < torch.finfo(torch.float32).max / len(x):  # else a sum over the rows may overflow
            assert_close(value, exact, rtol=1e-4, atol=1e-6)
        else:
            assert value >= exact
        assert not grad.isnan().any()
        fits = exact_grad.isfinite() & grad.isfinite()
        size = float(exact_grad[fits].abs().amax()) if fits.any() else 0.0
        assert_close(grad[fits], exact_grad[fits], rtol=1e-3, atol=1e-3 * size + 1e-37)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_whole_numbers_as_large_have_the_loss_of_their_floats(dtype):
    x = torch.tensor([[2**63 - 1] * 4, [0] * 4, [0, 0, 1, 0], [2, 0, 0, 0], [0] * 4])
    y = torch.tensor([0, 0, 1, 1, 2])
    for loss in (losses.nt_xent_loss, losses.supervised_contrastive_loss):
        exact = loss(x.double(), y, metric="euclidean")
        assert exact.isfinite()
        for rows in (x.to(dtype), x.to(dtype).numpy()):
            assert_close(loss(rows, y, metric="euclidean").double(), exact, rtol=1e-5, atol=0)


def test_the_module_and_a_reference_go_the_same_way(rng):
    x, y = torch.randn(9, 3, generator=rng) * 1e25, torch.arange(9) % 3
    module = losses.SoftNearestNeighborLoss(metric="euclidean")
    assert_close(module(x, y), module(x.double(), y).float())
    near = x / 1e25
    far = {"reference": x, "reference_labels": y}
    exact = losses.soft_nearest_neighbor_loss(near.double(), y, **far)
    assert_close(losses.soft_nearest_neighbor_loss(near, y, **far), exact.float())


@pytest.mark.parametrize(("name", "call"), [c[:2] for c in COMPARED], ids=[c[0] for c in COMPARED])
def test_rows_that_no_float64_can_square_are_refused(name, call, rng):
    y = torch.arange(9) % 3
    for scale in (1e-160, 1e160, 1e300):
        x = torch.randn(9, 3, generator=rng, dtype=torch.float64) * scale
        if name == "snnl" and scale < 1:
            continue  # squares that vanish are those of a chance loss, as they should
        with pytest.raises(InputError, match=r"squares (overflow|vanish in) float64"):
            call(x, y)


@pytest.mark.parametrize("kind", [np.asarray, lambda x: x.tolist(), pandas.DataFrame])
def test_rows_that_are_no_tensors_are_compared_at_any_scale_too(kind, rng):
    y = torch.arange(9) % 3
    for scale in (1e-30, 1e19, 1e25):
        x = torch.randn(9, 4, generator=rng) * scale
        for _, call, _ in COMPARED:
            rows = kind(x.numpy())
            assert_close(call(rows, y), call(torch.from_numpy(np.array(rows)), y))


@pytest.mark.parametrize("far", [1e19, 1.9e19, 2.9e19, 3.6e19, 1e20])
def test_two_peers_whose_squared_distance_leaves_float32_are_not_lost(far):
    x = torch.tensor([[1e17], [far]])  # centered squares fit a float, four times them do not
    value, grad = graded(losses.soft_nearest_neighbor_loss, x, torch.tensor([2, 2]))
    assert value == 0
    assert (grad == 0).all()


@pytest.mark.parametrize(("name", "call"), LABELED, ids=[c[0] for c in LABELED])
def test_names_of_classes_are_refused_with_the_way_to_numbers(name, call):
    with pytest.raises(InputError, match="numbers"):
        call(torch.randn(3, 3), np.array(["ant", "bee", "ant"]))
