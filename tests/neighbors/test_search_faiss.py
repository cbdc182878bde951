"""Search through faiss answers as exact search does; inverted lists say what they miss."""

import builtins
import json
import subprocess
import sys
import warnings

import faiss
import numpy as np
import pytest
import torch

from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch, choice, cost, lists, make_search
from vicinal.neighbors.search import faiss as search_faiss
from vicinal.neighbors.search.faiss import FaissSearch


@pytest.fixture
def small(monkeypatch):
    """Lists, and codes in them, for supports of a few thousand rows."""
    monkeypatch.setattr(search_faiss, "LISTS_FROM", 2000)
    monkeypatch.setattr(lists, "_CODED_FROM", 2000)


def assert_agree(one, two):
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.distances, two.distances)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("queries", [1, 300])
def test_flat_faiss_and_torch_agree_to_the_bit(metric, dtype, queries, rng):
    support = torch.randn(3000, 12, generator=rng, dtype=dtype)
    x = torch.randn(queries, 12, generator=rng, dtype=dtype)
    exclude = torch.arange(queries)
    one = FaissSearch(metric).build(support).query(x, 20, exclude=exclude)
    assert_agree(one, ExactSearch(metric).build(support).query(x, 20, exclude=exclude))


@pytest.mark.parametrize("metric", METRICS)
def test_ties_duplicates_and_zero_rows_are_ordered_as_in_exact_search(metric, rng):
    support = torch.randint(0, 2, (4000, 6), generator=rng).float()  # 64 distinct rows, one zero
    one = FaissSearch(metric, "flat").build(support).query(support[:50], 30)
    assert_agree(one, ExactSearch(metric).build(support).query(support[:50], 30))


def test_adding_and_removing_rows_agree_with_exact_search(rng):
    x, new = torch.randn(900, 5, generator=rng), torch.randn(100, 5, generator=rng)
    one, two = FaissSearch("cosine").build(x), ExactSearch("cosine").build(x)
    for search in (one, two):
        search.add(new)
        search.remove([0, 5, 950])
    assert_agree(one.query(new, 9), two.query(new, 9))
    assert len(one) == 997


def test_a_graph_over_faiss_survives_edits(rng):
    x, new = torch.randn(500, 5, generator=rng), torch.randn(60, 5, generator=rng)
    graph = NeighborGraph.build(FaissSearch().build(x), 7)
    graph.add(new)
    graph.remove(range(0, 100, 3))
    anew = NeighborGraph.build(ExactSearch().build(graph.search.support), 7)
    assert torch.equal(graph.indices, anew.indices)


@pytest.mark.parametrize(
    "name", ["distance_compute_blas_threshold", "distance_compute_min_k_reservoir"]
)
def test_the_global_choices_of_faiss_are_as_others_left_them(name, rng):
    x = torch.randn(200, 4, generator=rng)
    before = getattr(faiss.cvar, name)
    setattr(faiss.cvar, name, 77)
    try:
        FaissSearch().build(x).query(x, 3)
        assert getattr(faiss.cvar, name) == 77
    finally:
        setattr(faiss.cvar, name, before)


def test_rows_whose_squares_leave_float32_are_searched_beside_faiss(rng):
    x = torch.randn(300, 5, generator=rng, dtype=torch.float64) * 1e30
    assert_agree(FaissSearch().build(x).query(x[:40], 7), ExactSearch().build(x).query(x[:40], 7))


@pytest.mark.parametrize("use_blas", [True, False])
def test_both_kernels_give_the_same_answer(use_blas, rng):
    x = torch.randn(2000, 16, generator=rng)
    search = FaissSearch().build(x)
    search._use_blas = use_blas
    assert_agree(search.query(x[:200], 5), ExactSearch().build(x).query(x[:200], 5))


def reading(probes, monkeypatch):
    """A search that reads so many lists, whatever is found."""
    fixed = lambda self, *_: setattr(self, "probes", min(probes, self.count))
    monkeypatch.setattr(lists.InvertedLists, "read_for", fixed)
    return FaissSearch(kind="ivf", recall=0.01)


def test_inverted_lists_tell_their_recall_and_more_probes_miss_less(rng, monkeypatch):
    x = torch.randn(8000, 8, generator=rng)
    few = reading(8, monkeypatch).build(x)
    many = reading(60, monkeypatch).build(x)
    exact = ExactSearch().build(x)
    assert not few.exact
    for search in (few, many):
        found, true = search.query(x[1::40], 100).indices, exact.query(x[1::40], 100).indices
        share = (found[:, :, None] == true[:, None, :]).any(2).float().mean()
        assert abs(float(share) - search.recall_.share) < 0.05
    assert few.recall_.share < many.recall_.share <= 1


def test_reading_every_list_is_exact_after_edits_too(rng, monkeypatch):
    monkeypatch.setattr(search_faiss, "LISTS_FROM", 100)
    x, new = torch.randn(3000, 6, generator=rng), torch.randn(50, 6, generator=rng)
    ivf, exact = reading(10**6, monkeypatch).build(x), ExactSearch().build(x)
    assert ivf.recall_.share == 1
    for search in (ivf, exact):
        search.remove(range(0, 900, 2))
        search.add(new)
        search.remove([1, 2500])
        search.add(new)
    exclude = torch.arange(len(exact))
    one, two = (s.query(s.support, 8, exclude=exclude) for s in (ivf, exact))
    assert_agree(one, two)


def test_lists_that_hold_too_few_rows_never_leak_a_missing_neighbor(rng, monkeypatch):
    monkeypatch.setattr(search_faiss, "LISTS_FROM", 100)
    x = torch.randn(400, 4, generator=rng)
    search = reading(1, monkeypatch).build(x)
    found = search.query(x[:20], 350)
    assert found.distances.isfinite().all()
    assert_agree(found, ExactSearch().build(x).query(x[:20], 350))


def test_auto_takes_lists_where_exact_search_costs_more_on_this_machine(small, rng, monkeypatch):
    x = torch.randn(20_000, 4, generator=rng)
    monkeypatch.setattr(cost, "product_rate", lambda: 1e12)
    assert FaissSearch().build(x).exact
    monkeypatch.setattr(cost, "product_rate", lambda: 1e6)  # operations a second
    assert not FaissSearch().build(x).exact
    assert FaissSearch(kind="flat").build(x).exact
    assert FaissSearch(kind="ivf", recall=1).build(x).exact


def test_auto_gives_lists_up_where_most_must_be_read(small, rng, monkeypatch):
    monkeypatch.setattr(cost, "product_rate", lambda: 1e6)
    x = torch.randn(1_500, 64, generator=rng)
    search = FaissSearch().build(x)
    assert search.exact
    assert search.recall_ is None
    assert_agree(search.query(x[:9], 5), ExactSearch().build(x).query(x[:9], 5))


def true_recall(search, rows, k):
    """By plain loops over what both found, whatever the search says of itself."""
    found = search.query(search.support[rows], k, exclude=rows)
    true = (
        ExactSearch(search.metric)
        .build(search.support)
        .query(search.support[rows], k, exclude=rows)
    )
    shares = [
        len(set(a) & set(b)) / k
        for a, b in zip(found.indices.tolist(), true.indices.tolist(), strict=True)
    ]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("recall", [0.8, 0.98])
def test_effort_is_raised_until_recall_is_met_and_the_stated_recall_is_true(
    small, metric, recall, rng
):
    x = torch.randn(4000, 7, generator=rng)  # an odd width: coded in pairs of columns
    search = FaissSearch(metric, "ivf", recall=recall).build(x)
    assert not search.exact
    stated = search.recall_
    assert stated.share >= recall
    assert stated.rows >= 1000
    others = torch.arange(3, 4000, 4)
    assert abs(true_recall(search, others, stated.k) - stated.share) < 5 * stated.error + 0.002


def test_lists_find_all_duplicates_that_they_count_as_found(small, rng):
    x = torch.randint(0, 4, (4000, 5), generator=rng).float()  # 1,024 distinct rows
    search = FaissSearch(kind="ivf").build(x)
    rows = torch.arange(0, 4000, 20)
    found, true = (
        search.query(x[rows], 100, exclude=rows),
        search.exactly(x[rows], 100, exclude=rows),
    )
    assert_agree(true, ExactSearch().build(x).query(x[rows], 100, exclude=rows))
    assert not (found.indices == rows[:, None]).any()
    assert (found.distances >= true.distances).all()
    assert float((found.distances == true.distances).double().mean()) > 0.95


def test_fewer_neighbors_than_the_effort_was_found_for_are_missed_no_more_often(small, rng):
    """Within round groups codes are coarse: of 20 neighbors they hid four times as many."""
    groups = torch.randn(20, 32, generator=rng)
    x = groups[torch.randint(20, (4000,), generator=rng)] + torch.randn(4000, 32, generator=rng) / 5
    search = FaissSearch(kind="ivf", recall=0.999).build(x)
    assert search.recall_.share >= 0.999
    assert true_recall(search, torch.arange(3, 4000, 4), 20) >= 0.998


def test_more_neighbors_than_the_effort_was_found_for_are_found_as_well(small, rng):
    x = torch.randn(4000, 6, generator=rng)
    search = FaissSearch(kind="ivf").build(x)
    rows = torch.arange(0, 4000, 20)
    assert search.recall_.k == 100
    assert true_recall(search, rows, 300) > 0.97
    assert search.recall_.k == 300


def test_recall_is_measured_again_after_many_edits(small, rng):
    x = torch.randn(4000, 6, generator=rng)
    search = FaissSearch(kind="ivf").build(x)
    before = search.recall_
    search.add(torch.randn(2000, 6, generator=rng) + 2)
    search.remove(range(0, 500))
    rows = torch.arange(0, len(search), 30)
    assert true_recall(search, rows, 50) > 0.97
    assert search.recall_ != before


def test_a_support_with_a_zero_row_is_searched_exactly_by_cosine(small, rng):
    x = torch.randn(2500, 5, generator=rng)
    x[17] = 0
    assert FaissSearch("cosine", "ivf").build(x).exact
    x[17] = 1
    search = FaissSearch("cosine", "ivf").build(x)
    asked = torch.cat([torch.zeros(1, 5), x[:3]])
    exact = ExactSearch("cosine").build(x).query(asked, 4)
    assert_agree(search.query(asked, 4).rows(slice(0, 1)), exact.rows(slice(0, 1)))


def test_faiss_is_taken_by_name_and_by_auto():
    assert isinstance(make_search("faiss", "cosine"), FaissSearch)
    assert isinstance(make_search("auto", "cosine"), FaissSearch)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'vicinal\[faiss\]'"):
        make_search("faiss", "cosine")


def test_without_the_package_auto_is_exact_and_says_what_that_costs(rng, monkeypatch):
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    x = torch.randn(200, 4, generator=rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_search("auto", "cosine").build(x).exact
    monkeypatch.setattr(choice, "lists_may_pay", lambda rows, width: True)
    with pytest.warns(UserWarning, match=r"200 rows .* minutes .*pip install 'vicinal\[faiss\]'"):
        search = make_search("auto", "sqeuclidean", shape=(200, 4)).build(x)
    assert_agree(search.query(x[:5], 3), ExactSearch().build(x).query(x[:5], 3))


def test_wrong_choices_are_named():
    with pytest.raises(InputError, match="`recall` must be between 0 and 1"):
        make_search("faiss", "cosine", recall=2)
    with pytest.raises(InputError, match="Did you mean 'flat'"):
        FaissSearch(kind="flatt")


def test_axes_are_dealt_so_that_every_part_of_a_code_has_about_as_much_to_say(rng):
    spread = 0.8 ** torch.arange(12.0)
    turn = torch.linalg.qr(torch.randn(12, 12, generator=rng)).Q
    rows = (torch.randn(4000, 12, generator=rng) * spread) @ turn
    axes = torch.from_numpy(lists._dealt_axes(rows.numpy(), parts=6, width=12))
    assert torch.allclose(axes.T @ axes, torch.eye(12), atol=1e-5)  # distances stay
    variances = (rows @ axes).var(0).view(6, 2).log().sum(1)  # the logarithm of a part's volume
    assert float(variances.max() - variances.min()) < 0.3
    padded = lists._dealt_axes(rows[:, :11].contiguous().numpy(), parts=6, width=12)
    assert padded.shape == (11, 12)
    assert (padded == 0).all(0).sum() == 1


def test_the_nearest_centers_are_those_of_a_full_sort(rng):
    rows, centers = torch.randn(50, 5, generator=rng), torch.randn(40, 5, generator=rng)
    found, near = lists._nearest(rows, centers, 7)
    true = (rows[:, None] - centers).square().sum(2)
    assert torch.equal(torch.from_numpy(found).sort().values, true.argsort(1)[:, :7].sort().values)
    assert torch.allclose(
        torch.from_numpy(near), true.gather(1, torch.from_numpy(found)), atol=1e-4
    )
    everything, _ = lists._nearest(rows, centers, 40)
    assert (np.sort(everything, 1) == np.arange(40)).all()


def test_lists_answer_beside_the_torch_bindings_of_faiss():
    script = """
import torch, faiss.contrib.torch_utils
from vicinal.neighbors.search import faiss as engine, lists
engine.LISTS_FROM = lists._CODED_FROM = 2000
x = torch.randn(3000, 12, generator=torch.Generator().manual_seed(0))
search = engine.FaissSearch(kind="ivf").build(x)
assert not search.exact
print(search.query(x[:5], 3).indices.tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in json.loads(done.stdout)] == [0, 1, 2, 3, 4]
