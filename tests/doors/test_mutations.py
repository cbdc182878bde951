"""Every file format, damaged or forged: it is read, or refused with one sentence and no trace."""

import json
import shutil

import numpy as np
import pytest
import torch

from doors import mutations
from doors.attempts import Tally
from report.synthetic import image_audit
from vicinal.audits.record import Audit
from vicinal.checks import InputError
from vicinal.cli.run_folder import load_media
from vicinal.confidence import LinearClassifier, bundle, load
from vicinal.report import render

READERS = {  # a file of the world, and the call that reads it
    "t.npz": ["check", "t.npz"],
    "z.npy": ["check", "z.npy"],
    "t.csv": ["check", "t.csv"],
    "t.jsonl": ["check", "t.jsonl"],
    "t.parquet": ["check", "t.parquet"],
    "trust.vic": ["predict", "trust.vic", "q.npz", "-o", "p.csv"],
    "run/audit.json": ["compare", "run", "run", "-o", "cmp"],
    "capture/manifest.json": ["check", "capture"],
    "capture/embed.json": ["check", "capture"],
    "capture/shard-00000.safetensors": ["check", "capture"],
    "w.pt": ["layers", "torch.nn:Linear", "--weights", "w.pt", *["--model-arg", "in_features=4"],
             "--model-arg", "out_features=3"],
    "photos/cat/0.png": ["embed", "net.py:make", "photos", "--gray", "--model-arg", "width=16",
                         "-o", "made"],
}  # fmt: skip
WRITTEN = ("p.csv", "cmp", "made", "new")


@pytest.fixture
def copy(world, tmp_path):
    shutil.copytree(world, tmp_path / "w")
    return tmp_path / "w"


@pytest.mark.parametrize("name", READERS)
def test_bytes_that_were_damaged_are_read_or_refused(copy, name, times):
    tally, whole = Tally(f"damaged {name}"), (copy / name).read_bytes()
    for at in range(16 * times):
        rng = np.random.default_rng(mutations.seed_of("bytes", name, at))
        (copy / name).write_bytes(mutations.bytes_of(whole, rng))
        tally.attempt(copy, at, *READERS[name], written=WRITTEN)
        for left in ("cmp", "made"):
            shutil.rmtree(copy / left, ignore_errors=True)
    tally.check()


@pytest.mark.parametrize("name", [n for n in READERS if n.endswith(".json")])
def test_json_whose_fields_were_changed_is_read_or_refused(copy, name, times):
    tally, whole = Tally(f"forged {name}"), json.loads((copy / name).read_text())
    for at in range(40 * times):
        rng = np.random.default_rng(mutations.seed_of("json", name, at))
        (copy / name).write_text(json.dumps(mutations.json_of(whole, rng)))
        tally.attempt(copy, at, *READERS[name], written=WRITTEN)
        shutil.rmtree(copy / "cmp", ignore_errors=True)
    tally.check()


@pytest.fixture(scope="module")
def records(world):
    """A record of rows, and one with everything that an audit of a model can find."""
    texts = [(world / "run" / "audit.json").read_text(), image_audit(60)[0].to_json()]
    return [json.loads(text) for text in texts]


@pytest.mark.parametrize("which", [0, 1])
def test_a_record_that_was_forged_is_refused_when_it_is_read_or_has_a_page(records, which, times):
    """Whoever has read it can draw it: nothing but a sentence comes from the page, either."""
    tally = Tally(f"forged audit.json, page {which}")
    for at in range(60 * times):
        rng = np.random.default_rng(mutations.seed_of("page", which, at))
        text = json.dumps(mutations.json_of(records[which], rng))
        tally.counts["tried"] += 1
        try:
            audit = Audit.from_json(text)
        except InputError:
            tally.counts["sentences"] += 1
            continue
        try:
            render(audit)
            tally.counts["accepted"] += len(audit.samples) == len(audit.cases.id)
        except Exception as error:
            tally.faults.append((at, repr(error)))
    tally.check()


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("video", np.array(["1"])), ("images", np.array(["[1]"])), ("images", np.array(["{"])),
        ("images", np.zeros((2, 3))), ("texts", np.array(["[1]"])), ("texts", np.zeros((2, 3))),
        ("tables", np.array(['"a"'])), ("images", np.array([["[1]", "2"]])),
    ],
)  # fmt: skip
def test_media_of_another_form_are_refused(copy, kind, items):
    path = copy / "run" / "media.npz"
    np.savez(path, kind=np.array(kind), columns=np.array(["a"]), query=items, support=items)
    with pytest.raises(InputError):
        load_media(path)


def test_a_head_that_was_forged_with_a_right_checksum_judges_or_is_refused(copy, world, times):
    tally = Tally("forged trust.vic")
    for at in range(60 * times):
        rng = np.random.default_rng(mutations.seed_of("head", at))
        (copy / "trust.vic").write_bytes(mutations.forged_head(world / "trust.vic", rng))
        tally.attempt(copy, at, *READERS["trust.vic"], written=WRITTEN)
    assert tally.counts["sentences"] > 30 * times
    tally.check()


ODD_FACTS = [  # of a linear head, and of one with standards
    ("linear", lambda facts, _: facts["classes"].update(names=[0, 0, 2])),
    ("linear", lambda facts, _: facts["classes"].update(names=[2, 1, 0])),
    ("linear", lambda facts, _: facts["classes"].update(names=[False, 1, 2])),
    ("linear", lambda facts, _: facts["linear_options"].update(folds=[])),
    ("linear", lambda facts, _: facts["linear_options"].update(l2="x")),
    ("linear", lambda facts, _: facts.update(features=[[]])),
    ("trust", lambda facts, _: facts["options"].update(k=0)),
    ("trust", lambda facts, _: facts["space"].update(losses="x")),
    ("trust", lambda facts, _: facts["space"].update(form=3)),
    ("trust", lambda facts, _: facts["made_from"].update(features=["a", "a", "b", "c"])),
    ("trust", lambda _, tensors: tensors["prior"].zero_()),
    ("trust", lambda _, tensors: tensors.update(held_threshold=torch.ones(1, dtype=torch.bool))),
    ("trust", lambda _, tensors: tensors.update(held_familiar=tensors["held_familiar"].long())),
]


@pytest.mark.parametrize(("name", "change"), ODD_FACTS)
def test_facts_that_no_head_was_saved_with_are_refused(world, tmp_path, name, change):
    path = tmp_path / "linear.vic" if name == "linear" else world / "trust.vic"
    if name == "linear":
        with np.load(world / "t.npz") as rows:
            LinearClassifier(l2=1.0).fit(rows["Z"], rows["y"]).save(path)
    kind, tensors, facts = bundle.read(path)
    bundle.write(tmp_path / "same.vic", kind, tensors, facts)
    load(tmp_path / "same.vic")
    change(facts, tensors)
    bundle.write(tmp_path / "odd.vic", kind, tensors, facts)
    with pytest.raises(InputError, match=r"cannot read .*odd\.vic"):
        load(tmp_path / "odd.vic")


def test_json_lines_with_odd_values_are_read_or_refused(copy, times):
    tally = Tally("forged t.jsonl")
    lines = [json.loads(line) for line in (copy / "t.jsonl").read_text().splitlines()]
    for at in range(30 * times):
        rng = np.random.default_rng(mutations.seed_of("lines", at))
        wrong = mutations.json_of(lines, rng)
        wrong = wrong if isinstance(wrong, list) else [wrong]
        (copy / "t.jsonl").write_text("\n".join(map(json.dumps, wrong)))
        tally.attempt(copy, at, *READERS["t.jsonl"])
    tally.check()


@pytest.mark.parametrize("verb", ["check", "audit"])
def test_arrays_of_every_kind_under_every_key_are_read_or_refused(copy, verb, times):
    tally = Tally(f"odd arrays, {verb}")
    extra = {"check": [], "audit": ["-o", "new", "--k", "3", "-q", "--no-images"]}[verb]
    for at in range({"check": 60, "audit": 8}[verb] * times):
        rng = np.random.default_rng(mutations.seed_of("arrays", verb, at))
        np.savez(copy / "t.npz", **mutations.odd_arrays(rng))
        tally.attempt(copy, at, verb, "t.npz", *extra, written=WRITTEN)
        shutil.rmtree(copy / "new", ignore_errors=True)
    tally.check()


def test_archives_that_hold_no_arrays_are_refused(copy, times):
    tally = Tally("odd archives")
    for at in range(30 * times):
        (copy / "t.npz").write_bytes(mutations.odd_zip(np.random.default_rng(at)))
        tally.attempt(copy, at, "check", "t.npz")
    tally.check()


CONFIG = {"support": "t.npz", "query": "q.npz", "k": "many"}  # refused at the latest by its k


def test_a_config_with_any_fields_is_refused_or_read(copy, times):
    tally = Tally("forged config.json")
    whole = json.loads((copy / "run" / "config.json").read_text()) | CONFIG
    for at in range(60 * times):
        rng = np.random.default_rng(mutations.seed_of("config", at))
        wrong = mutations.json_of(whole, rng)
        if isinstance(wrong, dict) and wrong.get("k") != "many":
            continue  # an audit of its own would follow
        (copy / "c.json").write_text(json.dumps(wrong))
        tally.attempt(copy, at, "audit", "-", "--config", "c.json", "-o", "new")
    tally.check()


HEADERS = [
    {"shape": "(10000000000000, 64)"}, {"shape": "(True, 4)"}, {"shape": "(-1, 4)"}, {"shape": "3"},
    {"shape": "(3.0, 4)"}, {"shape": "(3,)*4"}, {"shape": "()"}, {"descr": "'|V4'"},
    {"descr": "'<U4'"}, {"descr": "'|O'"}, {"descr": "'<c8'"}, {"descr": "[('a', '<f4')]"},
    {"descr": "'?'"}, {"descr": "'<M8[s]'"}, {"descr": "os.system('x')"}, {"order": "2"},
    {"version": (2, 0)}, {"version": (3, 0)}, {"version": (9, 9)}, {"body": b""},
    {"body": b"\0" * 47},
    {"shape": "(3, 4)" + " " * 20000},
]  # fmt: skip


def test_headers_that_claim_anything_are_refused_without_making_room(copy):
    tally = Tally("npy headers")
    for header in HEADERS:
        (copy / "z.npy").write_bytes(mutations.npy_bytes(**header))
        tally.attempt(copy, header, "check", "z.npy")
    tally.check()
