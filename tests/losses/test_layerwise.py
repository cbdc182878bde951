"""One loss on several layers, in one forward."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.losses import (
    LayerwiseLoss,
    Maximize,
    ProxyNCALoss,
    Ramp,
    SoftNearestNeighborLoss,
    SupervisedContrastiveLoss,
    TripletLoss,
    soft_nearest_neighbor_loss,
    supervised_contrastive_loss,
    triplet_loss,
)
from vicinal.neighbors import optimal_temperature


class Total(nn.Module):
    def forward(self, x):
        return x.sum()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


@pytest.fixture
def batch(rng):
    return torch.randn(6, 1, 6, 6, generator=rng), torch.arange(6) % 2


def test_it_is_the_weighted_sum_over_flattened_activations(model, batch):
    x, y = batch
    loss = LayerwiseLoss(SupervisedContrastiveLoss(), layers={"1": 0.5, "3": -2.0})
    with loss.watch(model) as activations:
        model(x)
    hidden = model[:2](x)
    expected = 0.5 * supervised_contrastive_loss(hidden.flatten(1), y)
    expected = expected - 2 * supervised_contrastive_loss(model(x), y)
    assert_close(loss(activations, y), expected)
    assert set(loss.terms(activations, y)) == {"1", "3"}


class Seen(torch.autograd.Function):
    """Notes where the gradient that comes back lies in memory."""

    @staticmethod
    def forward(ctx, x, places):
        ctx.places = places
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.places.append(grad.data_ptr())
        return grad, None


def test_the_networks_own_gradient_is_added_to_that_of_the_loss_in_place(batch):
    x, places = batch[0].requires_grad_(), []
    hidden = Seen.apply(x, places)
    own = (3 * hidden).sum()
    loss = LayerwiseLoss(lambda rows, y: Seen.apply(rows, places).square().sum(), {"a": 1.0})
    (own + loss({"a": hidden}, batch[1])).backward()
    assert_close(x.grad, 3 + 2 * x.detach())
    of_loss, of_both = places
    assert of_loss == of_both


def test_derivatives_through_pictures_of_a_layer_are_right_to_the_second_order(rng):
    h = torch.randn(4, 2, 1, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1])
    layerwise = LayerwiseLoss(SoftNearestNeighborLoss(), {"a": 1.0})

    def loss(h):
        return layerwise({"a": h}, y)

    assert torch.autograd.gradcheck(loss, h, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(loss, h)
    (slope,) = torch.autograd.grad(loss(h), h)
    assert_close(torch.func.grad(loss)(h.detach()), slope)


def test_a_negative_weight_raises_a_layers_loss_and_a_positive_one_lowers_it(model, batch):
    x, y = batch
    for weight in (1.0, -1.0):
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
        loss = LayerwiseLoss(SupervisedContrastiveLoss(temperature=1.0), layers={"1": weight})
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        values = []
        for _ in range(20):
            with loss.watch(net) as activations:
                net(x)
            values.append(float(loss.terms(activations, y)["1"].detach()))
            optimizer.zero_grad()
            loss(activations, y).backward()
            optimizer.step()
        assert (values[-1] < values[0]) == (weight > 0)


def test_each_layer_may_have_its_own_loss_with_parameters(model, batch):
    x, y = batch
    losses = {n: SupervisedContrastiveLoss(temperature=nn.Parameter(torch.ones(()))) for n in "13"}
    loss = LayerwiseLoss(losses, layers={"1": 1.0, "3": 1.0})
    assert len(loss.losses) == 2
    with loss.watch(model) as activations:
        model(x)
    loss(activations, y).backward()
    assert all(module.temperature.grad is not None for module in losses.values())


def test_the_model_is_left_as_it_was(model, batch):
    loss = LayerwiseLoss(SupervisedContrastiveLoss(), layers={"1": 1.0})
    with pytest.raises(RuntimeError), loss.watch(model):
        model(torch.ones(2, 5))
    assert not any(module._forward_hooks for module in model.modules())


def test_of_a_layer_that_gives_several_tensors_the_first_counts_as_in_capture(batch):
    x, y = batch
    net = nn.Sequential(nn.Flatten(), nn.LSTM(36, 4))
    loss = LayerwiseLoss(SupervisedContrastiveLoss(), {"1": 1.0})
    with loss.watch(net) as activations:
        sequence, _ = net(x)
    assert_close(loss(activations, y), supervised_contrastive_loss(sequence, y))


def test_wrong_layers_are_named(model, batch):
    x, y = batch
    named = nn.Sequential()
    named.add_module("features", nn.Flatten())
    named.add_module("sum", Total())
    with (
        pytest.raises(InputError, match=r"no layer 'feature'.*features"),
        LayerwiseLoss(SupervisedContrastiveLoss(), {"feature": 1.0}).watch(named),
    ):
        pass
    with (
        pytest.raises(InputError, match="layer 'sum' gives a tensor of shape"),
        LayerwiseLoss(SupervisedContrastiveLoss(), {"sum": 1.0}).watch(named),
    ):
        named(x)
    with pytest.raises(InputError, match="lacks layer '1'"):
        LayerwiseLoss(SupervisedContrastiveLoss(), {"1": 1.0})({}, y)
    with pytest.raises(InputError, match="empty"):
        LayerwiseLoss(SupervisedContrastiveLoss(), {})
    with pytest.raises(InputError, match="no entry for layer '3'"):
        LayerwiseLoss({"1": SupervisedContrastiveLoss()}, {"1": 1.0, "3": 1.0})


def test_a_weight_may_ramp_with_the_epoch_and_a_layer_of_weight_0_is_not_looked_at(model, batch):
    x, y = batch
    calls = []

    def counted(h, labels):
        calls.append(len(h))
        return supervised_contrastive_loss(h, labels)

    loss = LayerwiseLoss(counted, layers={"1": Ramp(2.0, start=2, stop=4)})
    with loss.watch(model) as activations:
        model(x)
    at_first = loss(activations, y)
    assert at_first == 0
    assert not calls
    at_first.backward(retain_graph=True)  # attached, gradient 0
    assert not any(p.grad.any() for p in model[0].parameters())
    for epoch, weight in [(3, 1.0), (3.5, 1.5), (9, 2.0)]:
        loss.set_epoch(epoch)
        assert loss.weights() == {"1": weight}
        assert_close(loss(activations, y), weight * loss.terms(activations, y)["1"])


def test_the_epoch_reaches_the_losses_of_the_layers(model):
    inner = SoftNearestNeighborLoss(lambda epoch: 1.0 + epoch)
    LayerwiseLoss(inner, layers={"1": 1.0}).set_epoch(3)
    assert float(inner.epoch) == 3


def test_maximizing_is_said_in_one_way_for_every_loss(rng):
    x, y = torch.randn(8, 3, generator=rng).requires_grad_(), torch.arange(8) % 2
    for loss in (TripletLoss(), SupervisedContrastiveLoss(), triplet_loss):
        assert_close(Maximize(loss)(x, y), -loss(x, y))
        raised = LayerwiseLoss(loss, layers={"1": -0.5})({"1": x}, y)
        assert_close(raised, -0.5 * loss(x, y))


def test_what_a_maximized_loss_learns_itself_still_lowers_it(rng):
    x, y = torch.randn(12, 3, generator=rng).requires_grad_(), torch.arange(12) % 3
    loss = SoftNearestNeighborLoss(2.0, learn_temperature=True)
    twin = SoftNearestNeighborLoss(2.0, learn_temperature=True, entangle="max")
    down = torch.autograd.grad(loss(x, y), [x, loss.log_temperature])
    up = torch.autograd.grad(Maximize(loss)(x, y), [x, loss.log_temperature])
    assert_close(up, (-down[0], down[1]))
    assert_close(up, torch.autograd.grad(twin(x, y), [x, twin.log_temperature]))
    layerwise = LayerwiseLoss(loss, layers={"1": -1.0})({"1": x}, y)
    assert_close(up, torch.autograd.grad(layerwise, [x, loss.log_temperature]))
    proxies = ProxyNCALoss(3, 3)
    down, up = (torch.autograd.grad(p(x, y), proxies.parameters())
                for p in (proxies, Maximize(proxies)))  # fmt: skip
    assert_close(down, up)
    with pytest.raises(InputError, match="minimized again"):
        Maximize(twin)


def test_a_shared_loss_that_keeps_its_temperature_keeps_one_for_each_layer(rng):
    y = torch.arange(12) % 3
    hidden = {"1": torch.randn(12, 3, generator=rng), "2": 5 * torch.randn(12, 3, generator=rng)}
    loss = LayerwiseLoss(SoftNearestNeighborLoss("optimal", every=10), {"1": 1.0, "2": 1.0})
    loss(hidden, y)
    for name, term in loss.terms(hidden, y).items():
        best = optimal_temperature(hidden[name], y)
        assert_close(term, soft_nearest_neighbor_loss(hidden[name], y, temperature=best))
