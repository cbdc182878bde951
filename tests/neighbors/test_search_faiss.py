"""Search through faiss answers as exact search does; inverted lists say what they miss."""

import builtins

import faiss
import pytest
import torch

from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch, make_search
from vicinal.neighbors.search import faiss as search_faiss
from vicinal.neighbors.search.faiss import FaissSearch


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


def test_the_global_threshold_of_faiss_is_as_others_left_it(rng):
    x = torch.randn(200, 4, generator=rng)
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 77
    try:
        FaissSearch().build(x).query(x, 3)
        assert faiss.cvar.distance_compute_blas_threshold == 77
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


@pytest.mark.parametrize("use_blas", [True, False])
def test_both_kernels_give_the_same_answer(use_blas, rng):
    x = torch.randn(2000, 16, generator=rng)
    search = FaissSearch().build(x)
    search._use_blas = use_blas
    assert_agree(search.query(x[:200], 5), ExactSearch().build(x).query(x[:200], 5))


def test_inverted_lists_tell_their_recall_and_more_probes_miss_less(rng):
    x = torch.randn(8000, 8, generator=rng)
    few = FaissSearch(kind="ivf", nprobe=2).build(x)
    many = FaissSearch(kind="ivf", nprobe=60).build(x)
    exact = ExactSearch().build(x)
    assert not few.exact
    for search in (few, many):
        found, true = search.query(x[1::40], 50).indices, exact.query(x[1::40], 50).indices
        share = (found[:, :, None] == true[:, None, :]).any(2).float().mean()
        assert abs(float(share) - search.recall_) < 0.05
    assert few.recall_ < many.recall_ <= 1


def test_reading_every_list_is_exact_after_edits_too(rng):
    x, new = torch.randn(3000, 6, generator=rng), torch.randn(50, 6, generator=rng)
    ivf, exact = FaissSearch(kind="ivf", nprobe=10**6).build(x), ExactSearch().build(x)
    assert ivf.recall_ == 1
    for search in (ivf, exact):
        search.remove(range(0, 900, 2))
        search.add(new)
        search.remove([1, 2500])
        search.add(new)
    exclude = torch.arange(len(exact))
    one, two = (s.query(s.support, 8, exclude=exclude) for s in (ivf, exact))
    assert_agree(one, two)


def test_lists_that_hold_too_few_rows_never_leak_a_missing_neighbor(rng):
    x = torch.randn(400, 4, generator=rng)
    search = FaissSearch(kind="ivf", nprobe=1).build(x)
    found = search.query(x[:20], 350)
    assert found.distances.isfinite().all()
    assert_agree(found, ExactSearch().build(x).query(x[:20], 350))


def test_above_the_limit_auto_takes_inverted_lists(rng, monkeypatch):
    monkeypatch.setattr(search_faiss, "IVF_FROM", 1000)
    x = torch.randn(1200, 4, generator=rng)
    assert not FaissSearch().build(x).exact
    assert FaissSearch().build(x[:1000]).exact
    assert FaissSearch(kind="flat").build(x).exact


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


def test_wrong_choices_are_named():
    with pytest.raises(InputError, match="Did you mean 'flat'"):
        FaissSearch(kind="flatt")
    with pytest.raises(InputError, match="`nprobe`"):
        FaissSearch(nprobe=0)
