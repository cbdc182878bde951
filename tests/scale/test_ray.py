"""Ray's actors answer what one process does, die and come back, and say in a sentence when not."""

import os
import signal

import numpy as np
import pytest
import torch

from vicinal.capture.sources import open_rows
from vicinal.checks import InputError
from vicinal.neighbors.search import ExactSearch
from vicinal.neighbors.search.on_ray import RaySearch, connect

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def ray():
    """A local cluster; where none can start, a sentence, which CI does not accept."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'vicinal[ray]'")
    before = os.environ.pop("RAY_ADDRESS", None)
    try:
        found = connect("ray")
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}")
    yield found
    found.shutdown()
    if before is not None:
        os.environ["RAY_ADDRESS"] = before


def rows_with_ties(n=500, d=3):
    x = torch.randint(0, 3, (n, d), generator=torch.Generator().manual_seed(0)).float()
    x[::3] = x[0]
    return x


def same(a, b):
    return torch.equal(a.distances, b.distances) and torch.equal(a.indices, b.indices)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder, x = tmp_path_factory.mktemp("shards"), rows_with_ties().numpy()
    for at, (a, b) in enumerate(((0, 100), (100, 101), (101, 500))):
        np.savez(folder / f"part-{at}.npz", Z=x[a:b], y=np.arange(a, b) % 3)
    return folder


@pytest.fixture(scope="module")
def search(ray, shards):
    return RaySearch(workers=2).build(open_rows(shards))


def test_actors_answer_what_one_process_does_with_ties_and_duplicates(search):
    x, own = rows_with_ties(), torch.arange(500)
    whole = ExactSearch().build(x)
    assert len(search.actors) == 2
    assert same(search.query(x, 30), whole.query(x, 30))
    assert same(search.query(x, 499, exclude=own), whole.query(x, 499, exclude=own))
    assert torch.equal(search.rows(torch.tensor([7, 3])), x[[7, 3]])


def test_an_actor_that_is_killed_comes_back_from_its_file(ray, search):
    x = rows_with_ties()
    os.kill(ray.get(search.actors[0].ready.remote()), signal.SIGKILL)
    assert same(search.query(x, 9), ExactSearch().build(x).query(x, 9))


def test_rows_in_memory_go_to_the_actors_through_rays_store(ray):
    x = rows_with_ties(50)
    found = RaySearch("cosine", workers=1).build(x).query(x, 5)
    assert same(found, ExactSearch("cosine").build(x).query(x, 5))


def test_a_shard_that_vanished_is_the_sentence_of_one_process(ray, tmp_path):
    np.savez(tmp_path / "part.npz", Z=rows_with_ties().numpy())
    rows = open_rows(tmp_path)
    (tmp_path / "part.npz").unlink()
    with pytest.raises(InputError, match="no such shard: .*part.npz"):
        RaySearch(workers=1).build(rows)


class Deadly:
    """Rows that kill whoever reads them."""

    width, dtype = 1, torch.float32

    def __len__(self):
        return 4

    def blocks(self, size, start=0, stop=None):
        os._exit(1)


def test_a_worker_that_keeps_dying_is_one_sentence(ray):
    with pytest.raises(InputError, match="keeps dying; Ray restarted it 3 times"):
        RaySearch(workers=1).build(Deadly())


def test_what_is_no_cluster_is_one_sentence(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        InputError, match=r"on='spark' is no cluster. Give ray, or ray://host:10001"
    ):
        connect("spark")


def test_a_cluster_that_cannot_be_reached_is_one_sentence(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", _refuse)
    with pytest.raises(InputError, match="cannot reach the Ray cluster at 127.0.0.1:1: nobody"):
        connect("ray")


def _refuse(**settings):
    raise ConnectionError("nobody listens")
