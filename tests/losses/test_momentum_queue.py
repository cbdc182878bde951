"""MoCo: its sum, its queue, its slow network; and several labels as soft targets."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import reference
from vicinal import losses
from vicinal.checks import InputError


@pytest.fixture
def views(rng):
    return [torch.randn(n, 3, generator=rng, dtype=torch.float64) for n in (4, 4, 7)]


def test_the_loss_is_its_sum_over_the_queue(views):
    rows = losses.moco_loss(*views, temperature=0.3, reduction="none")
    expected = reference.moco_rows(*views, 0.3)
    assert_close(rows, torch.tensor(expected, dtype=torch.float64))


def test_it_is_derived_to_any_order_and_by_torch_func(views):
    q, k, u = (t.clone().requires_grad_() for t in views)
    call = lambda q, k, u: losses.moco_loss(q, k, u, temperature=0.3)
    assert torch.autograd.gradcheck(call, (q, k, u))
    assert torch.autograd.gradgradcheck(call, (q, k, u), atol=1e-6)
    (grad,) = torch.autograd.grad(call(q, k, u), q)
    assert_close(torch.func.grad(call)(*views), grad)
    batches = torch.stack([views[0], views[1]])
    each = torch.stack([call(one, *views[1:]) for one in batches])
    assert_close(torch.func.vmap(call, (0, None, None))(batches, *views[1:]), each)
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*views), call(*views))


def test_a_queue_holds_the_keys_of_the_last_batches_without_gradient(views):
    q, k, _ = views
    loss = losses.MoCoLoss(dim=3, size=6).double()
    keys = k.clone().requires_grad_()
    assert loss(q, keys) == 0
    value = loss(q.requires_grad_(), keys + 1)
    assert_close(value, losses.moco_loss(q, k + 1, k))
    value.backward()
    assert keys.grad is None
    assert len(loss.queue) == 6
    loss.eval()(q, k)
    assert sorted(loss.queue.reference.tolist()) == sorted([*k[2:].tolist(), *(k + 1).tolist()])


def test_the_slow_network_is_an_average_of_the_fast_one():
    fast = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    slow = copy.deepcopy(fast)
    before = slow[0].weight.detach().clone()
    nn.init.normal_(fast[0].weight)
    fast[1].running_mean.fill_(3.0)
    losses.momentum_update(slow, fast, 0.9)
    assert_close(slow[0].weight.detach(), 0.9 * before + 0.1 * fast[0].weight.detach())
    assert_close(slow[1].running_mean, fast[1].running_mean)
    with pytest.raises(InputError, match="two copies of one network"):
        losses.momentum_update(nn.Linear(2, 2), fast)
    with pytest.raises(InputError, match="`momentum` must lie"):
        losses.momentum_update(slow, fast, 1.5)


def test_views_of_other_rows_are_refused(views):
    with pytest.raises(InputError, match="two views of the same rows"):
        losses.moco_loss(views[0], views[2], views[2])


def test_a_pair_counts_by_the_chance_of_a_common_label(rng):
    hot = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    targets = losses.multi_label_targets(hot)
    assert_close(targets @ targets.T, torch.tensor(
        [[0.5, 0.5, 0.0, 0.25], [0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.5], [0.25, 0.0, 0.5, 0.5]]
    ))  # fmt: skip
    assert_close(losses.multi_label_targets(hot, epsilon=0.3).sum(1), torch.ones(4))
    x = torch.randn(4, 3, generator=rng)
    one = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]])
    hard = losses.soft_nearest_neighbor_loss(x, one.argmax(1))
    assert_close(losses.soft_nearest_neighbor_loss(x, losses.multi_label_targets(one)), hard)
    with pytest.raises(InputError, match="row 1 has no label"):
        losses.multi_label_targets([[1, 0], [0, 0]])
    with pytest.raises(InputError, match=r"must be \(n, c\)"):
        losses.multi_label_targets([1, 0])
