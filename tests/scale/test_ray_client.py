"""A cluster that somebody else started, of two nodes: ``ray://host:port``, or RAY_ADDRESS."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import vicinal
from vicinal import cluster as cluster_module
from vicinal.checks import InputError
from vicinal.cli import __main__ as program
from vicinal.cli.__main__ import main
from vicinal.cluster import connect

pytestmark = pytest.mark.xdist_group("ray")
HOW = {"provenance", "search"}  # what of a record says how it was computed
PATIENCE = 240  # seconds until a busy machine has started what is asked for


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def without_ray(home, **more):
    """An environment that knows of no cluster and no token, as on a machine where Ray is new."""
    source = Path(vicinal.__file__).parents[1]  # the same vicinal on every machine
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return env | {"HOME": str(home), "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"} | more


def started(env, said, *words):
    """``ray start``, which ends its processes when it is ended; what it says goes to a file."""
    words = (*words, "--block", "--num-cpus", "1", "--object-store-memory", "80000000")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words]
    with said.open("w") as file:
        return subprocess.Popen(command, env=env, stdout=file, stderr=file)


def until(ready):
    end = time.monotonic() + PATIENCE / 2
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def nodes_of(env, port):
    """How many a driver on the cluster counts.

    A cluster that no driver has been on yet refuses Ray's own client now and then, which then waits
    for ever for a thread of its own (2 of 8 starts on a busy machine).
    """
    script = f"import ray; ray.init('127.0.0.1:{port}', log_to_driver=False); "
    script += "print('nodes alive:', sum(node['Alive'] for node in ray.nodes()))"
    command = [sys.executable, "-c", script]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return 0
    counted = re.search(r"^nodes alive: (\d+)$", done.stdout, re.MULTILINE)  # Ray speaks there, too
    return int(counted[1]) if counted else 0


@contextlib.contextmanager
def two_nodes(env, home, port, client):
    """A head node and, once it stands, another that joins it: whether a driver counts both."""
    nodes = []
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        head = (
            "--head", "--node-ip-address", "127.0.0.1", "--port", str(port), "--temp-dir", place,
            "--ray-client-server-port", str(client), "--include-dashboard", "false",
        )  # fmt: skip
        other = ("--node-ip-address", "127.0.0.2", "--address", f"127.0.0.1:{port}")
        try:
            nodes.append(started(env, home / "head", *head))
            ready = until(lambda: "Ray runtime started" in (home / "head").read_text())
            nodes.append(started(env, home / "other", *other))
            ready = ready and until(lambda: answers(client) and nodes_of(env, port) == 2)
            yield ready
        finally:
            for node in reversed(nodes):
                node.terminate()
            for node in nodes:
                node.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The ports of a head node, which asks for a token, and an environment with the token's place.

    Another node has joined it.
    """
    try:
        import grpc  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}")
    port, client, home = free_port(), free_port(), tmp_path_factory.mktemp("home")
    (home / "token").write_text("0123456789abcdef" * 4)
    here = without_ray(home, RAY_AUTH_TOKEN_PATH=str(home / "token"))
    env = here | {
        "RAY_AUTH_MODE": "token",
        "RAY_worker_niceness": "0",
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(PATIENCE),
    }
    for _ in range(2):  # Ray 2.10 now and then loses its own node while it starts
        with two_nodes(env, home, port, client) as ready:
            if ready:
                yield port, client, here
                return
    pytest.fail("the cluster did not start in time, twice")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A support and a query in two shards each, and the audit of one process."""
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name, n in (("train", 400), ("test", 90)):
        y = rng.integers(0, 3, n)
        z = (rng.normal(size=(n, 4)) + 2 * y[:, None]).astype(np.float32)
        for part, rows in enumerate(np.array_split(np.arange(n), 2)):
            np.savez(folder / f"{name}-{part}.npz", Z=z[rows], y=y[rows])
    words = ["audit", *(str(folder / f"{name}-*.npz") for name in ("train", "test"))]
    words += ["--space", "raw", "--map", "none", "-q"]
    assert main([*words, "-o", str(folder / "one")]) == 0
    return folder / "one", words


def audited(words, out, env, on):
    """The command in a process of its own, as a user has it.

    Ray's own client may wait for ever where a connection failed, and Ray 2.10 gives a busy machine
    30 seconds to start the client's server: it is then asked once more, and the command goes on.
    """
    command = [sys.executable, "-m", "vicinal", *words, "-o", str(out), "--on", on]
    told = {"env": env, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, **told, timeout=PATIENCE / 2)
    except subprocess.TimeoutExpired:
        return subprocess.run(command, **told, timeout=PATIENCE)
    late = "cannot reach the Ray cluster" in done.stderr
    return subprocess.run(command, **told, timeout=PATIENCE) if late else done


@pytest.mark.parametrize("by", ["ray://", "RAY_ADDRESS"])
def test_an_audit_on_a_cluster_of_two_nodes_is_the_audit_of_one_process(
    cluster, sets, tmp_path, by
):
    (port, client, env), (one, words) = cluster, sets
    if by == "RAY_ADDRESS":
        done = audited(words, tmp_path, env | {by: f"127.0.0.1:{port}"}, "ray")
    else:
        done = audited(words, tmp_path, env, f"ray://127.0.0.1:{client}")
    assert done.returncode == 0, done.stderr
    for name in ("samples.csv", "suspects.csv", "labels.csv"):
        assert (one / name).read_bytes() == (tmp_path / name).read_bytes()
    records = [json.loads((run / "audit.json").read_text()) for run in (one, tmp_path)]
    assert {name for name in records[0] if records[0][name] != records[1][name]} == HOW
    assert "exact, in 2 workers of Ray" in (tmp_path / "summary.json").read_text()


def test_a_cluster_whose_token_is_not_at_hand_is_one_sentence(cluster, tmp_path):
    pytest.importorskip("ray._private.authentication")  # Ray 2.10 asks for no token
    _, client, _ = cluster
    short = {f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S": "1" for name in ("INITIAL", "MAX")}
    env = without_ray(tmp_path, **short)
    script = f"from vicinal.cluster import connect; connect('ray://127.0.0.1:{client}')"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("vicinal.checks.InputError: cannot reach the Ray cluster at ray://127")
    assert "its token, if it asks for one, is in RAY_AUTH_TOKEN or ~/.ray/auth_token" in said


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


@pytest.mark.parametrize("on", ["ray", "ray://127.0.0.1:{}"])
def test_somebody_else_who_answers_is_one_sentence(monkeypatch, on):
    ray = pytest.importorskip("ray")
    ray.shutdown()
    monkeypatch.setattr(cluster_module, "KNOCK", 1.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        with pytest.raises(InputError, match="what answers there does not speak as Ray does"):
            connect(on.format(port))


def test_a_signal_to_end_is_no_fault_of_ours_though_ray_makes_an_exit_of_it(monkeypatch, capsys):
    def ended(*words, **more):
        raise SystemExit(signal.SIGTERM)

    monkeypatch.setattr(program, "app", ended)
    assert main(["audit"]) == 143
    assert "interrupted. Run the same command again to continue." in capsys.readouterr().err


def test_a_host_that_is_not_there_is_one_sentence():
    ray = pytest.importorskip("ray")
    ray.shutdown()
    with pytest.raises(
        InputError, match=r"cannot reach the Ray cluster at ray://no\.invalid:10001"
    ):
        connect("ray://no.invalid:10001")
