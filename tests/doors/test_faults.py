"""A disk that refuses: the n-th write or rename fails, for every n, and what was there stays.

After every fault the call ended with one sentence and exit code 2, and the folder holds the old
files or the new ones, byte for byte, and nothing else; the next call finishes. A process that dies
at any step instead leaves a folder that the next one opens as the old run or the new one.
"""

import errno
import functools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from doors.attempts import said, snapshot
from vicinal import files
from vicinal.audits import sampled, scale
from vicinal.audits.demo import audited, demonstration
from vicinal.cli import audit as audits
from vicinal.cli import demo, folders

STEPS = ("fsync", "replace", "rename", "link", "chmod", "mkdir")  # of os; writes are counted too
VOLATILE = ("provenance.json", "audit.json", "summary.json", "report.html", "compare.json",
            "compare.html")  # fmt: skip  # hold times


class Faults:
    """Counts the steps a call takes on the disk, and fails the n-th."""

    def __init__(self, monkeypatch, fail_at=None, error=errno.ENOSPC):
        self.count, self.fail_at, self.error = 0, fail_at, error
        for name in STEPS:
            monkeypatch.setattr(files.os, name, self.counted(getattr(os, name)))
        monkeypatch.setattr(files.os, "fdopen", self.opened(os.fdopen))

    def step(self):
        self.count += 1
        if self.count == self.fail_at:
            raise OSError(self.error, os.strerror(self.error))

    def counted(self, real):
        def call(*args, **kwargs):
            self.step()
            return real(*args, **kwargs)

        return call

    def opened(self, real):
        def call(*args, **kwargs):
            file = real(*args, **kwargs)
            try:
                self.step()  # the write that follows
            except OSError:
                file.write(b"half")
                file.close()
                raise
            return file

        return call


CHEAP = ("--space", "raw", "--map", "linear")  # the same files, sooner

CALLS = {
    "audit": ["audit", "{w}/t.npz", "{w}/q.npz", "--k", "4", "-o", "out", "-q", *CHEAP],
    "audit, written": ["audit", "{w}/t.npz", "{w}/q.npz", "--k", "4", "-o", "out", "-q", *CHEAP],
    "audit, applied": [
        "audit",
        "{w}/t.npz",
        "--k",
        "4",
        "-o",
        "out",
        "-q",
        "--apply",
        "{w}/decisions.csv",
        *CHEAP,
    ],
    "audit, streamed": [
        "audit",
        "{w}/t.parquet",
        "{w}/q.npz",
        "--k",
        "4",
        "--memory",
        "16GB",
        "-o",
        "out",
        "-q",
        *CHEAP,
    ],
    "embed": [
        "embed",
        "{w}/net.py:make",
        "{w}/t.npz",
        "--layer",
        "0",
        "--fresh",
        "-o",
        "out",
        "-q",
    ],
    "fit": ["fit", "{w}/t.npz", "--k", "4", "-o", "out.vic", "-q"],
    "predict": ["predict", "{w}/trust.vic", "{w}/q.npz", "-o", "out.csv", "--jsonl", "out.jsonl"],
    "compare": ["compare", "{w}/run", "{w}/run", "-o", "out", "--seed", "1", "-q"],
    "demo": ["demo", "-o", "out", "-q"],
}
AUDITS = [verb for verb in CALLS if verb.startswith(("audit", "demo"))]
REMEMBERED = ("audit, written", "audit, applied", "demo")  # computed once, written every time
OLD = {
    **{verb: ["audit", "{w}/t.npz", "--k", "3", "-o", "out", "-q", *CHEAP] for verb in AUDITS},
    "embed": ["embed", "{w}/net.py:make", "{w}/t.npz", "--layer", "1", "-o", "out", "-q"],
    "fit": ["fit", "{w}/q.npz", "--k", "3", "-o", "out.vic", "-q"],
    "predict": ["predict", "{w}/trust.vic", "{w}/z.npy", "-o", "out.csv", "--jsonl", "out.jsonl"],
    "compare": ["compare", "{w}/run", "{w}/run", "-o", "out", "-q"],
}


def stable(found):
    """Without what differs between equal runs: files that hold times, the order in a header."""
    kept = {n: b"" if n.split("/")[-1] in VOLATILE else v for n, v in found.items()}
    sums = {n: re.findall(rb'"checksum":"(\w+)"', v) for n, v in kept.items() if n.endswith(".vic")}
    return kept | sums


def words(call, world):
    return [word.format(w=world) for word in call]


@pytest.fixture
def remembered(monkeypatch):
    """Audits of the same settings are computed once; what follows, the writing, is not."""
    known, compute = {}, audits.audit

    def audit(*args, settings, **kwargs):
        key = (settings.k, kwargs.get("query") is None)
        if key not in known:
            known[key] = compute(*args, settings=settings, **kwargs)
        return known[key]

    def patch():
        monkeypatch.setattr(audits, "audit", audit)
        monkeypatch.setattr(demo, "demonstration", planted)
        monkeypatch.setattr(demo, "audited", lambda planted, seed, progress: found())

    return patch


@functools.cache
def planted(seed=0):
    return demonstration(seed)


@functools.cache
def found():
    return audited(planted(), 0)


def few_at_a_time(monkeypatch):
    """No audit fits into memory, twenty rows are anchors, eight are judged at a time."""
    monkeypatch.setattr(scale, "needed", lambda rows, settings: 1 << 60)
    monkeypatch.setattr(sampled, "ANCHORS", 20)
    monkeypatch.setattr(sampled, "PASS", 8)


# An audit is computed anew after each step that fails; DOORS_TIMES=20 fails them all.
STRIDES = {"audit": 15, "audit, written": 4, "audit, applied": 8, "audit, streamed": 20, "demo": 12}


@pytest.mark.parametrize("start", ["over an old one", "anew"])
@pytest.mark.parametrize("verb", CALLS)
def test_a_write_that_fails_leaves_the_old_files_or_the_new(
    world, tmp_path, verb, start, times, remembered, monkeypatch
):
    if verb in REMEMBERED:
        remembered()
    if verb == "audit, streamed":
        few_at_a_time(monkeypatch)
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        if start != "anew":
            assert said(folder, *words(OLD[verb], world)).code == 0
    before = snapshot(old)
    with pytest.MonkeyPatch.context() as patch:
        steps = Faults(patch)
        assert said(new, *words(CALLS[verb], world)).code == 0
    assert steps.count > 2
    after = stable(snapshot(new))
    stride = max(1, STRIDES.get(verb, 1) // times)
    for at in range(1 + (start == "anew"), steps.count + 1, stride):
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, fail_at=at, error=[errno.ENOSPC, errno.EFBIG, errno.EACCES][at % 3])
            answer = said(old, *words(CALLS[verb], world))
        found = snapshot(old)
        if answer.code == 0:  # a step that could be gone without, like a hard link
            assert stable(found) == after, (at, answer.err)
            shutil.rmtree(old)
            old.mkdir()
            if start != "anew":
                assert said(old, *words(OLD[verb], world)).code == 0
            before = snapshot(old)
        else:
            assert answer.code == 2, (at, answer.err)
            assert answer.sentence is not None, (at, answer.err)
            assert found == before, (at, sorted(found.keys() ^ before.keys()))
    assert said(old, *words(CALLS[verb], world)).code == 0
    assert stable(snapshot(old)) == after
    print(f"faults, {verb}, {start}: {len(range(1, steps.count + 1, stride))} of {steps.count}")


def new_run(out, names):
    """A run of files that hold their own names."""
    with folders.locked(out), folders.replacing(out) as new:
        for name in names:
            files.write_atomically(new / name, f"{''.join(names)} {name}")
        mark = {"format": folders.FORMAT, "files": [*names, folders.MARK]}
        folders.write_json(new / folders.MARK, mark)


def dying_run(out, names, at):
    """The same in a process of its own that dies at its n-th step; whether it came to its end."""
    child = os.fork()
    if child == 0:
        count = 0

        def dying(real):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == at:
                    os._exit(9)
                return real(*args, **kwargs)

            return call

        for name in ("replace", "rename", "link", "mkdir", "unlink", "fsync", "rmdir"):
            setattr(os, name, dying(getattr(os, name)))
        try:
            new_run(out, names)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_dies_at_any_step_leaves_the_old_run_or_the_new(tmp_path):
    out, states, ended, at = tmp_path / "out", [], False, 0
    while not ended:
        shutil.rmtree(out, ignore_errors=True)
        new_run(out, "abc")
        at += 1
        ended = dying_run(out, "bcd", at)
        with folders.locked(out):
            pass
        left = {path.name: path.read_text() for path in out.iterdir()}
        mark = json.loads(left.pop("provenance.json"))
        assert set(mark["files"]) == {*left, "provenance.json"}, at
        (state,) = {text.split()[0] for text in left.values()}  # all of one run
        assert sorted(left) == list(state), at
        states.append(state)
    assert states == sorted(states)  # old ones up to the moment of decision, new ones after
    assert set(states) == {"abc", "bcd"}
    print(f"deaths: {len(states)}")


def test_what_a_dying_writer_left_is_swept_by_the_next_but_not_what_is_being_written(tmp_path):
    stale = tmp_path / ".p.csv.abcd_123.partial"
    stale.write_text("half")
    mine = tmp_path / ".p.csv.partial"  # not a name of ours
    mine.write_text("x")
    with files._written(tmp_path / "p.csv", b"now") as busy:
        files.write_atomically(tmp_path / "p.csv", "whole")
        assert busy.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".p.csv.partial", "p.csv"]
    assert (tmp_path / "p.csv").read_text() == "whole"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_sentence(world, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    for call in (CALLS["audit"], CALLS["fit"], CALLS["predict"], CALLS["compare"]):
        assert said(tmp_path / "closed", *words(call, world)).sentence is not None


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from vicinal.cli.__main__ import main
import vicinal.cli.audit
resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
sys.exit(main(sys.argv[1:]))
"""


def test_a_limit_on_the_size_of_files_is_a_sentence(world, tmp_path):
    for call in (CALLS["audit"], CALLS["fit"]):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, *words(call, world)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_a_typo_does_not_block_a_folder(world, tmp_path):
    call = ["embed", f"{world}/net.py:make", f"{world}/t.npz", "-o", "out", "-q", "--layer"]
    assert said(tmp_path, *call, "fc").code == 2
    assert list(tmp_path.iterdir()) == []
    assert said(tmp_path, *call, "1").code == 0
