"""The neighbor map: its gradient is the plain one's, and what it is for, it does."""

import pytest
import torch
from torch.testing import assert_close

import reference
from vicinal.neighbors.tsne import (
    attraction,
    by_grid,
    neighbor_map,
    on_grid,
    pairwise,
)


def near_of(z, k):
    return torch.cdist(z, z).fill_diagonal_(torch.inf).topk(k, largest=False).indices


@pytest.mark.parametrize(
    ("grid", "error", "repulsion"),
    [(0.5, 0.05, by_grid), (0.1, 0.001, by_grid), (0.5, 1e-5, pairwise)],
)
def test_the_slope_is_that_of_the_plain_sums(rng, monkeypatch, grid, error, repulsion):
    monkeypatch.setattr("vicinal.neighbors.tsne.GRID", grid)
    z = torch.randn(40, 5, generator=rng)
    near, places = near_of(z, 4), 12 * torch.rand(40, 2, generator=rng)
    pull = attraction(places, near) / (2 * near.numel())
    slope = 4 * (pull - repulsion(places))
    want = torch.tensor(reference.tsne_slope(places.tolist(), near.tolist()))
    assert float((slope - want).abs().max() / want.abs().max()) < error


def test_shares_of_the_grid_reproduce_the_place_they_stand_for(rng):
    places = 30 * torch.rand(50, 2, generator=rng)
    index, share, side, gap = on_grid(places)
    assert_close(share.sum(1), torch.ones(50))
    rows, columns = index.view(50, 16) // side, index.view(50, 16) % side
    found = torch.stack([(share * rows).sum(1), (share * columns).sum(1)], 1)
    assert_close((found - 1) * gap + places.amin(0), places, atol=1e-3, rtol=0)
    assert gap <= 0.5


def test_groups_that_never_touch_stay_apart_and_keep_their_neighbors(rng):
    kind = torch.arange(240) % 4
    z = torch.randn(240, 8, generator=rng) + 12 * torch.eye(8)[kind]
    near = near_of(z, 10)
    places = neighbor_map(near, z[:, :2])
    found = near_of(places, 10)
    assert bool((kind[found] == kind[:, None]).all())
    kept = (found[:, :, None] == near[:, None, :]).any(2).float().mean()
    assert kept > 0.5


def test_rows_too_many_for_pairs_keep_their_neighbors_on_the_grid_too(rng, monkeypatch):
    monkeypatch.setattr("vicinal.neighbors.tsne.PAIRWISE", 10)
    test_groups_that_never_touch_stay_apart_and_keep_their_neighbors(rng)


def test_a_map_is_the_same_each_time_and_survives_equal_rows(rng):
    z = torch.randn(30, 3, generator=rng).repeat(4, 1)
    near = near_of(z, 5)
    first = neighbor_map(near, z[:, :2], steps=60)
    assert torch.equal(first, neighbor_map(near, z[:, :2], steps=60))
    assert bool(torch.isfinite(first).all())
    assert bool(torch.isfinite(neighbor_map(near, torch.zeros(120, 2), steps=20)).all())
