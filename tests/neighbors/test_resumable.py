"""A query in blocks answers as the search does, tells how far it is, goes on where it stopped."""

import pytest
import torch

from vicinal.capture import ShardStore
from vicinal.neighbors.search import ExactSearch, resumable, resumable_query


@pytest.fixture
def question(rng, monkeypatch):
    monkeypatch.setattr(resumable, "BLOCK", 16)
    search = ExactSearch().build(torch.randn(60, 3, generator=rng))
    return search, torch.randn(50, 3, generator=rng)


def open_store(folder):
    settings = {"layers": ["distances", "indices"], "rows": 50, "k": 4}
    return ShardStore.open_for_writing(folder, settings)


def test_blocks_give_what_one_query_gives(question):
    search, x = question
    whole = search.query(x, 4)
    seen = []
    found = resumable_query(search, x, 4, progress=lambda *step: seen.append(step), title="all")
    assert torch.equal(found.distances, whole.distances)
    assert torch.equal(found.indices, whole.indices)
    assert seen == [("all", 16, 50), ("all", 32, 50), ("all", 48, 50), ("all", 50, 50)]


def test_rows_are_left_out_block_by_block(question):
    search, _ = question
    rows = torch.arange(60)
    found = resumable_query(search, search.support, 4, exclude=rows)
    assert torch.equal(found.indices, search.query(search.support, 4, exclude=rows).indices)


def test_a_query_that_stopped_goes_on_behind_its_last_block(question, tmp_path):
    search, x = question

    def stop(title, done, total):
        if done == 48:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resumable_query(search, x, 4, store=open_store(tmp_path), progress=stop)
    seen = []
    resumed = resumable_query(
        search, x, 4, store=open_store(tmp_path), progress=lambda *step: seen.append(step[1])
    )
    assert seen == [50]  # a block is kept before it is told of
    assert torch.equal(resumed.indices, search.query(x, 4).indices)


def test_a_finished_query_is_read_and_not_asked_again(question, tmp_path):
    search, x = question
    first = resumable_query(search, x, 4, store=open_store(tmp_path))
    search.query = None
    again = resumable_query(search, x, 4, store=open_store(tmp_path))
    assert torch.equal(again.distances, first.distances)
