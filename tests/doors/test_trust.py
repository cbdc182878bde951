"""Nothing that somebody else made runs code, leads out of its folder, or loses what is not ours."""

import csv
import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import torch

from doors.attempts import Tally, inside, said, snapshot
from vicinal.audits.files import csv_text, word
from vicinal.checks import InputError
from vicinal.cli.console import Console
from vicinal.cli.explore import judge_of
from vicinal.cli.predict import embedded
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import ExploreOptions, PredictOptions
from vicinal.confidence.made_from import MadeFrom

EVIL = "import pathlib\npathlib.Path('ran').write_text('x')\ndef make(): pass\nrows = make\n"


@pytest.fixture
def theirs(world, tmp_path):
    """A copy of the world beside a module whose import leaves a trace."""
    shutil.copytree(world, tmp_path / "w")
    (tmp_path / "w" / "evil_net.py").write_text(EVIL)
    return tmp_path / "w"


def configured(folder, **settings):
    path = folder / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    "name", ["os:system", "evil_net.py:make", "evil_net:make", "evil.ts", "m.pt2"]
)
def test_a_run_folder_names_a_model_that_explore_shows_and_does_not_import(theirs, name):
    configured(theirs, model=name)
    with inside(theirs):
        audit = read_run(theirs / "run")
        judge = judge_of(audit, ExploreOptions(folder=theirs / "run"))
        with pytest.raises(InputError, match="--trust-folder") as refused:
            judge("x.png", (theirs / "photos" / "cat" / "0.png").read_bytes())
    assert name in str(refused.value)
    assert not (theirs / "ran").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "evil_net.py:make"}, {"model": "os:system"}, {"trust_pickle": True},
        {"support": "evil_net.py:rows"}, {"query": "evil_net:rows"}, {"calib": "evil_net:rows"},
        {"model": "vicinal.audits.demo:network ", "query": "evil_net:rows"},
        {"foreign": "evil_net.py:rows"}, {"online": True},
    ],
)  # fmt: skip
def test_a_config_runs_no_code_unless_it_is_typed_or_trusted(theirs, settings):
    configured(theirs, **settings)
    tally = Tally("configs")
    answer = tally.attempt(
        theirs, settings, "audit", "-", "--config", "run/config.json", "-o", "new"
    )
    tally.check()
    assert answer.code == 2
    assert "--trust-folder" in answer.err
    assert not (theirs / "ran").exists()


def test_what_is_typed_or_trusted_runs(theirs):
    configured(theirs, model="evil_net.py:make")
    for extra in (["--model", "evil_net.py:make"], ["--trust-folder"]):
        call = ["audit", "-", "--config", "run/config.json", "-o", "new", *extra]
        assert "returned a NoneType" in said(theirs, *call).err
        (theirs / "ran").unlink()


class Payload:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_weights_that_a_head_names_are_not_unpickled_even_where_pickles_are_trusted(theirs):
    torch.save(Payload(), theirs / "evil.pt")
    made = MadeFrom(model="net.py:make", weights="evil.pt")
    options = PredictOptions(
        head=theirs / "trust.vic", query="t.npz", model=made.model, trust_pickle=True
    )
    with inside(theirs), pytest.raises(InputError, match=r"weights from evil.pt"):
        embedded(options, made, Console(quiet=True))
    assert not (theirs / "ran").exists()


def test_pickles_are_not_opened(theirs):
    torch.save(Payload(), theirs / "w.pt")
    np.savez(theirs / "t.npz", Z=np.zeros((4, 2)), y=np.array([Payload()] * 4, dtype=object))
    np.save(theirs / "z.npy", np.array([Payload()] * 4, dtype=object))
    tally = Tally("pickles")
    for line in ("layers net.py:make --weights w.pt", "check t.npz", "check z.npy",
                 "fit t.npz", "predict trust.vic z.npy"):  # fmt: skip
        tally.attempt(theirs, line, *line.split())
    assert tally.counts["sentences"] == 5
    tally.check()
    assert not (theirs / "ran").exists()


def test_a_program_is_loaded_with_a_sentence_that_it_executes(theirs):
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),))
    torch.export.save(program, theirs / "m.pt2")
    answer = said(theirs, "layers", "m.pt2")
    assert "m.pt2 is a program: to load it is to run what it holds" in answer.err
    (theirs / "m.pt2").write_bytes(b"none")
    answer = said(theirs, "layers", "m.pt2")
    assert answer.code == 2
    assert answer.sentence is not None


SITE = {"manifest.json": '{"name": "app", "version": 2}', "config.json": "{}", "media.npz": "x",
        "summary.json": "{}", "provenance.json": '{"who": "me"}', "index.html": "<p>"}  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [SITE, ["manifest.json"], ["config.json", "media.npz"], ["provenance.json"], ["summary.json"],
     [".work"], [".new"]],
)  # fmt: skip
def test_a_folder_of_somebody_elses_is_left_alone(theirs, names):
    site = theirs / "site"
    site.mkdir()
    for name in names:
        if name in SITE:
            (site / name).write_text(SITE[name])
        else:
            (site / name).mkdir()
            (site / name / "mine.txt").write_text("x")
    tally = Tally("foreign folders")
    embed = "embed net.py:make t.npz -o site"
    for line in ("audit t.npz --k 3 -o site", "audit t.npz --k 3 -o site --fresh", "demo -o site",
                 embed, f"{embed} --fresh"):  # fmt: skip
        tally.attempt(theirs, line, *line.split())
    assert tally.counts["sentences"] == 5
    tally.check()


@pytest.mark.parametrize("name", ["compare.json", "compare.html"])
def test_a_comparison_replaces_no_file_of_another_kind(theirs, name):
    (theirs / "site").mkdir()
    (theirs / "site" / name).write_text("{}")
    answer = said(theirs, "compare", "run", "run", "-o", "site")
    assert answer.code == 2
    assert "not of vicinal compare" in answer.err
    assert (theirs / "site" / name).read_text() == "{}"
    for _ in range(2):  # its own it does
        assert said(theirs, "compare", "run", "run", "-o", "cmp").code == 0


def test_a_config_does_not_choose_where_pictures_may_lie(theirs):
    configured(theirs, media_root="/")
    answer = said(theirs, "audit", "-", "--config", "run/config.json", "-o", "new")
    assert answer.code == 2
    assert "no setting 'media_root'" in answer.err


def test_fresh_removes_only_the_files_that_our_manifest_lists(theirs):
    (theirs / "capture" / "notes.txt").write_text("mine")
    (theirs / "run" / "notes.txt").write_text("mine")
    (theirs / "run" / "dropped.csv").write_text("mine: this run dropped nothing")
    call = ["embed", "net.py:make", "t.npz", "--layer", "0", "-o", "capture", "--fresh"]
    assert said(theirs, *call).code == 0
    assert said(theirs, *["audit", "t.npz", "--k", "3", "-o", "run", "--fresh"]).code == 0
    assert (theirs / "capture" / "notes.txt").read_text() == "mine"
    assert (theirs / "run" / "notes.txt").read_text() == "mine"
    assert (theirs / "run" / "dropped.csv").exists()


def test_links_in_folders_of_ours_lead_nowhere(theirs, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "keep.txt").write_text("x")
    outside = snapshot(secret)
    tally = Tally("links")
    for name in (".work", ".lock", ".new", ".ready"):
        link = theirs / "run" / name
        link.symlink_to(secret / "keep.txt" if name == ".lock" else secret)
        tally.attempt(theirs, name, *["audit", "t.npz", "--k", "3", "-o", "run", "--fresh"])
        link.unlink()
    for name, call in (("run/audit.json", "compare run run -o cmp"), ("capture/manifest.json",
                       "check capture"), ("capture/shard-00000.safetensors", "check capture"),
                       ("capture/embed.json", "check capture")):  # fmt: skip
        path = theirs / name
        kept = path.rename(tmp_path / path.name)
        path.symlink_to(kept)
        tally.attempt(theirs, name, *call.split())
        path.unlink()
        kept.rename(path)
    assert tally.counts["sentences"] == 8
    assert snapshot(secret) == outside
    tally.check()


@pytest.mark.parametrize("name", ["../../x.safetensors", "/etc/passwd", "shard-1/../x", "x"])
def test_names_of_shards_stay_in_their_folder(theirs, name):
    path = theirs / "capture" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["file"] = name
    path.write_text(json.dumps(manifest))
    answer = said(theirs, "check", "capture")
    assert answer.code == 2
    assert "has a name that we do not give" in answer.err


def test_a_damaged_shard_is_noticed_when_it_is_read(theirs):
    path = theirs / "capture" / "shard-00000.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1  # a number that is as good as any other
    path.write_bytes(raw)
    answer = said(theirs, "check", "capture")
    assert "it was damaged or changed after it was written" in answer.err


def test_pictures_are_read_below_the_data_file_or_the_folder_that_was_named(theirs, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    shutil.copy(theirs / "photos" / "cat" / "0.png", secret / "s.png")
    (theirs / "inner.png").symlink_to(secret / "s.png")
    for path in (f"{secret}/s.png", "../secret/s.png", "inner.png"):
        rows = [f"{i * i},{i % 2},{path},{'ab'[i % 2]}" for i in range(30)]
        (theirs / "p.csv").write_text("x,z2,path,label\n" + "\n".join(rows) + "\n")
        answer = said(theirs, *["audit", "p.csv", "--k", "3", "-o", "pics"])
        assert answer.code == 0
        assert "names pictures outside" in answer.err
        assert not (theirs / "pics" / "media.npz").exists()
        answer = said(theirs, *f"audit p.csv --k 3 -o pics --media-root {tmp_path}".split())
        assert answer.code == 0, answer.err
        assert (theirs / "pics" / "media.npz").exists()
        shutil.rmtree(theirs / "pics")


def test_the_terminal_gets_no_control_characters(theirs):
    bad = "a\x1b[31m\x9b\r\x07\u202eb"
    lines = [{"embedding": [float(i), i % 2], "label": bad + str(i % 2), "id": bad + str(i)}
             for i in range(20)]  # fmt: skip
    (theirs / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    calls = [
        "check t.jsonl --json",
        "predict run/trust.vic t.jsonl --jsonl -",
        "check t.jsonl",
        "audit t.jsonl --k 3 -o r2",
        "fit t.jsonl --k 3 -o b.vic",
    ]
    for call in [*calls, "predict b.vic t.jsonl --head 9", "compare r2 r2", "check n\x1b[31m.npz"]:
        answer = said(theirs, *call.split(" "))
        shown = answer.out + answer.err
        assert not set(shown) & set("\x1b\x9b\r\x07\u202e"), call


def test_no_cell_runs_in_a_spreadsheet_or_starts_a_record_of_its_own(theirs):
    ids = ["=1+1", "+1+1", "-1+1", "@x", "\t=1", "row0\r=1+1", 'a"b', "a,b", "a\nb", " =1", "\r=1"]
    lines = [{"embedding": [float(i), i % 2], "label": f"={i % 2}", "id": ids[i % 11] + str(i)}
             for i in range(22)]  # fmt: skip
    (theirs / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert said(theirs, *["audit", "t.jsonl", "--k", "3", "-o", "r2", "-q"]).code == 0
    assert said(theirs, *["predict", "r2/trust.vic", "t.jsonl", "-o", "p.csv", "-q"]).code == 0
    for path in (theirs / "r2" / "samples.csv", theirs / "r2" / "suspects.csv", theirs / "p.csv"):
        rows = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))
        assert len({len(row) for row in rows}) == 1
        assert len(rows) == 23 or path.name == "suspects.csv"
        cells = [cell for row in rows for cell in row]
        numbers = [c for c in cells if c.lstrip(" ")[:1] in ("+", "-") and not c.startswith("'")]
        assert not [c for c in cells if c.lstrip(" ")[:1] in tuple("=@\t\r")]
        assert all(float(c) is not None for c in numbers)
        bare = path.read_bytes().replace(b'"row0\r', b"").replace(b"\"'\r", b"")
        assert b"\r" not in bare  # a carriage return is always inside quotes
    assert csv_text([["a\rb"]]) == '"a\rb"\n'
    assert word("＝1") == "'＝1"


def test_an_encrypted_archive_is_a_sentence(theirs):
    raw = bytearray((theirs / "t.npz").read_bytes())
    for mark, shift in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw.find(mark)
        while at >= 0:
            raw[at + shift] |= 1
            at = raw.find(mark, at + 4)
    (theirs / "t.npz").write_bytes(raw)
    with pytest.raises(RuntimeError), zipfile.ZipFile(theirs / "t.npz") as file:
        file.read("Z.npy")
    answer = said(theirs, "check", "t.npz")
    assert answer.code == 2
    assert "encrypted" in answer.err
