"""Training on worst-case inputs does what it is for."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vicinal.checks import InputError
from vicinal.perturbations import adversarial_loss, adversarial_step, fgsm, pgd


def two_features(n, rng):
    """A weak but exact feature and a strong noisy one: plain training leans on the weak one."""
    y = torch.randint(2, (n,), generator=rng)
    sign = 2.0 * y - 1
    noisy = torch.where(torch.rand(n, generator=rng) < 0.9, sign, -sign)
    x = torch.stack([0.5 + 0.05 * sign, 0.5 + 0.4 * noisy], 1)
    return x, y


def train(step, steps=200):
    torch_net = nn.Linear(2, 2)
    nn.init.zeros_(torch_net.weight)
    nn.init.zeros_(torch_net.bias)
    optimizer = torch.optim.Adam(torch_net.parameters(), lr=0.3)
    for _ in range(steps):
        step(torch_net, optimizer)
    return torch_net


def test_adversarial_training_gives_up_the_feature_that_an_attack_can_flip(rng):
    x, y = two_features(200, rng)

    def plain(net, optimizer):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    def hard(net, optimizer):
        adversarial_step(net, x, y, optimizer, 0.1, steps=3, generator=rng)

    accuracy = {
        name: float((net(pgd(net, x, y, 0.1, generator=rng)).argmax(1) == y).float().mean())
        for name, net in {"plain": train(plain), "hard": train(hard)}.items()
    }
    assert accuracy["plain"] < 0.6
    assert accuracy["hard"] > 0.85


def test_the_loss_is_taken_at_the_moved_inputs_and_mixes_with_the_clean_one(rng):
    net = nn.Linear(4, 3)
    x, y = torch.rand(20, 4, generator=rng), torch.randint(3, (20,), generator=rng)
    seed = torch.Generator().manual_seed
    moved = pgd(net, x, y, 0.1, steps=7, generator=seed(7))
    at_moved, clean = F.cross_entropy(net(moved), y), F.cross_entropy(net(x), y)
    assert torch.allclose(adversarial_loss(net, x, y, 0.1, generator=seed(7)), at_moved)
    mixed = adversarial_loss(net, x, y, 0.1, clean_share=0.3, generator=seed(7))
    assert torch.allclose(mixed, 0.7 * at_moved + 0.3 * clean)
    assert mixed.requires_grad


def test_a_step_lowers_the_loss_and_returns_the_one_before(rng):
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.rand(20, 4, generator=rng), torch.randint(3, (20,), generator=rng)
    losses = [adversarial_step(net, x, y, optimizer, 0.05, generator=rng) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert net.training
    assert F.cross_entropy(net(fgsm(net, x, y, 0.05)), y).item() < losses[0]


def test_a_share_outside_its_range_is_an_error(rng):
    with pytest.raises(InputError, match=r"`clean_share` must lie in \[0, 1\]"):
        adversarial_loss(
            nn.Linear(2, 2), torch.rand(2, 2), torch.tensor([0, 1]), 0.1, clean_share=2
        )
