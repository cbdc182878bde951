import math

import numpy as np
import pytest
import torch

import reference
from vicinal.checks import InputError
from vicinal.evaluation import entanglement
from vicinal.evaluation.inputs import row_order
from vicinal.neighbors.tiles.masses import log_masses


def snnl(x, y, temperature):
    """Frosst 2019, eq. 1 in loops: rows without a peer are left out."""
    losses = []
    for i in range(len(x)):
        near = {j: -reference.distance(x[i], x[j]) / temperature for j in range(len(x)) if j != i}
        own = [w for j, w in near.items() if y[j] == y[i]]
        if own:
            losses.append(reference.log_sum_exp(near.values()) - reference.log_sum_exp(own))
    return sum(losses) / len(losses)


@pytest.fixture
def layers():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 50)
    noise = rng.normal(size=(50, 2))
    return {"mixed": noise, "sorted": noise + 8 * np.eye(3, 2)[y] * [1, 1]}, y


def test_each_layer_is_its_smallest_loss_with_the_temperature_that_gives_it(layers):
    acts, y = layers
    report = entanglement(acts, y)
    for name, x in acts.items():
        entry = report[name]
        assert entry.loss == pytest.approx(snnl(x, y, entry.temperature), rel=1e-9)
        grid = [snnl(x, y, t) for t in np.geomspace(1e-2, 1e3, 30)]
        assert entry.loss <= min(grid)
        assert (entry.rows, entry.dimensions) == x.shape
    assert [entry.layer for entry in report.layers] == list(acts)
    assert report["sorted"].ratio < 0.5 < report["mixed"].ratio <= 1


def test_the_chance_level_is_that_of_neighbors_drawn_at_random(layers):
    acts, y = layers
    peers = [sum(y == label) - 1 for label in y]
    want = np.mean([-math.log(p / 49) for p in peers])
    assert entanglement(acts, y)["mixed"].chance == pytest.approx(want)


def test_captured_activations_carry_their_labels_and_one_matrix_is_one_layer(layers):
    acts, y = layers

    class Captured:
        layers = {name: torch.tensor(x) for name, x in acts.items()}  # noqa: RUF012
        labels = torch.tensor(y)

    assert entanglement(Captured()) == entanglement(acts, y)
    assert entanglement(acts["mixed"], y).layers[0].loss == entanglement(acts, y)["mixed"].loss
    assert "chance" in str(entanglement(acts, y))


def test_one_class_alone_is_not_entangled_with_anything(layers):
    acts, y = layers
    entry = entanglement(acts["mixed"], np.zeros_like(y)).layers[0]
    assert (entry.loss, entry.chance, entry.ratio) == (0, 0, 0)


def test_wrong_input_is_named(layers):
    acts, y = layers
    with pytest.raises(InputError, match="no row has a peer"):
        entanglement(acts, np.arange(50))
    with pytest.raises(InputError, match="labels"):
        entanglement(acts)
    with pytest.raises(InputError, match="no layer"):
        entanglement({}, y)
    with pytest.raises(InputError, match="50 labels"):
        entanglement(acts, y[:3])


def test_a_layer_that_knows_nothing_of_the_classes_is_at_chance_with_an_infinite_temperature():
    x = np.repeat(np.arange(10.0), 2)[:, None]
    entry = entanglement(x, np.tile([0, 1], 10)).layers[0]  # each twin is of the other class
    assert (entry.ratio, entry.temperature) == (1, math.inf)


def test_the_error_is_the_spread_of_losses_with_one_group_of_rows_left_out():
    """The jackknife in loops, with the groups it draws for rows in their sorted order."""
    rng = np.random.default_rng(1)
    y = np.sort(rng.integers(0, 2, 30))
    x = np.sort(rng.normal(size=30) + y)[:, None]
    found = entanglement({"a": x}, y)["a"]
    order = np.lexsort((row_order(x), y))
    x, y = x[order], y[order]
    groups = np.random.default_rng(0).permutation(30) % 20
    left = [snnl(x[groups != g], y[groups != g], found.temperature) for g in range(20)]
    assert found.se == pytest.approx(math.sqrt(19 * np.var(left)), rel=1e-9)


def test_the_error_is_about_the_spread_over_new_samples_and_that_of_single_terms_is_too_small():
    losses, errors, naive = [], [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, 150)
        x = rng.normal(size=(150, 4)) + 1.2 * np.eye(3, 4)[y]
        found = entanglement({"a": x}, y)["a"]
        mass = log_masses(torch.tensor(x), torch.tensor(y), temperature=found.temperature)
        losses.append(found.loss)
        errors.append(found.se)
        naive.append(float((mass.all - mass.own).std()) / math.sqrt(150))
    spread = np.std(losses, ddof=1)
    assert 0.8 < np.mean(errors) / spread < 1.5
    assert np.mean(naive) / spread < 0.9


def test_the_error_does_not_depend_on_the_order_of_the_rows(layers):
    rows, y = layers
    turned = np.random.default_rng(2).permutation(len(y))
    here, there = (
        entanglement(rows, y),
        entanglement({k: v[turned] for k, v in rows.items()}, y[turned]),
    )
    assert [e.se for e in here.layers] == [e.se for e in there.layers]
