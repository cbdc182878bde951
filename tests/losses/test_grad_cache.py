"""Micro-batches of activations, one loss over all pairs."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.losses import GradCache, NTXentLoss, ProxyNCALoss, TripletLoss


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.mark.parametrize("micro_batch", [1, 4, 100])
@pytest.mark.parametrize("loss", [TripletLoss(), NTXentLoss(), ProxyNCALoss(3, 3).double()])
def test_value_and_gradient_are_those_of_the_whole_batch(loss, micro_batch, rng):
    x, y = torch.randn(9, 4, generator=rng, dtype=torch.float64), torch.arange(9) % 3
    plain, cached = net(), net()
    expected = loss(plain(x), y)
    expected.backward()
    found = GradCache(cached, loss, micro_batch)(x, y)
    found.backward()
    assert_close(found, expected)
    for a, b in zip(cached.parameters(), plain.parameters(), strict=True):
        assert_close(a.grad, b.grad)


def test_no_activation_outlives_its_micro_batch(rng):
    live, most = set(), 0

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.clone())
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            ctx.saved_tensors  # noqa: B018  # unpacking is what triggers the second forward
            live.discard(min(live))
            return g

    class Layer(nn.Module):
        def forward(self, x):
            nonlocal most
            if torch.is_grad_enabled() and x.grad_fn is not None:
                live.add(len(live))
                most = max(most, len(live))
            return Watched.apply(x)

    model = nn.Sequential(nn.Linear(4, 3), Layer())
    step = GradCache(model, lambda z, y: z.square().sum(), 2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        loss = step(torch.randn(8, 4, generator=rng), None)
    assert max(kept) <= 8 * 3  # the embeddings of all, the inputs of one: nothing larger is saved
    loss.backward()
    assert most > 0


def test_dropout_is_the_same_in_both_passes_and_statistics_move_once(rng):
    x, y = torch.randn(6, 4, generator=rng), torch.arange(6) % 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Dropout(0.5))
    twin = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Dropout(0.5))
    twin.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    expected = NTXentLoss()(torch.cat([twin(part) for part in x.split(3)]), y)
    expected.backward()
    torch.manual_seed(1)
    found = GradCache(model, NTXentLoss(), 3)(x, y)
    found.backward()
    assert_close(found, expected)
    assert_close(model[1].weight.grad, twin[1].weight.grad)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert_close(a, b)


def test_a_micro_batch_has_at_least_one_row():
    with pytest.raises(InputError, match="`micro_batch`"):
        GradCache(net(), NTXentLoss(), 0)
