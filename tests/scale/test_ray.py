"""Ray's actors answer what one process does, die and come back, and say in a sentence when not."""

import importlib
import os
import signal
import sys

import numpy as np
import pytest
import torch

import vicinal
from vicinal.audits import sampled, scale
from vicinal.audits.settings import AuditSettings
from vicinal.capture import ShardStore
from vicinal.capture.sources import open_rows
from vicinal.checks import InputError
from vicinal.cli.__main__ import main
from vicinal.cluster import connect
from vicinal.neighbors.search import ExactSearch, on_ray
from vicinal.neighbors.search.on_ray import RaySearch
from vicinal.neighbors.search.recall import recall_of

pytestmark = pytest.mark.xdist_group("ray")


def or_skip(call):
    """Without Ray, or where no cluster can start: a sentence, which CI does not accept."""
    try:
        return call()
    except (InputError, ImportError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}")


@pytest.fixture(scope="module")
def ray():
    before = os.environ.pop("RAY_ADDRESS", None)
    found = or_skip(lambda: connect("ray"))  # one cluster for all tests of this file
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


def test_rows_in_memory_go_through_rays_store_to_actors_that_may_search_by_lists(ray):
    x = torch.randn(6_000, 4, generator=torch.Generator().manual_seed(0))
    search, own = RaySearch(workers=1, engine="faiss").build(x), torch.arange(500)
    assert not search.exact
    assert search.title == "IVF, in 1 workers of Ray"
    exact = ExactSearch().build(x).query(x[:500], 20, exclude=own)
    assert same(search.exactly(x[:500], 20, exclude=own), exact)
    found = search.query(x[:500], 20, exclude=own)
    assert not (found.indices == own[:, None]).any()
    assert recall_of(found, exact).share > 0.95
    far = 20 * x[:200]  # whose neighbors lie in more lists than those of the support
    before = recall_of(search.query(far, 20), search.exactly(far, 20)).share
    assert before < 0.98
    assert search.reach(far, 20).share >= 0.98
    assert recall_of(search.query(far, 20), search.exactly(far, 20)).share >= 0.98


def test_a_streamed_audit_on_ray_is_that_of_one_process(ray, shards, tmp_path, monkeypatch):
    """In memory: ``test_ray_client.py``."""
    settings, own = AuditSettings(space="raw", k=10, map="none"), ("provenance", "scale", "search")
    query = (rows_with_ties()[:150].numpy() + 0.25, np.arange(150) % 3)
    monkeypatch.setattr(on_ray, "AHEAD", 1)  # every process more loads torch anew

    def found(on, work):
        audit = vicinal.audit(support=shards, query=query, settings=settings, on=on, work=work)
        return audit, {name: v for name, v in audit.to_dict().items() if name not in own}

    monkeypatch.setattr(scale, "needed", lambda rows, settings: 1 << 60)
    monkeypatch.setattr(sampled, "ANCHORS", 120)
    monkeypatch.setattr(sampled, "PASS", 250)
    monkeypatch.setattr(on_ray, "places", lambda ray, workers: (2, 0))
    (here, a), (there, b) = found(None, tmp_path / "a"), found("ray", tmp_path / "b")
    assert a == b
    assert "workers of Ray" in there.scale.search
    for name, path in here.parts.items():
        assert path.read_bytes() == there.parts[name].read_bytes()


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


def test_a_capture_on_ray_is_the_capture_of_one_process(ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Linear(3, 2))\n"
    )
    x = rows_with_ties(50)
    np.savez("rows.npz", X=x.numpy(), y=np.arange(50) % 2)
    words = ["embed", "net.py:make", "rows.npz", "--layer", "0", "--batch-size", "8"]
    torch.manual_seed(0)
    assert main([*words, "-o", "one"]) == 0
    torch.manual_seed(0)
    assert main([*words, "-o", "many", "--on", "ray"]) == 0
    one, many = ShardStore("one"), ShardStore("many")
    assert torch.allclose(one["0"], many["0"])
    assert torch.equal(one.labels, many.labels)


def test_a_worker_that_keeps_dying_is_one_sentence(ray, monkeypatch):
    ray.cloudpickle.register_pickle_by_value(sys.modules[Deadly.__module__])  # no worker has it
    monkeypatch.setattr(on_ray, "RESTARTS", 0)  # every one of them loads torch anew
    with pytest.raises(InputError, match="a worker that holds the support keeps dying; Ray"):
        RaySearch(workers=1).build(Deadly())


def test_what_is_no_cluster_is_one_sentence(monkeypatch):
    ray = or_skip(lambda: importlib.import_module("ray"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        InputError, match=r"on='spark' is no cluster. Give ray, or ray://host:10001"
    ):
        connect("spark")
