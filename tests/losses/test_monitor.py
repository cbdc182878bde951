"""Layers watched during training."""

import pytest
import torch
from torch import nn

from vicinal.checks import InputError
from vicinal.losses import EntanglementCallback


@pytest.fixture
def probe():
    torch.manual_seed(0)
    y = torch.arange(60) % 3
    return torch.randn(60, 6) + 2 * nn.functional.one_hot(y, 6).float(), y


def test_a_trained_layer_is_seen_to_part_the_classes_and_every_step_is_logged(probe):
    x, y = probe
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    logged = []
    watch = EntanglementCallback(
        probe, ["1", "2"], log=lambda values, step: logged.append((step, values)), every=20
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for step in range(61):
        model.train()
        watch(model, step)
        assert model.training  # the loop finds the model as it left it
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert [step for step, _ in logged] == [0, 20, 40, 60]
    assert set(logged[0][1]) == {"entanglement/1", "entanglement/2"}
    assert watch.history["2"][60] < 0.5 * watch.history["2"][0]
    assert watch.as_table()["step"] == [0, 20, 40, 60]
    assert watch.as_table()["1"][0] == logged[0][1]["entanglement/1"]
    assert "4 steps measured" in repr(watch)


def test_a_wrong_call_earns_a_sentence(probe):
    with pytest.raises(InputError, match="list of names"):
        EntanglementCallback(probe, "1")
    with pytest.raises(InputError, match="every"):
        EntanglementCallback(probe, ["1"], every=0)
    with pytest.raises(InputError, match="no layer 'fc'"):
        EntanglementCallback(probe, ["fc"])(nn.Sequential(nn.Linear(6, 2)), 0)
