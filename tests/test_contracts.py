"""What every loss and every estimator promises; each joins by one line in a list.

Losses are listed in ``losses/catalog.py``: order, dtype, NaN, lone anchors, gradients, one graph.
Estimators are listed here and pass scikit-learn's own checks.
"""

import subprocess
import sys

import pytest
import torch
import torch.utils.checkpoint
from sklearn.utils.estimator_checks import check_estimator
from torch.testing import assert_close

from losses.catalog import CATALOG
from vicinal.confidence import (
    KNNClassifier,
    LinearClassifier,
    NEDClassifier,
    NEDLinear,
    TemperatureScaling,
    TrustScore,
)

HEADS = [NEDClassifier(), KNNClassifier(), LinearClassifier(), NEDLinear()]
ESTIMATORS = [*HEADS, TrustScore(), TemperatureScaling()]
# These draw by position or pair rows with the batch reversed: a reordered batch is another draw.
BY_POSITION = {"soft_distribution_info_nce", "info_nce_mixed", "mixed_cross_entropy"}
# These average over triplets or sum over pairs: no anchor counts as such.
NOT_BY_ANCHOR = {"triplet_all", "triplet_valid", "graph_smoothness"}
# These push other classes away whether or not an anchor has a peer.
ALONE_COUNTS = {"graph_smoothness", "contrastive", "contrastive_valid", "multi_similarity"}
NOT_BY_ANCHOR |= ALONE_COUNTS
EVERY = pytest.mark.parametrize(("name", "call", "kind"), CATALOG, ids=[c[0] for c in CATALOG])
EMBEDDING = pytest.mark.parametrize(
    ("name", "call"), [c[:2] for c in CATALOG if c[2] == "embedding"],
    ids=[c[0] for c in CATALOG if c[2] == "embedding"],
)  # fmt: skip


def batch(rng, dtype=torch.float64, n=9):
    x = torch.randn(n, 3, generator=rng, dtype=torch.float64).to(dtype)
    return x, torch.arange(n) % 3


@EVERY
def test_gradients_are_exact_in_float64(name, call, kind, rng):
    x, y = batch(rng)
    assert torch.autograd.gradcheck(lambda x: call(x, y), x.requires_grad_(), atol=1e-6)


@EVERY
def test_second_derivatives_are_exact_in_float64(name, call, kind, rng):
    x, y = batch(rng)
    assert torch.autograd.gradgradcheck(lambda x: call(x, y), x.requires_grad_(), atol=1e-6)


@EVERY
def test_torch_func_gives_the_gradient_and_the_hessian_of_autograd(name, call, kind, rng):
    x, y = batch(rng)
    draws = {"randomness": "same"}  # one of them draws labels
    grad = torch.func.grad(call)(x, y)
    hessian = torch.func.vmap(
        lambda v: torch.func.vjp(torch.func.grad(lambda x: call(x, y)), x)[1](v)[0], **draws
    )(torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape))
    x.requires_grad_()
    (first,) = torch.autograd.grad(call(x, y), x, create_graph=True)
    second = [torch.autograd.grad(g, x, retain_graph=True)[0] for g in first.flatten()]
    assert_close(grad, first.detach(), rtol=1e-9, atol=1e-10)
    assert_close(hessian, torch.stack(second), rtol=1e-7, atol=1e-8)


@EVERY
def test_vmap_over_batches_is_a_loop_over_them(name, call, kind, rng):
    batches = [batch(rng)[0] for _ in range(3)]
    x, y = torch.stack(batches), batch(rng)[1]
    values = torch.func.vmap(call, (0, None), randomness="same")(x, y)
    assert_close(values, torch.stack([call(one, y) for one in batches]))
    grads = torch.func.vmap(torch.func.grad(call), (0, None), randomness="same")(x, y)
    x.requires_grad_()
    (plain,) = torch.autograd.grad(sum(call(one, y) for one in x), x)
    assert_close(grads, plain, rtol=1e-9, atol=1e-10)


@EVERY
def test_activation_checkpointing_keeps_the_gradient(name, call, kind, rng):
    x, y = batch(rng)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    torch.utils.checkpoint.checkpoint(call, a, y, use_reentrant=False).backward()
    call(b, y).backward()
    assert_close(a.grad, b.grad)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_every_estimator_keeps_the_scikit_learn_contract(estimator):
    check_estimator(estimator, on_skip=None)  # it skips the array API, which needs a switch


@pytest.mark.parametrize(
    ("name", "call"), [c[:2] for c in CATALOG if c[0] not in BY_POSITION],
    ids=[c[0] for c in CATALOG if c[0] not in BY_POSITION],
)  # fmt: skip
def test_the_order_of_a_batch_does_not_matter(name, call, rng):
    order = torch.randperm(9, generator=rng)
    x, y = batch(rng)
    assert_close(call(x[order], y[order]), call(x, y), rtol=1e-12, atol=1e-12)


@EVERY
def test_half_precision_is_computed_in_float32(name, call, kind, rng):
    x, y = batch(rng)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = x.to(dtype)
        value = call(rounded.clone().requires_grad_(), y)
        assert value.dtype == torch.float32
        assert_close(value.double(), call(rounded.double(), y), rtol=2e-5, atol=2e-5)
        value.backward()


@EVERY
def test_autocast_does_not_round_a_loss(name, call, kind, rng):
    x, y = batch(rng, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = call(x, y)
    assert_close(inside, call(x, y), rtol=0, atol=0)


@EVERY
def test_float64_stays_float64(name, call, kind, rng):
    x, y = batch(rng)
    assert call(x, y).dtype == torch.float64


@EVERY
def test_nan_in_gives_nan_out(name, call, kind, rng):
    x, y = batch(rng)
    x[4, 1] = float("nan")
    assert call(x, y).isnan()


@EVERY
def test_rows_and_labels_must_agree(name, call, kind, rng):
    x, y = batch(rng)
    with pytest.raises(ValueError, match=r"rows|one label"):
        call(x, y[:-1])


@EMBEDDING
def test_without_a_valid_anchor_the_loss_is_zero_with_zero_gradient(name, call, rng):
    for labels in (torch.tensor([0]), torch.tensor([0, 1, 2])):
        if name in ALONE_COUNTS and len(labels) > 1:
            continue
        x = torch.randn(len(labels), 3, generator=rng, dtype=torch.float64, requires_grad=True)
        value = call(x, labels)
        value.backward()
        assert value == 0
        assert_close(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize(
    ("name", "call"),
    [c[:2] for c in CATALOG if c[2] == "embedding" and c[0] not in NOT_BY_ANCHOR],
    ids=[c[0] for c in CATALOG if c[2] == "embedding" and c[0] not in NOT_BY_ANCHOR],
)
def test_a_lone_anchor_does_not_dilute_the_mean(name, call, rng):
    x, _ = batch(rng, n=6)
    lone = torch.cat([x, x.mean(0, keepdim=True) + 1])
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    rows = [call(lone, labels), call(x, labels[:-1])]
    assert rows[0] >= rows[1] - 1e-9  # one more neighbor to push, the same number of anchors


@EMBEDDING
def test_duplicates_and_zero_rows_have_finite_second_derivatives(name, call, rng):
    x, y = batch(rng)
    x[3] = x[0]
    x[4] = x[0]
    x[5] = 0
    x[8] = 0
    x.requires_grad_()
    (grad,) = torch.autograd.grad(call(x, y), x, create_graph=True)
    grad.square().sum().backward()
    assert x.grad.isfinite().all()
    plain = x.detach().clone().requires_grad_()
    call(plain, y).backward()
    assert_close(grad.detach(), plain.grad, rtol=1e-9, atol=1e-9)


@EMBEDDING
def test_duplicates_and_zero_rows_have_finite_gradients(name, call, rng):
    x, y = batch(rng)
    x[3] = x[0]
    x[4] = x[0]
    x[5] = 0
    x[8] = 0
    x.requires_grad_()
    value = call(x, y)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() < 1e6


COMPILED = [c for c in CATALOG if c[0] != "soft_distribution_info_nce"]  # no generator is traced


@pytest.mark.parametrize(("name", "call"), [c[:2] for c in COMPILED], ids=[c[0] for c in COMPILED])
def test_a_loss_compiles_into_one_graph(name, call, rng):
    x, y = batch(rng, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    a, b = (x.detach().clone().requires_grad_() for _ in range(2))
    value, plain = compiled(a, y), call(b, y)
    assert_close(value, plain, rtol=1e-5, atol=1e-6)
    value.backward()
    plain.backward()
    assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("room", ["losses", "neighbors"])
def test_a_room_for_training_loads_no_estimators_and_no_compiler(room):
    heavy = ("sklearn", "scipy.optimize", "torch._dynamo")
    code = f"import sys, vicinal.{room}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
