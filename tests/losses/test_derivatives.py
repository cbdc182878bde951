"""Gradients of gradients: penalties, meta-learning, Hessians, against loops and dense formulas."""

import pytest
import torch
from torch.testing import assert_close

import reference
from vicinal import losses
from vicinal.checks import InputError
from vicinal.neighbors import derivatives, pairwise_distances
from vicinal.neighbors.tiles.masses import precise_log_masses

METRICS = ("sqeuclidean", "euclidean", "cosine")


def mean(rows):
    known = [row for row in rows if row is not None]
    return sum(known) / len(known)


# What a loss is in plain loops; labels 0, 1, 2, 0, 1, 2.
LOOPS = {
    "snnl": (
        lambda x, y: losses.soft_nearest_neighbor_loss(x, y, temperature=0.7),
        lambda x, y: reference.snnl(x, y, 0.7),
    ),
    "snnl euclidean": (
        lambda x, y: losses.soft_nearest_neighbor_loss(x, y, metric="euclidean"),
        lambda x, y: reference.snnl(x, y, 1.0, "euclidean"),
    ),
    "graph smoothness": (
        lambda x, y: losses.graph_smoothness_loss(x, y),
        lambda x, y: reference.graph_smoothness(unit(x), y),
    ),
    "supervised contrastive": (
        lambda x, y: losses.supervised_contrastive_loss(x, y, temperature=0.5),
        lambda x, y: mean(reference.supervised_contrastive_rows(x, y, 0.5)),
    ),
    "nt-xent": (
        lambda x, y: losses.nt_xent_loss(x, y, temperature=0.5),
        lambda x, y: mean(reference.nt_xent_rows(x, y, 0.5)),
    ),
    "soft info_nce": (
        lambda x, y: losses.info_nce(x, losses.smooth_labels(y, 3, 0.2).double()),
        lambda x, y: mean(reference.info_nce_rows(x, losses.smooth_labels(y, 3, 0.2).double())),
    ),
    "mixed info_nce": (
        lambda x, y: losses.info_nce(x, mixed(y)),
        lambda x, y: mean(reference.info_nce_rows(x, mixed(y).dense().double())),
    ),
}


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


def mixed(y):
    return losses.MixedTargets(y, y.flip(0), torch.linspace(0, 1, len(y)).double(), 0.1, 3)


def slopes(f, x, step):
    """∂f/∂x by central differences, one entry at a time."""
    found = torch.zeros_like(x)
    for i in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved.view(-1)[i] += sign * step
            ends.append(float(f(moved)))
        found.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
    return found


def batch(rng, n=6, d=3):
    return torch.randn(n, d, generator=rng, dtype=torch.float64), torch.arange(n) % 3


@pytest.mark.parametrize("name", LOOPS)
def test_a_gradient_penalty_has_the_gradient_of_the_loops(name, rng):
    call, loops = LOOPS[name]
    x, y = batch(rng)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(call(x, y), x, create_graph=True)
    grad.square().sum().backward()
    penalty = lambda x: slopes(lambda x: loops(x, y), x, 1e-5).square().sum()
    assert_close(x.grad, slopes(penalty, x, 1e-3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_of_maml_has_the_gradient_of_the_loops(name, rng):
    call, loops = LOOPS[name]
    (x, y), (held_out, _) = batch(rng), batch(rng)
    w = torch.randn(3, 3, generator=rng, dtype=torch.float64).requires_grad_()
    (inner,) = torch.autograd.grad(call(x @ w, y), w, create_graph=True)
    call(held_out @ (w - 0.3 * inner), y).backward()

    def adapted(w):
        step = slopes(lambda w: loops(x @ w, y), w, 1e-5)
        return loops(held_out @ (w - 0.3 * step), y)

    assert_close(w.grad, slopes(adapted, w, 1e-3), rtol=1e-4, atol=1e-5)


def settings():
    """Calls of (x, reference, temperature): soft labels, references and learned T, every metric."""
    y, other = torch.arange(6) % 3, torch.arange(5) % 3
    soft, soft_other = (losses.smooth_labels(t, 3, 0.3).double() for t in (y, other))
    for name in ("soft_nearest_neighbor", "supervised_contrastive", "nt_xent"):
        loss = getattr(losses, f"{name}_loss")
        for metric in METRICS:
            for kind, a, b in (("hard", y, other), ("soft", soft, soft_other)):
                yield (
                    f"{name} {metric} {kind}",
                    lambda x, r, t, f=loss, m=metric, a=a: f(x, a, temperature=t, metric=m),
                )
                yield (
                    f"{name} {metric} {kind} reference",
                    lambda x, r, t, f=loss, m=metric, a=a, b=b: f(
                        x, a, temperature=t, metric=m, reference=r, reference_labels=b
                    ),
                )
    for k in (None, 2):
        for kind, a in (("hard", y), ("soft", soft)):
            yield (
                f"graph_smoothness k={k} {kind}",
                lambda x, r, t, k=k, a=a: losses.graph_smoothness_loss(x, a, k=k),
            )
    for metric in METRICS:
        yield f"triplet {metric}", lambda x, r, t, m=metric: losses.triplet_loss(x, y, metric=m)
        yield f"distances {metric}", lambda x, r, t, m=metric: pairwise_distances(x, r, m).sin()
        yield (
            f"tiles {metric}",
            lambda x, r, t, m=metric: precise_log_masses(x, y, t, m, None, None, tile=4)[0],
        )
    yield (
        "weighted",
        lambda x, r, t: losses.soft_nearest_neighbor_loss(
            x, y, temperature=t, weight=torch.arange(6.0) + 1
        ),
    )
    yield "n_pairs soft", lambda x, r, t: losses.n_pairs_loss(x, soft, temperature=t)
    yield "proxies", lambda x, r, t: losses.proxy_nca_loss(x, y, r[:3], temperature=t)
    yield "normalized softmax", lambda x, r, t: losses.normalized_softmax_loss(x, y, r[:3])
    for kind, keys in (("hard", other), ("soft", soft_other), ("mixed", mixed(other))):
        yield (
            f"info_nce noise {kind}",
            lambda x, r, t, k=keys: losses.info_nce(x, soft, temperature=t, noise_targets=k),
        )


SETTINGS = dict(settings())


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_be_derived_twice(name, rng):
    x, r = batch(rng)[0].requires_grad_(), batch(rng, 5)[0].requires_grad_()
    t = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(SETTINGS[name](x, r, t).sum(), x, create_graph=True)
    plain = torch.autograd.grad(SETTINGS[name](x, r, t).sum(), x)[0]
    assert_close(grad.detach(), plain, rtol=1e-9, atol=1e-11)

    def call(*given):  # attached to all three, whether or not the setting has a use for each
        return SETTINGS[name](*given) + sum(one.sum() * 0 for one in given)

    assert torch.autograd.gradgradcheck(call, (x, r, t), atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n", [40, 600])  # a small batch, and tiles
def test_a_penalty_on_float32_rows_is_that_of_the_dense_formula(n, metric, rng):
    x, y = torch.randn(n, 24, generator=rng), torch.arange(n) % 5

    def dense(x, y):
        rows = x / x.norm(dim=1, keepdim=True) if metric == "cosine" else x
        d = (rows[:, None] - rows).square().sum(2) + torch.eye(n, dtype=x.dtype)
        d = {"sqeuclidean": d, "euclidean": d.sqrt(), "cosine": d / 2}[metric]
        s = (-d / 4).masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
        own = s.masked_fill(y[:, None] != y, -torch.inf)
        return (s.logsumexp(1) - own.logsumexp(1)).mean()

    def ours(x, y):
        return losses.soft_nearest_neighbor_loss(x, y, temperature=4.0, metric=metric)

    found = []
    for loss, rows in ((ours, x.clone()), (dense, x.double())):
        rows.requires_grad_()
        (grad,) = torch.autograd.grad(loss(rows, y), rows, create_graph=True)
        grad.square().sum().backward()
        found.append(rows.grad.double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-4


def test_a_reference_made_from_the_rows_is_not_counted_twice(rng):
    x, y = batch(rng)
    bank = torch.randn(4, 3, generator=rng, dtype=torch.float64)

    def call(x):
        both = torch.cat([x * 2, bank])
        labels = torch.cat([y, torch.arange(4) % 3])
        return losses.soft_nearest_neighbor_loss(x, y, reference=both, reference_labels=labels)

    assert torch.autograd.gradgradcheck(call, x.requires_grad_(), atol=1e-6)


def test_a_batch_of_gradients_comes_back_at_once(rng):
    x, y = batch(rng)
    for loss in (losses.soft_nearest_neighbor_loss, losses.supervised_contrastive_loss):
        call = lambda x, f=loss: f(x, y, reduction="none")
        slow = torch.autograd.functional.jacobian(call, x)
        assert_close(torch.autograd.functional.jacobian(call, x, vectorize=True), slow)


# No pairs, or ordinary operations in any case: these are derived as far as memory goes.
ORDINARY = (
    "graph_smoothness k=2",
    "proxies",
    "normalized softmax",
    "n_pairs",
    "info_nce noise hard",
)
ORDINARY += tuple(f"supervised_contrastive {metric} soft" for metric in ("sqeuclidean", "cosine"))


@pytest.mark.parametrize("name", [name for name in SETTINGS if not name.startswith(ORDINARY)])
def test_too_many_pairs_for_a_second_derivative_earn_a_sentence(name, rng, monkeypatch):
    monkeypatch.setattr(derivatives, "PAIRS", 4)
    x, r = batch(rng)[0].requires_grad_(), batch(rng, 5)[0].requires_grad_()
    t = torch.tensor(0.8, dtype=torch.float64)
    value = SETTINGS[name](x, r, t).sum()
    assert torch.autograd.grad(value, x, retain_graph=True)[0].isfinite().all()
    with pytest.raises(InputError, match="too many for a derivative of a gradient"):
        torch.autograd.grad(value, x, create_graph=True)
