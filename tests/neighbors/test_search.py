"""A search finds the k nearest rows, exactly, in one order, whatever the data."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS, pairwise_distances
from vicinal.neighbors.search import ExactSearch, make_search, smallest


@pytest.fixture(autouse=True)
def thresholds_from_a_few_thousand_rows(monkeypatch):
    """Both ways of selecting are met here: all at once below 2048 rows, by threshold above."""
    monkeypatch.setattr("vicinal.neighbors.search.smallest.SMALL", 2048)


def plain(queries, support, k, metric="sqeuclidean", exclude=None):
    """Distances and indices of the plain loop."""
    out = [-1] * len(queries) if exclude is None else exclude
    found = [
        reference.nearest(q.tolist(), support.tolist(), k, metric, int(e))
        for q, e in zip(queries, out, strict=True)
    ]
    return torch.tensor(found, dtype=torch.float64).unbind(2)


def test_rows_behind_the_last_whole_group_of_columns_are_found_too(rng):
    support = torch.randn(1003, 3, generator=rng)  # four groups of columns, and three rows more
    assert smallest._group_size(1003, 2 + ExactSearch().spare) == 4
    found = ExactSearch().build(support).query(support[-3:] + 1e-3, 2)
    distances, indices = plain(support[-3:] + 1e-3, support, 2)
    assert found.indices.tolist() == indices.long().tolist()
    assert found.indices[:, 0].tolist() == [1000, 1001, 1002]
    assert_close(found.distances.double(), distances, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbors_are_those_of_a_plain_loop(metric, dtype, rng):
    support = torch.randn(60, 4, generator=rng, dtype=dtype)
    queries = torch.randn(9, 4, generator=rng, dtype=dtype)
    exclude = torch.tensor([-1, 0, 59, -1, 7, 7, 7, 30, 31])
    distances, indices = ExactSearch(metric).build(support).query(queries, 7, exclude=exclude)
    expected, order = plain(queries, support, 7, metric, exclude)
    assert distances.dtype == dtype
    assert indices.tolist() == order.tolist()
    assert_close(distances.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [1, 20, 150])
@pytest.mark.parametrize("queries", [1, 40, 700])
def test_running_thresholds_lose_no_neighbor(k, queries, rng):
    support = torch.randn(5000, 8, generator=rng)
    support = support[support[:, 0].sort().indices]  # sorted: neighbors lie close in memory
    x = torch.randn(queries, 8, generator=rng)
    found = ExactSearch().build(support).query(x, k)
    exactly = pairwise_distances(x.double(), support.double())
    best = exactly.sort(dim=1, stable=True)
    assert_close(found.distances.double(), best.values[:, :k], rtol=1e-5, atol=1e-6)
    assert (found.indices == best.indices[:, :k]).float().mean() > 0.999  # float32 near ties
    assert (found.indices.sort(1).values.diff() != 0).all()


def test_a_threshold_estimated_too_low_or_too_high_changes_nothing(rng, monkeypatch):
    support, x = torch.randn(5000, 8, generator=rng), torch.randn(50, 8, generator=rng)
    search = ExactSearch().build(support)
    expected = search.query(x, 30)
    for threshold in (-torch.inf, torch.inf):
        monkeypatch.setattr(
            smallest,
            "_estimated_threshold",
            lambda b, c, m, t=threshold: b[0].new_full((len(b[0]), 1), t),
        )
        found = search.query(x, 30)
        assert torch.equal(found.indices, expected.indices)
        assert torch.equal(found.distances, expected.distances)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_ties_are_in_order_of_index_even_where_most_rows_are_duplicates(data):
    n = data.draw(st.integers(2, 40))
    grid = st.integers(0, 2)
    rows = data.draw(st.lists(st.tuples(grid, grid), min_size=n, max_size=n))
    metric = data.draw(st.sampled_from(["sqeuclidean", "euclidean"]))
    k = data.draw(st.integers(1, n - 1))
    x = torch.tensor(rows, dtype=torch.float32)
    found = ExactSearch(metric).build(x).query(x, k, exclude=torch.arange(n))
    expected, order = plain(x, x, k, metric, torch.arange(n))
    assert found.indices.tolist() == order.tolist()
    assert_close(found.distances.double(), expected, rtol=1e-6, atol=0)


def test_more_ties_at_the_kth_distance_than_spare_candidates_are_still_cut_by_index(rng):
    support = torch.randint(0, 2, (6000, 6), generator=rng).float() + 100.3  # 64 distinct rows
    x = support[:30]
    distances, indices = ExactSearch().build(support).query(x, 20, exclude=torch.arange(30))
    for i in range(30):
        same = (support == x[i]).all(1).nonzero()[:, 0].tolist()
        assert indices[i].tolist() == [j for j in same if j != i][:20]
    assert (distances == 0).all()


def test_equal_distances_to_different_rows_are_cut_by_index(rng):
    bits = torch.randint(0, 2, (5000, 16), generator=rng)
    x = torch.randint(0, 2, (20, 16), generator=rng)
    hamming = (x[:, None] != bits).sum(2)
    order = hamming.sort(dim=1, stable=True)
    found = ExactSearch().build(bits).query(x, 40)
    assert torch.equal(found.indices, order.indices[:, :40])
    assert torch.equal(found.distances, order.values[:, :40].float())


def test_all_rows_equal_give_the_first_indices_at_distance_zero():
    x = torch.full((3000, 5), 0.1)
    for metric in METRICS:
        found = ExactSearch(metric).build(x).query(x[:3], 4, exclude=torch.arange(3))
        assert found.indices.tolist() == [[1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4]]
        assert (found.distances == 0).all()


def test_a_duplicate_is_found_at_distance_zero_and_only_the_index_left_out_is_gone(rng):
    x = torch.randn(10, 3, generator=rng).repeat(3, 1)
    found = ExactSearch("cosine").build(x).query(x, 2, exclude=torch.arange(30))
    assert (found.distances == 0).all()
    assert (found.indices != torch.arange(30)[:, None]).all()
    assert (found.indices % 10 == torch.arange(30)[:, None] % 10).all()


def test_a_far_offset_costs_no_digits(rng):
    grid = torch.randint(0, 50, (3000, 8), generator=rng).float()  # exact in float32 at 1e5 too
    found = ExactSearch().build(grid + 1e5).query(grid[:40] + 1e5, 5)
    near = ExactSearch().build(grid).query(grid[:40], 5)
    assert torch.equal(found.indices, near.indices)
    assert torch.equal(found.distances, near.distances)


@pytest.mark.parametrize("metric", METRICS)
def test_permuting_the_support_changes_nothing_but_indices(metric, rng):
    x = torch.randn(4000, 16, generator=rng)
    order = torch.randperm(4000, generator=rng)
    one = ExactSearch(metric).build(x).query(x[:50], 10)
    two = ExactSearch(metric).build(x[order]).query(x[:50], 10)
    assert torch.equal(one.distances, two.distances)
    assert torch.equal(one.indices, order[two.indices])


def test_zero_rows_are_at_cosine_distance_one_from_everything(rng):
    x = torch.randn(6, 3, generator=rng)
    x[2] = 0
    found = ExactSearch("cosine").build(x).query(x, 6)
    assert (found.distances[2] == 1).all()
    assert found.indices[2].tolist() == [0, 1, 2, 3, 4, 5]
    expected, _ = plain(x, x, 6, "cosine")
    assert_close(found.distances.double(), expected, atol=1e-6, rtol=1e-5)


def test_float64_rows_closer_than_float32_can_tell_are_told_apart():
    base = torch.ones(100, 3, dtype=torch.float64)
    support = base + torch.arange(100, dtype=torch.float64).flip(0)[:, None] * 1e-12
    found = ExactSearch("euclidean").build(support).query(base[:1], 3)
    assert found.indices.tolist() == [[99, 98, 97]]
    assert_close(found.distances[0, 1].item(), 1e-12 * math.sqrt(3), rtol=1e-3, atol=0)


def test_adding_and_removing_rows_is_building_anew(rng):
    x, new = torch.randn(300, 5, generator=rng), torch.randn(40, 5, generator=rng)
    gone = [0, 7, 7, 299, 310]
    for metric in METRICS:
        search = ExactSearch(metric).build(x)
        search.add(new)
        search.remove(gone)
        rows = torch.cat([x, new])[[i for i in range(340) if i not in gone]]
        anew = ExactSearch(metric).build(rows)
        assert torch.equal(search.support, rows)
        assert len(search) == len(rows)
        for a, b in zip(search.query(new, 9), anew.query(new, 9), strict=True):
            assert torch.equal(a, b)


def test_numpy_integers_and_half_precision_are_accepted(rng):
    x = torch.randint(0, 9, (20, 3), generator=rng)
    expected = ExactSearch().build(x.float()).query(x.float(), 3)
    for rows in (x.numpy(), x, x.half(), x.bfloat16()):
        assert torch.equal(ExactSearch().build(rows).query(rows, 3).indices, expected.indices)
    exclude = np.arange(20)
    found = ExactSearch().build(x).query(x, 1, exclude=exclude)
    assert (found.indices[:, 0] != torch.arange(20)).all()


def test_one_row_of_support_is_its_own_answer():
    found = ExactSearch().build([[1.0, 2.0]]).query([[1.0, 4.0]], 1)
    assert (found.distances.tolist(), found.indices.tolist()) == ([[4.0]], [[0]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.query(torch.zeros(1, 2), 6), r"`k`=6.*only 5 rows.*Pass k=5"),
        (lambda s: s.query(torch.zeros(1, 2), 5, exclude=[0]), r"only 4 rows.*Pass k=4"),
        (lambda s: s.query(torch.zeros(1, 2), 0), "at least 1"),
        (lambda s: s.query(torch.zeros(1, 3), 1), "3 dimensions"),
        (lambda s: s.query(torch.tensor([[0.0, math.nan]]), 1), "`x`.*rows 0"),
        (lambda s: s.query(torch.tensor([[1e30, 0]]), 1), r"too large.*double"),
        (lambda s: s.query(torch.zeros(1, 2), 1, exclude=[0, 1]), "each of the 1 queries"),
        (lambda s: s.query(torch.zeros(1, 2), 1, exclude=[5]), r"-1\.\.4"),
        (lambda s: s.add(torch.tensor([[0.0, math.inf]])), "`rows`.*rows 0"),
        (lambda s: s.remove([5]), r"0\.\.4"),
        (lambda s: s.remove(range(5)), "every row"),
        (lambda s: s.build(torch.zeros(0, 2)), "`support` is empty"),
        (lambda s: s.build(torch.tensor([[0.0], [math.nan]])), "`support`.*rows 1"),
        (lambda s: ExactSearch().query(torch.zeros(1, 2), 1), "build"),
        (lambda s: ExactSearch("cosin"), "Did you mean 'cosine'"),
    ],
)
def test_wrong_input_earns_a_sentence(call, words):
    search = ExactSearch().build(torch.arange(10.0).view(5, 2))
    with pytest.raises(InputError, match=words):
        call(search)


def test_a_search_is_made_by_name_or_taken_as_given():
    mine = ExactSearch("cosine")
    assert make_search(mine, "cosine") is mine
    assert isinstance(make_search("exact", "euclidean"), ExactSearch)
    with pytest.raises(InputError, match="metric='cosine'"):
        make_search(mine, "euclidean")
    with pytest.raises(InputError, match="Did you mean 'exact'"):
        make_search("exakt", "euclidean")
