"""A cluster that somebody else started, of two nodes, reached at ``ray://host:port``."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import vicinal
from vicinal.checks import InputError
from vicinal.cli.__main__ import main
from vicinal.cluster import connect

pytestmark = pytest.mark.xdist_group("ray")
PATIENCE = 240  # seconds until a busy machine has started what is asked for


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def started(*words):
    """``ray start``, which ends its processes when it is ended."""
    words = (*words, "--block", "--num-cpus", "1", "--object-store-memory", "80000000")
    source = Path(vicinal.__file__).parents[1]  # the same vicinal on every machine
    env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *words,
        "--disable-usage-stats",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=env | {"RAY_worker_niceness": "0"}, **quiet)


def until(ready):
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end, "the cluster did not start in time"
        time.sleep(0.2)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def cluster():
    """The address of a head node; another node joins it."""
    try:
        import ray
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}")
    port, client = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        head = started(
            "--head", "--node-ip-address", "127.0.0.1", "--port", str(port), "--temp-dir", place,
            "--ray-client-server-port", str(client), "--include-dashboard", "false",
        )  # fmt: skip
        nodes = [head]
        try:
            until(lambda: answers(port))
            nodes.append(started("--address", f"127.0.0.1:{port}"))
            until(lambda: answers(client))
            yield f"ray://127.0.0.1:{client}"
        finally:
            ray.shutdown()
            for node in reversed(nodes):
                node.terminate()
            for node in nodes:
                node.wait(60)


@pytest.mark.skipif(
    not os.environ.get("RAY_CLUSTER"),
    reason="Ray's own client does not connect dependably in 30 s: RAY_CLUSTER=1 asks for this test",
)
def test_an_audit_on_a_cluster_of_two_nodes_is_the_audit_of_one_process(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in (("train", 400), ("test", 90)):
        y = rng.integers(0, 3, n)
        z = (rng.normal(size=(n, 4)) + 2 * y[:, None]).astype(np.float32)
        for part, rows in enumerate(np.array_split(np.arange(n), 2)):
            np.savez(f"{name}-{part}.npz", Z=z[rows], y=y[rows])
    sets = [str(tmp_path / f"{name}-*.npz") for name in ("train", "test")]
    words = ["audit", *sets, "--space", "raw", "--map", "none", "-q"]
    assert main([*words, "-o", "one"]) == 0
    ray = connect(cluster)
    until(lambda: len(ray.nodes()) == 2)
    assert main([*words, "-o", "many", "--on", cluster]) == 0
    for name in ("samples.csv", "suspects.csv", "labels.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
    assert "exact, in 2 workers of Ray" in (tmp_path / "many" / "summary.json").read_text()


@pytest.mark.parametrize("on", ["ray", "ray://127.0.0.1:{}"])
def test_a_cluster_that_nobody_answers_for_is_one_sentence_at_once(
    tmp_path, monkeypatch, capsys, on
):
    ray = pytest.importorskip("ray")
    ray.shutdown()
    monkeypatch.chdir(tmp_path)
    closed = free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed}")
    monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("Ray was left to wait"))
    np.savez("rows.npz", Z=np.eye(8, dtype=np.float32), y=np.arange(8) % 2)
    assert main(["audit", "rows.npz", "--on", on.format(closed), "-o", "run"]) == 2
    assert f"127.0.0.1:{closed}: Connection refused" in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_host_that_is_not_there_is_one_sentence():
    ray = pytest.importorskip("ray")
    ray.shutdown()
    with pytest.raises(
        InputError, match=r"cannot reach the Ray cluster at ray://no\.invalid:10001"
    ):
        connect("ray://no.invalid:10001")
