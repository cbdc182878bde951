"""What ``vicinal explore`` does with requests and uploads that mean harm."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
from starlette.testclient import TestClient

from cli.explore_attacks import attacks, grow, npy, picture, spin
from vicinal.checks import InputError
from vicinal.cli import explore_decode, explore_server
from vicinal.cli.explore import bound, judge_of
from vicinal.cli.explore_decode import uploaded_picture, uploaded_rows
from vicinal.cli.explore_server import application, server_of
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import ExploreOptions

HOST = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def uploads():
    return attacks(bomb_megabytes=600)


@pytest.fixture(scope="module")
def audit(run_folder):
    return read_run(run_folder)


@pytest.fixture(scope="module")
def client(run_folder, audit):
    judge = judge_of(audit, ExploreOptions(folder=run_folder))
    app = application(run_folder, audit, judge, "t", 8000)
    return TestClient(app, base_url=HOST)


def test_an_upload_that_means_harm_is_a_sentence(client, uploads, capfd):
    """One test for all: each is a process of its own, and few of them are enough for a class."""
    for name, (file, data) in uploads.items():
        answer = client.post("/predict?token=t", files={"file": (file, data)})
        assert answer.status_code == 400, name
        said = answer.json()["error"]
        assert said, name
        assert "Traceback" not in said, name
        assert "/tmp" not in said, name
        assert said.isprintable(), name
    assert capfd.readouterr() == ("", "")


def test_a_picture_that_means_harm_is_a_sentence(uploads):
    pictures = [data for file, data in uploads.values() if file.endswith(("png", "gif", "tiff"))]
    assert len(pictures) == 6
    for data in pictures:
        with pytest.raises(InputError, match=r"cannot read|at most 40 million") as refused:
            uploaded_picture(data, size=None, gray=False)
        assert "/tmp" not in str(refused.value)


def test_a_picture_and_rows_are_read_as_they_are():
    assert uploaded_picture(picture(8), size=4, gray=True).shape == (4, 4)
    assert uploaded_rows("a.txt", b"1,2\n3,4").tolist() == [[1, 2], [3, 4]]
    assert uploaded_rows("a.json", b'{"rows": [[1, 2]]}').tolist() == [[1, 2]]


def test_a_parser_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(explore_decode, "SECONDS", 0.2)
    monkeypatch.setattr(explore_decode, "_rows", spin)
    with pytest.raises(InputError, match="takes more than"):
        uploaded_rows("x.txt", b"")


def test_a_parser_that_takes_all_memory_is_stopped(monkeypatch):
    monkeypatch.setattr(explore_decode, "_rows", grow)
    with pytest.raises(InputError, match="512 MB"):
        uploaded_rows("x.txt", b"")


@pytest.mark.parametrize(
    "host",
    ["testserver", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:80@evil", "127.0.0.1:8000@evil",
     "evil:8000", "localhost:8000.evil", "127.0.0.1:8000, evil", "[::1]:8000", "", "0:8000"],
)  # fmt: skip
def test_only_this_machine_by_name_and_port_is_served(client, host):
    assert client.get("/?token=t", headers={"host": host}).status_code == 403


def test_this_machine_is_served_by_both_its_names(client):
    for host in ("127.0.0.1:8000", "localhost:8000"):
        assert client.get("/?token=t", headers={"host": host}).status_code == 200


def test_another_page_cannot_ask(client):
    post = {"data": {"rows": "1"}, "headers": {"origin": "http://evil.example"}}
    assert client.post("/predict?token=t", **post).status_code == 403
    assert client.post("/predict?token=t", data={"rows": "1"}, headers={"origin": HOST}).json()


@pytest.mark.parametrize("path", ["/", "/none", "/a/b", "/predict", "/?token=wrong", "/%00"])
def test_every_answer_says_that_it_may_not_be_framed(client, path):
    for address in (path, f"{path}{'&' if '?' in path else '?'}token=t"):
        answer = client.get(address)
        if answer.status_code in (200, 403):
            assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
            assert answer.headers["x-frame-options"] == "DENY"


FORM, FIELD = "multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: "


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"no boundary"),
        (FORM, b"--y\r\n\r\n--x--"),
        (FORM, FIELD + b"nonsense\r\n\r\na\r\n--x--"),
        (FORM, b"".join(FIELD + b'form-data; name="%d"\r\n\r\na\r\n' % i for i in range(99))),
        ("application/x-www-form-urlencoded", b"rows=" + b"%" * 1000),
        ("text/plain", b"rows"),
    ],
)
def test_what_is_no_form_is_a_sentence(client, kind, body):
    answer = client.post("/predict?token=t", content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]


# ------------------------------------------------------------------ on a real socket


@pytest.fixture
def serving(run_folder, audit):
    """``serving(judge)``: the address of a real server, as ``vicinal explore`` starts it."""
    running = []

    def start(judge):
        listening = bound(0)
        port = listening.getsockname()[1]
        app = application(run_folder, audit, judge, "t", port)
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread))
        for _ in range(400):
            if server.started:
                break
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)


def test_bytes_are_counted_as_they_come_whatever_was_claimed(serving, monkeypatch):
    monkeypatch.setattr(explore_server, "LIMIT", 1 << 20)
    base = serving(lambda name, data: pytest.fail("judged"))
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.npy"\r\n\r\n'

    def endless():
        yield head
        for _ in range(64):
            yield bytes(1 << 16)

    kind = {"content-type": "multipart/form-data; boundary=x"}
    answer = httpx.post(f"{base}/predict?token=t", content=endless(), headers=kind, timeout=60)
    assert answer.status_code == 413
    assert "at most 1 MB" in answer.json()["error"]


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n', b"413"),
        (b"--x\r\n", b"400"),  # no form
    ],
)
def test_who_sends_too_much_hears_why(serving, monkeypatch, start, status):
    """A client that reads nothing before it has sent all of it; else the line would be reset."""
    monkeypatch.setattr(explore_server, "LIMIT", 1 << 20)
    host = serving(lambda name, data: pytest.fail("judged")).removeprefix("http://")
    size = 24 << 20
    head = (
        f"POST /predict?token=t HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nConnection: close\r\n\r\n"
    )
    name, port = host.split(":")
    with socket.create_connection((name, int(port)), timeout=60) as line:
        line.sendall(head.encode() + start + bytes(size - len(start)))
        assert line.recv(4096).startswith(b"HTTP/1.1 " + status)


def test_the_page_answers_while_an_upload_is_judged(serving):
    begun, go_on = threading.Event(), threading.Event()

    def judge(name, data):
        begun.set()
        go_on.wait(30)
        return []

    base = serving(judge)
    answers = []
    send = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{base}/predict?token=t", data={"rows": "1"}, timeout=30)
        )
    )
    send.start()
    assert begun.wait(20)
    assert httpx.get(f"{base}/?token=t", timeout=10).status_code == 200
    assert not answers
    go_on.set()
    send.join(20)
    assert answers[0].json() == {"rows": []}


def test_lines_on_which_nobody_asks_keep_nobody_out(serving, monkeypatch, capfd):
    monkeypatch.setattr(explore_server, "LINES", 8)
    base = serving(lambda name, data: [])
    port = int(base.rsplit(":", 1)[1])
    with contextlib.ExitStack() as held:
        for _ in range(40):
            line = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            line.sendall(b"GET / HTTP/1.1\r\nX: ")  # and never the rest
        assert httpx.get(f"{base}/?token=t", timeout=20).status_code == 200
        line.settimeout(60)
        monkeypatch.setattr(explore_server, "IDLE", 0)
        assert line.recv(1) == b""  # the last one is closed in its time as well
    assert capfd.readouterr().err == ""


def test_a_fault_of_the_judge_is_one_line_and_an_answer(serving, capfd):
    def judge(name, data):
        raise KeyError("a fault\x1b[31m")

    answer = httpx.post(f"{serving(judge)}/predict?token=t", data={"rows": "1"}, timeout=60)
    assert answer.status_code == 500
    assert answer.json() == {"error": "vicinal failed on this one."}
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.isprintable() or said[:-1].isprintable()


def test_an_upload_that_breaks_off_leaves_no_words_on_the_terminal(serving, capfd):
    base = serving(lambda name, data: [])
    port = int(base.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(
            b"POST /predict?token=t HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x\r\n"
            % port
        )
    kind = {"content-type": "multipart/form-data; boundary=x"}
    asked = httpx.post(f"{base}/predict?token=t", content=b"none", headers=kind, timeout=60)
    assert asked.status_code == 400
    assert httpx.get(f"{base}/?token=t", timeout=60).status_code == 200
    assert capfd.readouterr().err == ""


def test_a_good_file_is_judged(client, files):
    import numpy as np

    rows = np.load(files / "test.npz")["Z"][:3]
    answer = client.post("/predict?token=t", files={"file": ("x.npy", npy(rows))})
    assert len(answer.json()["rows"]) == 3
