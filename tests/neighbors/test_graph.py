"""The leave-one-out graph, edited, is the graph that building anew gives."""

import pytest
import torch

import reference
from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch


def graph_of(rows, k, metric="sqeuclidean"):
    return NeighborGraph.build(ExactSearch(metric).build(rows), k)


def assert_same(graph, rows, metric="sqeuclidean"):
    anew = graph_of(rows, graph.k, metric)
    assert torch.equal(graph.search.support, rows)
    assert torch.equal(graph.indices, anew.indices)
    assert torch.equal(graph.distances, anew.distances)


def test_no_row_is_its_own_neighbor_and_the_others_are_those_of_a_plain_loop(rng):
    x = torch.randint(0, 3, (25, 2), generator=rng).double()  # many duplicates
    graph = graph_of(x, 6)
    for i in range(25):
        expected = reference.nearest(x[i].tolist(), x.tolist(), 6, exclude=i)
        assert graph.indices[i].tolist() == [j for _, j in expected]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("duplicates", [False, True])
def test_any_sequence_of_edits_equals_building_anew_to_the_bit(metric, duplicates, rng):
    def draw(n):
        x = torch.randn(n, 6, generator=rng)
        return x.round() if duplicates else x

    rows = draw(400)
    graph = graph_of(rows, 8, metric)
    for size in (1, 30, 700):
        new = draw(size)
        graph.add(new)
        rows = torch.cat([rows, new])
        assert_same(graph, rows, metric)
        keep = torch.rand(len(rows), generator=rng) > 0.1
        graph.remove((~keep).nonzero()[:, 0])
        rows = rows[keep]
        assert_same(graph, rows, metric)


def test_removing_a_hub_searches_again_only_for_the_rows_that_pointed_to_it(rng, monkeypatch):
    rows = torch.randn(200, 4, generator=rng)
    graph = graph_of(rows, 5)
    pointed = int((graph.indices == 17).any(1).sum())
    asked = []
    query = graph.search.query

    def counted(x, k, exclude):
        asked.append(len(x))
        return query(x, k, exclude=exclude)

    monkeypatch.setattr(graph.search, "query", counted)
    graph.remove([17])
    assert asked == [pointed]


def test_all_others_as_neighbors_survive_growing(rng):
    rows = torch.randn(5, 2, generator=rng)
    graph = graph_of(rows, 4)
    graph.add(rows[:1])
    assert_same(graph, torch.cat([rows, rows[:1]]))


def test_a_graph_needs_more_rows_than_neighbors_and_a_refused_edit_changes_nothing(rng):
    rows = torch.randn(5, 2, generator=rng)
    with pytest.raises(InputError, match="Pass k=4"):
        graph_of(rows, 5)
    graph = graph_of(rows, 3)
    with pytest.raises(InputError, match="Keep at least 4 rows"):
        graph.remove([0, 1])
    with pytest.raises(InputError, match="`rows`"):
        graph.add(torch.full((1, 2), torch.nan))
    assert_same(graph, rows)
