"""Losses on similarities, against gradients taken sample by sample with plain autograd."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from similarity.zoo import make
from vicinal.checks import InputError
from vicinal.similarity import (
    Contrast,
    DensityLoss,
    GradientKernel,
    OrbitSimilarityLoss,
    PairSimilarityLoss,
    SetSimilarityLoss,
    TangentInvarianceLoss,
    TwoBatchSimilarityLoss,
    similarity_gradients,
)
from vicinal.similarity.enforce_gradients import inverse_root
from vicinal.similarity.rules.conv import Geometry, take_patches

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
GROUPS = torch.tensor([0, 0, 3, 3, 3, 5])


def small(outputs=1, seed=0, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, outputs)
        return nn.Sequential(*layers).to(dtype), torch.randn(6, 3).to(dtype)


def plain_gradients(model, x):
    """(n, d, p), sample by sample, to be differentiated again."""
    params = list(model.parameters())
    rows = []
    for row in x:
        found = []
        for y in model(row[None])[0]:
            grads = torch.autograd.grad(y, params, create_graph=True)
            found.append(torch.cat([g.flatten() for g in grads]))
        rows.append(torch.stack(found))
    return torch.stack(rows)


def plain_cosines(model, x):
    g = plain_gradients(model, x)[:, 0]
    return torch.stack([torch.stack([a @ b / (a.norm() * b.norm()) for b in g]) for a in g])


def plain_set(model, x):
    k = plain_cosines(model, x)
    return -(k[0, 1] + (k[2, 3] + k[2, 4] + k[3, 4]) / 3) / 2


def plain_pairs(model, x):
    k = plain_cosines(model, x)
    return -(k[0, 3] + k[1, 4] + k[2, 5]) / 3


def plain_two_batches(model, x):
    g = plain_gradients(model, x)[:, 0]
    one, two = g[:3].mean(0), g[3:].mean(0)
    return 3 * (one - two).square().sum() / (one.norm() * two.norm())


def plain_cosine_of_means(model, x):
    g = plain_gradients(model, x)[:, 0]
    return -torch.cosine_similarity(g[:2].mean(0), g[2:].mean(0), dim=0)


def plain_orbits(model, x):
    """Of x, 2x and -x."""
    k = plain_cosines(model, torch.cat([x, 2 * x, -x]))
    n = len(x)
    return -sum(k[i, i + n] + k[i, i + 2 * n] + k[i + n, i + 2 * n] for i in range(n)) / (3 * n)


def plain_density(model, x):
    return sum((row.sum() / len(x) - 0.3) ** 2 for row in plain_cosines(model, x))


def plain_tangent(model, x):
    """The gradient's derivative along (x_2, -x_1, 1), by differentiating each entry of it."""
    total = 0
    for row in x:
        row = row.clone().requires_grad_()
        along = torch.stack([row[1], -row[0], torch.ones_like(row[0])]).detach()
        for entry in plain_gradients(model, row[None])[0, 0]:
            slope = torch.autograd.grad(
                entry, row, create_graph=True, allow_unused=True, materialize_grads=True
            )[0]
            total = total + (slope @ along) ** 2
    return total / len(x)


def turn(x):
    return torch.stack([x[:, 1], -x[:, 0], torch.ones_like(x[:, 0])], 1)


LOSSES = {
    "set": (lambda m, x: SetSimilarityLoss()(m, x, GROUPS), plain_set),
    "pairs": (lambda m, x: PairSimilarityLoss()(m, x[:3], x[3:]), plain_pairs),
    "two batches": (lambda m, x: TwoBatchSimilarityLoss()(m, x[:3], x[3:]), plain_two_batches),
    "two batches, cosine": (
        lambda m, x: TwoBatchSimilarityLoss(form="cosine")(m, x[:2], x[2:]),
        plain_cosine_of_means,
    ),
    "orbits": (
        lambda m, x: OrbitSimilarityLoss([lambda x: 2 * x, torch.neg])(m, x),
        plain_orbits,
    ),
    "density": (lambda m, x: DensityLoss(0.3)(m, x), plain_density),
    "tangent": (lambda m, x: TangentInvarianceLoss([turn])(m, x), plain_tangent),
}


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_derivative_are_those_of_gradients_taken_one_by_one(name):
    loss, plain = LOSSES[name]
    model, x = small()
    x = x[:4] if name == "tangent" else x
    expected = plain(model, x)
    wanted = torch.autograd.grad(expected, list(model.parameters()), materialize_grads=True,
                                 allow_unused=True)  # fmt: skip
    found = loss(model, x)
    torch.testing.assert_close(found, expected, **CLOSE)
    found.backward()
    for p, g in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad if p.grad is not None else 0 * p, g, **CLOSE)


def directional(loss, model, direction, step=1e-6):
    """By finite differences; the model is put back."""
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, v in zip(model.parameters(), direction, strict=True):
                p.add_(v, alpha=sign * step)
        values.append(float(loss().detach()))
        with torch.no_grad():
            for p, v in zip(model.parameters(), direction, strict=True):
                p.sub_(v, alpha=sign * step)
    return (values[0] - values[1]) / (2 * step)


def check_direction(loss, model):
    rng = torch.Generator().manual_seed(3)
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in model.parameters()]
    value = loss()
    grads = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True,
                                allow_unused=True)  # fmt: skip
    slope = float(sum((g * v).sum() for g, v in zip(grads, direction, strict=True)))
    assert slope == pytest.approx(directional(loss, model, direction), rel=1e-5, abs=1e-7)
    assert abs(slope) > 1e-7
    return float(value.detach())


@pytest.mark.parametrize(
    "name", ["perceptron", "residual", "called_twice", "transposed", "wide_channels", "sequences"]
)
def test_the_set_loss_of_several_outputs_is_the_kernels_mean_and_has_its_derivative(name):
    """Several outputs, whitened; shared and bare parameters, convolutions, in-place layers."""
    model, x = make(name, n=6)
    k = GradientKernel(model).gram(x).detach()
    found = check_direction(lambda: SetSimilarityLoss()(model, x, GROUPS), model)
    mean = (k[0, 1] + (k[2, 3] + k[2, 4] + k[3, 4]) / 3) / 2
    assert found == pytest.approx(-float(mean), abs=1e-9)


@pytest.mark.parametrize("outputs", ["log_prob", "contrast"])
def test_what_f_is_follows_the_kernel(outputs):
    model, x = small(outputs=3)
    y = torch.tensor([0, 0, 2, 2, 2, 1])
    k = GradientKernel(model, outputs=outputs).gram((x, y))
    loss = SetSimilarityLoss(outputs=outputs)
    found = check_direction(lambda: loss(model, x, GROUPS, y), model)
    mean = (k[0, 1] + (k[2, 3] + k[2, 4] + k[3, 4]) / 3) / 2
    assert found == pytest.approx(-float(mean), abs=1e-9)


def test_the_set_loss_is_the_norm_of_the_mean_unit_gradient():
    """n/(n-1) ‖μ‖² - 1/(n-1) (section 5)."""
    model, x = small()
    g = plain_gradients(model, x)[:, 0]
    mu = torch.stack([row / row.norm() for row in g]).mean(0)
    n = len(x)
    expected = n / (n - 1) * (mu @ mu) - 1 / (n - 1)
    torch.testing.assert_close(-SetSimilarityLoss()(model, x, None), expected, **CLOSE)


@pytest.mark.parametrize("name", ["set", "pairs", "two batches", "orbits"])
def test_a_step_down_the_loss_makes_samples_more_alike(name):
    """The sign: the loss is minimized, similarity grows."""
    model, x = small()
    before = LOSSES[name][1](model, x)
    for _ in range(5):
        model.zero_grad()
        LOSSES[name][0](model, x).backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=0.05)
    assert LOSSES[name][1](model, x) < before


@pytest.mark.parametrize("name", ["volumes", "signals", "residual", "lstm"])
def test_gradients_change_along_a_direction_as_finite_differences_say(name):
    """Norms too: torch's fused ones have a wrong third derivative."""
    model, x = make(name, n=2)
    loss = TangentInvarianceLoss([torch.sin], reduction="none")
    step = 1e-5
    found = (
        similarity_gradients(model, x + step * x.sin()),
        similarity_gradients(model, x - step * x.sin()),
    )
    dense = [torch.cat([f.dense().detach() for f in g.factors], 2) for g in found]
    expected = ((dense[0] - dense[1]) / (2 * step)).square().sum((1, 2))
    torch.testing.assert_close(loss(model, x)[:, 0].detach(), expected, rtol=1e-6, atol=1e-8)
    check_direction(lambda: loss(model, x).sum(), model)


def test_layer_norm_is_differentiated_three_times_rightly():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    x = torch.randn(3, 3, dtype=torch.float64)
    check_direction(lambda: TangentInvarianceLoss([turn])(model, x), model)


@pytest.mark.parametrize("rank", [2, 3])
def test_the_inverse_root_is_differentiable_at_equal_eigenvalues_and_lower_rank(rank):
    """K = J Jᵀ with J of that rank: the rank stays as J moves."""
    j = torch.zeros(1, 3, 4, dtype=torch.float64)
    for i in range(rank):
        j[0, i, i] = 2.0

    def root(mix, j):
        left = j[:, :rank] if rank < 3 else j
        spread = mix @ left
        return inverse_root(spread @ spread.mT, torch.float32, deficiency=3 - rank)[0]

    mix = torch.eye(3, rank, dtype=torch.float64)[None].requires_grad_()
    assert torch.autograd.gradcheck(root, (mix, j.requires_grad_()), atol=1e-6)


@pytest.mark.parametrize(
    "geometry", [((3,), (2,), (1,)), ((2, 3), (1, 2), (2, 1)), ((1, 2, 2), (1, 1, 2), (1, 1, 1))]
)
def test_patches_and_their_way_back_are_each_others_derivative(geometry):
    rank = len(geometry[0])
    x = torch.randn(2, *(5, 6, 5)[:rank], 2, dtype=torch.float64, requires_grad=True)

    def patches(x):
        return take_patches(x, Geometry(*geometry)).sin()

    assert torch.autograd.gradcheck(patches, (x,))
    assert torch.autograd.gradgradcheck(patches, (x,))


def test_a_convolution_with_channels_last_patches_has_the_right_derivatives():
    """Eight channels or more, stride and dilation: the patches' own way back is used."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 2), nn.Tanh(), nn.Conv2d(8, 3, (2, 3), stride=(1, 2), dilation=(2, 1)),
        nn.Tanh(), nn.Flatten(), nn.Linear(18, 2),
    ).double()  # fmt: skip
    x = torch.randn(6, 2, 6, 6, dtype=torch.float64)
    check_direction(lambda: SetSimilarityLoss()(model, x, GROUPS), model)
    check_direction(lambda: TangentInvarianceLoss([torch.sin])(model, x[:2]), model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [1, 3])
def test_samples_without_any_gradient_are_alike_to_nothing_and_never_nan(dtype, outputs):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, outputs, bias=False)).to(dtype)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[2].weight.copy_(torch.randn(outputs, 3, generator=torch.Generator().manual_seed(1)))
        model[0].bias.zero_()
    x = torch.tensor([[1.0, 2.0], [-3.0, -1.0], [2.0, 0.5], [-1.0, -1.0]], dtype=dtype)
    calls = {
        "set": lambda: SetSimilarityLoss()(model, x, torch.tensor([0, 0, 0, 1])),
        "dead": lambda: SetSimilarityLoss()(model, x[[1, 3]], None),
        "pairs": lambda: PairSimilarityLoss()(model, x[:2], x[2:]),
        "two": lambda: TwoBatchSimilarityLoss()(model, x[:2], x[2:]),
        "dead cosine": lambda: TwoBatchSimilarityLoss(form="cosine")(model, x[:1], x[1:2]),
        "dead two": lambda: TwoBatchSimilarityLoss()(model, x[:1], x[1:2]),
        "orbit": lambda: OrbitSimilarityLoss([torch.neg])(model, x),
        "density": lambda: DensityLoss(0.5)(model, x),
        "tangent": lambda: TangentInvarianceLoss([torch.sin])(model, x),
    }
    for name, call in calls.items():
        model.zero_grad()
        value = call()
        value.backward()
        assert value.isfinite(), name
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), name
        if name.startswith("dead"):
            assert value == 0


def test_the_model_comes_back_as_it_was():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2)
    )
    model.train()
    model[1].eval()
    model[4].bias.requires_grad_(False)
    model[0].weight.grad = torch.ones(4, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(5, 3)
    for loss, args in (
        (SetSimilarityLoss(), (None,)),
        (PairSimilarityLoss(), (x.flip(0),)),
        (TwoBatchSimilarityLoss(), (x.flip(0),)),
        (OrbitSimilarityLoss([torch.neg]), ()),
        (TangentInvarianceLoss([torch.sin]), ()),
        (DensityLoss(0.1), ()),
    ):
        loss(model, x, *args)
        assert not list(loss.parameters())
    assert [m.training for m in model] == [True, False, True, True, True]
    assert [p.requires_grad for p in model.parameters()] == [True] * 5 + [False]
    assert torch.equal(model[0].weight.grad, torch.ones(4, 3))
    assert all(p.grad is None for p in list(model.parameters())[1:])
    assert not any(m._forward_hooks for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_model_is_not_kept_alive_and_a_changed_layer_is_seen():
    model, x = small()
    loss = SetSimilarityLoss()
    loss(model, x, None)
    model[1] = nn.Sequential(nn.Linear(5, 5).double(), nn.Tanh())
    torch.testing.assert_close(loss(model, x, GROUPS), plain_set(model, x), **CLOSE)
    ghost = weakref.ref(model)
    del model
    gc.collect()
    assert ghost() is None


def test_groups_of_one_have_no_pairs_and_a_linear_model_nothing_to_learn():
    model, x = small()
    alone = SetSimilarityLoss()(model, x, torch.arange(6))
    alone.backward()
    assert alone == 0
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)
    each = SetSimilarityLoss(reduction="none")(model, x, GROUPS)
    assert each.shape == (3,)
    assert each[2] == 0
    line = nn.Linear(3, 1).double()
    SetSimilarityLoss()(line, x, None).backward()
    assert (line.weight.grad == 0).all()


def test_nan_in_gives_nan_out():
    for outputs in (1, 2):
        model, x = small(outputs=outputs)
        x[1, 0] = float("nan")
        assert SetSimilarityLoss()(model, x, None).isnan()
        assert PairSimilarityLoss()(model, x[:3], x[3:]).isnan()
        assert TwoBatchSimilarityLoss()(model, x[:3], x[3:]).isnan()
        assert DensityLoss(0.5)(model, x).isnan()


def test_one_forward_pass_serves_the_task_and_the_similarity():
    model, x = small(outputs=3)
    y = torch.tensor([0, 0, 2, 2, 2, 1])
    g = similarity_gradients(model, x, y, outputs=Contrast())
    torch.testing.assert_close(g.output, model(x), **CLOSE)
    loss = SetSimilarityLoss(outputs=Contrast())
    torch.testing.assert_close(loss.of(g, y), loss(model, x, y, y), **CLOSE)


def test_sampled_adversaries_are_those_of_the_kernel():
    """Row i draws the same adversary in a batch, alone in the self-check, and in a kernel."""
    model, x = small(outputs=3)
    y = torch.tensor([0, 0, 2, 2, 2, 1])
    g = similarity_gradients(model, x, y, outputs=Contrast("sampled"))
    exact = GradientKernel(model, outputs=Contrast("sampled")).gram((x, y))
    torch.testing.assert_close(g.correlation(), exact, **CLOSE)


def test_a_wrong_input_earns_its_sentence():
    model, x = small()
    with pytest.raises(InputError, match="one whole number for each of the 6 rows"):
        SetSimilarityLoss()(model, x, torch.arange(5))
    with pytest.raises(InputError, match="pairs row by row"):
        PairSimilarityLoss()(model, x, x[:2])
    with pytest.raises(InputError, match="share of the data"):
        DensityLoss(3)
    with pytest.raises(InputError, match="changes the batch's shape"):
        OrbitSimilarityLoss([lambda x: x[:2]])(model, x)
    with pytest.raises(InputError, match="one tangent vector per sample"):
        TangentInvarianceLoss([lambda x: x[:2]])(model, x)
    with pytest.raises(InputError, match="`transforms` is empty"):
        OrbitSimilarityLoss([])
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        SetSimilarityLoss()(torch.tanh, x, None)
