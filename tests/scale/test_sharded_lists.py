"""Lists over rows that are not in memory find what lists in memory find, and say what they miss."""

import numpy as np
import pytest
import torch

import vicinal
from doors.mutations import json_of
from vicinal.audits import sampled, scale
from vicinal.audits.settings import AuditSettings
from vicinal.capture.sources import ArrayRows
from vicinal.checks import InputError
from vicinal.neighbors.search import ExactSearch, choice, cost, lists
from vicinal.neighbors.search import faiss as search_faiss
from vicinal.neighbors.search.faiss import FaissSearch
from vicinal.neighbors.search.sharded_lists import ShardedLists

pytest.importorskip("faiss")
SMALL = 600 * 4 * 4 * 4  # bytes: blocks of 600 rows of 4 columns


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Lists are made of few rows, and measured on few."""
    monkeypatch.setattr(search_faiss, "LISTS_FROM", 1000)
    monkeypatch.setattr(search_faiss, "SAMPLE", 100)


@pytest.fixture(scope="module")
def x():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(2_500, 4, generator=draw) + 3 * torch.randint(
        0, 5, (2_500, 1), generator=draw
    )
    rows[1::40] = rows[::40][: len(rows[1::40])]
    return rows


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_lists_over_blocks_find_the_rows_and_distances_of_lists_in_memory(x, metric):
    own = torch.arange(300)
    blocks = ShardedLists(metric, "ivf", memory=SMALL).build(ArrayRows(x))
    whole = FaissSearch(metric, "ivf").build(x)
    assert blocks.block == 600
    assert not blocks.exact
    assert blocks.recall_.share >= 0.98
    exact = ExactSearch(metric).build(x).query(x[own], 20, exclude=own)
    for search in (blocks, whole):
        found = search.query(x[own], 20, exclude=own)
        assert not (found.indices == own[:, None]).any()
        hit = found.indices == exact.indices
        assert hit.double().mean() > 0.9
        assert torch.equal(found.distances[hit], exact.distances[hit])


def test_the_recall_that_is_stated_is_the_one_there_is(x):
    search = ShardedLists(kind="ivf", memory=SMALL, recall=0.9).build(ArrayRows(x))
    own = torch.arange(len(x))
    found, true = search.query(x, 100, exclude=own), search.exactly(x, 100, exclude=own)
    hits = sum(
        len(set(a) & set(b))
        for a, b in zip(found.indices.tolist(), true.indices.tolist(), strict=True)
    )
    assert abs(hits / true.indices.numel() - search.recall_.share) < 0.02
    assert search.recall_.share >= 0.9


def test_more_neighbors_than_the_lists_that_are_read_hold_are_found_exactly(x):
    search = ShardedLists(kind="ivf", memory=SMALL).build(ArrayRows(x))
    found = search.query(x[:5], 2_400)
    assert torch.equal(found.indices, ExactSearch().build(x).query(x[:5], 2_400).indices)


def test_auto_is_exact_until_lists_pay_and_where_most_would_have_to_be_read(x, monkeypatch):
    def made(**more):
        found = choice.make_sharded("auto", "sqeuclidean", recall=0.98, memory=SMALL, shape=x.shape)
        return found.build(ArrayRows(x))

    assert made().exact
    for place in (choice, search_faiss):
        monkeypatch.setattr(place, "lists_may_pay", lambda rows, width: True)
    assert not made().exact
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="2,500 rows .* pip install 'vicinal.faiss.'"):
        assert made().exact
    noise = torch.randn(1_500, 64, generator=torch.Generator().manual_seed(0))
    assert ShardedLists(memory=SMALL).build(ArrayRows(noise)).exact


def test_a_zero_row_under_the_cosine_makes_the_search_exact(x):
    rows = torch.cat([x, torch.zeros(1, 4)])
    search = ShardedLists("cosine", "ivf", memory=SMALL).build(ArrayRows(rows))
    assert search.exact
    assert torch.equal(
        search.query(x[:9], 5).indices, ExactSearch("cosine").build(rows).query(x[:9], 5).indices
    )


def test_codes_take_the_bytes_that_are_planned_for():
    assert cost.lists_bytes(1_000_000, 128) == 48_000_000


def audited(x, work, monkeypatch, **more):
    y = (x.sum(1).round().long() % 3).numpy()
    monkeypatch.setattr(scale, "needed", lambda rows, settings: 1 << 60)
    monkeypatch.setattr(sampled, "ANCHORS", 900)
    monkeypatch.setattr(sampled, "PASS", 800)
    query = (x[:200].numpy() + np.float32(0.1), y[:200])
    settings = AuditSettings(space="raw", k=15, map="none", search="faiss")
    return vicinal.audit(
        support=(x.numpy(), y), query=query, settings=settings, work=work, memory="100GB", **more
    )


class Stopped(BaseException):
    """As Ctrl-C."""


def test_a_streamed_audit_by_lists_says_what_they_moved_and_can_be_gone_on_with(
    x, tmp_path, monkeypatch
):
    whole = audited(x, tmp_path / "a", monkeypatch)
    facts = whole.search
    assert facts.engine.startswith("IVF over blocks")
    assert facts.recall >= 0.98
    assert facts.rows == 900
    assert "recall@15" in facts.how
    assert "query: recall@15" in facts.how
    assert facts.nll_moved is not None
    assert facts.suspects_moved is not None
    assert whole.scale.search == facts.engine

    def stop(title, done, total):
        if title == "label audit":
            raise Stopped

    with pytest.raises(Stopped):
        audited(x, tmp_path / "b", monkeypatch, progress=stop)
    again = audited(x, tmp_path / "b", monkeypatch)
    assert again.scale == whole.scale
    assert again.labels == whole.labels


def test_lists_that_were_kept_come_back_as_they_were_and_damaged_ones_are_refused(
    x, tmp_path, monkeypatch
):
    first = ShardedLists(kind="ivf", memory=SMALL, kept=tmp_path).build(ArrayRows(x))
    monkeypatch.setattr(ShardedLists, "_reach", None)  # nothing is measured again
    again = ShardedLists(kind="ivf", memory=SMALL, kept=tmp_path).build(ArrayRows(x))
    assert (again.title, again.recall_) == (first.title, first.recall_)
    for mine, theirs in zip(first.query(x[:50], 9), again.query(x[:50], 9), strict=True):
        assert torch.equal(mine, theirs)
    raw = bytearray((tmp_path / "lists.json").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "lists.json").write_bytes(raw)
    with pytest.raises(InputError, match=r"checksum.* --fresh"):
        ShardedLists(kind="ivf", memory=SMALL, kept=tmp_path).build(ArrayRows(x))


def test_what_somebody_else_says_was_decided_is_refused_or_finds_rows(x, tmp_path):
    make = lambda: ShardedLists(kind="ivf", memory=SMALL, kept=tmp_path).build(ArrayRows(x))
    assert not make().exact
    facts, rng, refused = lists.kept(tmp_path), np.random.default_rng(0), 0
    for _ in range(60):
        forged = json_of(facts, rng)
        forged = forged if isinstance(forged, dict) else {"odd": forged}
        lists.keep(tmp_path, forged)  # with a checksum that is right
        try:
            found = make().query(x[:5], 3)
        except InputError:
            refused += 1
        else:
            assert bool(((found.indices >= 0) & (found.indices < len(x))).all())
            assert bool(found.distances.isfinite().all())
    assert 20 < refused < 60


@pytest.mark.parametrize("pays", [False, True])
def test_what_auto_decided_holds_for_a_run_that_goes_on(x, tmp_path, monkeypatch, pays):
    for now in (pays, not pays):  # the clock says otherwise the second time
        monkeypatch.setattr(search_faiss, "lists_may_pay", lambda rows, width, now=now: now)
        search = ShardedLists(memory=SMALL, kept=tmp_path).build(ArrayRows(x))
        assert search.exact is not pays


def test_rows_are_coded_themselves_where_many_lists_are_read_and_by_differences_in_tight_groups(
    monkeypatch,
):
    monkeypatch.setattr(lists, "_CODED_FROM", 2000)
    draw = torch.Generator().manual_seed(0)
    spread = torch.randn(6_000, 12, generator=draw)
    tight = 9 * torch.randn(60, 12, generator=draw)[torch.arange(6_000) % 60] + 0.1 * spread
    for rows, differences in ((spread, False), (tight, True)):
        search = ShardedLists(kind="ivf", memory=1 << 24).build(ArrayRows(rows))
        assert search._lists._index.by_residual is differences
        assert search.recall_.share >= 0.98
