"""What the tool advises works when it is typed, and a mistake is told with its mend."""

import csv
import html
import importlib.util
import json
import re
import shlex
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

import vicinal as library
from vicinal.checks import InputError
from vicinal.cli.explore import judge_of
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import ExploreOptions

NET = """
import torch
from torch import nn

def make(width=24):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))
"""


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    rng = np.random.default_rng(0)
    for name, count in (("train", 20), ("test", 15), ("new", 4)):
        for code, kind in enumerate(("cat", "dog", "owl")):
            folder = tmp_path / name / ("" if name == "new" else kind)
            folder.mkdir(parents=True, exist_ok=True)
            for at in range(count):
                pixels = np.clip(rng.normal(60 + 70 * code, 25, (12, 12)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{kind}{at}.png")
    return tmp_path


AUDIT = ("audit", "train", "test", "--model", "net.py:make", "--gray", "--size", "8", "--k", "10")


def test_images_are_judged_as_the_heads_record_says_and_by_the_model_that_is_typed(vicinal, photos):
    code, out, err = vicinal(*AUDIT, "-o", "run", "--mean", "0.5", "--std", "0.25")
    assert code == 0, err
    assert "vicinal predict run/trust.vic test" in " ".join(out.split())
    code, _, err = vicinal("predict", "run/trust.vic", "new")
    assert code == 2
    assert "A model is code, which a file may name and not run: add --model net.py:make." in err
    assert not (photos / "predictions.csv").exists()
    code, out, err = vicinal(
        "predict", "run/trust.vic", "new", "--model", "net.py:make", "--head", "3"
    )
    assert code == 0, err
    assert out.split()[:2] == ["id", "label"]
    with (photos / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert np.mean([row["id"].startswith(row["label"]) for row in rows]) > 0.8
    assert rows[0]["reason"].startswith(("neighbors cat", "neighbors dog", "more foreign", "less"))
    code, _, _ = vicinal("predict", "run/trust.vic", "new/cat0.png", "--model", "net.py:make")
    assert code == 0  # its own predictions are replaced
    (photos / "predictions.csv").write_text("mine\n1\n")
    code, _, err = vicinal("predict", "run/trust.vic", "new", "--model", "net.py:make")
    assert code == 2
    assert "holds no predictions of vicinal" in err
    assert (photos / "predictions.csv").read_text() == "mine\n1\n"


def test_what_is_missing_for_the_model_to_take_the_images_is_named(vicinal, photos):
    code, _, err = vicinal("audit", "train", "test", "--model", "net.py:make", "--size", "8")
    assert code == 2
    assert "It takes these images with --gray." in err
    code, _, err = vicinal("embed", "net.py:make", "train", "--gray", "-o", "e")
    assert code == 2
    assert "It takes these images with --gray --size 8." in err


def test_a_config_alone_repeats_a_run_but_runs_no_model_by_itself(vicinal, files, photos):
    train, test = files / "train.npz", files / "test.npz"
    code, _, _ = vicinal("audit", train, test, "-o", "one", "-q", "--k", "20")
    assert code == 0
    code, _, err = vicinal("audit", "--config", "one/config.json", "-o", "two", "-q")
    assert code == 0, err
    one, two = (json.loads((photos / n / "summary.json").read_text()) for n in ("one", "two"))
    assert one["heads"] == two["heads"]
    again = one["provenance"]["reproduce"]
    assert again == "vicinal audit --config one/config.json"
    assert vicinal(*again.split()[1:], "-q")[0] == 0
    code, _, err = vicinal("audit")
    assert code == 2
    assert "vicinal audit TRAIN TEST, or vicinal audit --config" in err
    assert vicinal(*AUDIT, "-o", "m", "-q")[0] == 0
    code, _, err = vicinal("audit", "--config", "m/config.json", "-o", "n")
    assert code == 2
    assert "which would run code" in err
    words = ("audit", "--config", "m/config.json", "--model", "net.py:make", "-o", "n", "-q")
    assert vicinal(*words)[0] == 0


def test_explore_is_advised_where_it_can_run(vicinal, files, monkeypatch):
    words = ("audit", files / "train.npz", files / "test.npz", "--k", "20", "-o", "run")
    _, out, _ = vicinal(*words)
    assert "next   open run/report.html\n       vicinal explore run" in out
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    _, out, _ = vicinal(*words)
    assert "       vicinal explore" not in out
    assert "pip install 'vicinal[explore]'" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare train.npz test.npz", "train.npz is data, not a run. Audit it first"),
        ("audit table.csv", "(columns: species, a, b). Did you mean --label-key species?"),
        ("audit sizes.csv", "worst area, the kind). Did you mean --label-key 'the kind'?"),
        ("fit plain.csv", "(columns: a, b). Name it with --label-key."),
        ("audit flat", "Put its images into one folder for each class"),
        ("audit sets", "As in: vicinal audit sets/train sets/test"),
        ("audit Z.npy", "Z.npy has no labels. Give them beside it: Z.npy+labels.npy"),
        (
            "audit odd.npz",
            "has no key 'embeddings' (keys: foo, bar). Did you mean --embedding-key foo?",
        ),
        (
            "audit train.npz words.npz",
            "text like 'a', but the support's labels are numbers like 0",
        ),
        ("audit latin.csv", "latin.csv: it is no UTF-8 text (byte 18 is 0xe9). Save it as UTF-8."),
        ("audit counted.csv", "the column 'nr' only counts the rows"),
        ("audit gaps.csv", "gaps.csv: row 1 has no label."),
        ("audit train.npz test.npz --model net.py", "as in net.py:make, net.py:Net."),
        ("audit run", "run is a run of an audit, not data"),
        (
            "audit head.vic",
            "head.vic is a saved head, no rows. It judges: vicinal predict head.vic",
        ),
        ("audit train.npz test.npz --max-mb 0", "--max-mb must be at least 0.1"),
        ("explore run --port 99999", "--port must be at least 0 and at most 65535"),
    ],
)
def test_a_mistake_is_told_with_its_mend(vicinal, files, tmp_path, words, message):
    (tmp_path / "table.csv").write_text("species,a,b\n" + "cat,1,2\ndog,3,4\n" * 9)
    (tmp_path / "sizes.csv").write_text("worst area,the kind\n" + "1,cat\n3,dog\n" * 9)
    (tmp_path / "plain.csv").write_text("a,b\n" + "1,2\n3,4\n" * 9)
    (tmp_path / "flat").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "flat" / "a.png")
    for part in ("train/cat", "train/dog", "test/cat"):
        (tmp_path / "sets" / part).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "sets" / part / "a.png")
    np.save(tmp_path / "Z.npy", np.eye(6))
    np.savez(tmp_path / "odd.npz", foo=np.eye(6), bar=np.arange(6))
    np.savez(tmp_path / "words.npz", Z=np.eye(64)[:40], y=np.array(["a", "b"] * 20))
    (tmp_path / "latin.csv").write_bytes("a,b,label\n1,2,x\n1,é".encode("latin-1"))
    counted = "".join(f"{at},{at % 3},{'ab'[at > 15]}\n" for at in range(30))
    (tmp_path / "counted.csv").write_text("nr,x,label\n" + counted)
    (tmp_path / "gaps.csv").write_text("a,b,label\n1,2,x\n3,4,\n")
    (tmp_path / "net.py").write_text("def make(): ...\nclass Net: ...\n")
    (tmp_path / "head.vic").write_bytes(b"")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "audit.json").write_text("{}")
    words = [str(files / w) if (files / w).is_file() else w for w in shlex.split(words)]
    code, _, err = vicinal(*words)
    assert code == 2
    assert message in " ".join(err.split())


def test_a_model_of_scikit_learn_is_told_how_it_is_audited():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    z = rng.normal(size=(120, 4)) + y[:, None]
    model = LogisticRegression().fit(z[:80], y[:80])
    with pytest.raises(InputError, match="logits=model.predict_log_proba") as told:
        library.audit(model, (z[:80], y[:80]), (z[80:], y[80:]))
    assert "no layers to listen to" in str(told.value)
    report = library.audit(
        support=(z[:80], y[:80]), query=(z[80:], y[80:]), logits=model.predict_log_proba(z[80:])
    )
    assert any(head.name == "softmax" for head in report.heads)


def test_names_without_a_row_are_told():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    z = rng.normal(size=(120, 4)) + y[:, None]
    about = library.studies.About(class_names=["cat", "dog", "owl"])
    report = library.audit(support=(z[:80], y[:80]), query=(z[80:], y[80:]), about=about)
    assert any("no row is of owl" in text for text in report.warnings)


def commands_on(page):
    """What the page offers to copy."""
    found = re.findall(r'data-copy="([^"]*)"', page.read_text())
    return [html.unescape(text) for text in found]


def advised(out):
    """What the terminal says to type next."""
    return [line[7:] for line in out.splitlines() if line[7:].startswith("vicinal predict ")]


@pytest.mark.parametrize("kind", ["arrays", "table", "images"])
def test_every_command_of_page_and_terminal_works_when_it_is_pasted(vicinal, photos, files, kind):
    rng = np.random.default_rng(0)
    kinds = np.array(["a", "b"])[np.arange(80) % 2]
    z = rng.normal(size=(80, 3)) + 3 * (kinds == "a")[:, None]
    lines = [",".join([*map(str, row), name]) for row, name in zip(z, kinds, strict=True)]
    (photos / "rows.csv").write_text("\n".join(["u,v,w,kind", *lines]))
    words = {
        "arrays": ("audit", files / "train.npz", files / "test.npz", "--k", "20"),
        "table": ("audit", "rows.csv", "--label-key", "kind", "--k", "10"),
        "images": AUDIT,
    }[kind]
    code, out, err = vicinal(*words, "-o", "my run")
    assert code == 0, err
    commands = commands_on(photos / "my run" / "report.html")
    assert advised(out) == [text for text in commands if " predict " in text]
    assert len(advised(out)) == 1
    for text in commands:
        if "--apply" in text:
            with (photos / "my run" / "suspects.csv").open(newline="") as file:
                first = next(csv.DictReader(file))
            kept = [first[key] for key in ("id", "row", "given", "suggested", "suggested")]
            heading = "id,row,given,suggested,label,decision"
            (photos / "decisions.csv").write_text(f"{heading}\n{','.join(kept)},relabel\n")
        code, _, err = vicinal(*shlex.split(text)[1:])
        assert code == 0, (text, err)


def test_explore_judges_a_picture_by_the_model_that_is_typed(vicinal, photos, monkeypatch):
    monkeypatch.chdir(photos)
    code, out, err = vicinal(*AUDIT, "-o", "run")
    assert code == 0, err
    assert "       vicinal explore run --model net.py:make" in out
    audit, picture = read_run(photos / "run"), (photos / "new" / "owl0.png").read_bytes()
    run = ExploreOptions(folder=photos / "run")
    with pytest.raises(InputError, match="type it: vicinal explore --model net.py:make"):
        judge_of(audit, run)("owl0.png", picture)
    (answer,) = judge_of(audit, replace(run, model="net.py:make"))("owl0.png", picture)
    assert answer["label"] == "owl"


@pytest.mark.parametrize("verb", ["predict", "check", "audit"])
def test_rows_are_left_out_by_a_flag_only_where_the_verb_has_it(vicinal, files, run_folder, verb):
    data = dict(np.load(files / "test.npz"))
    data["Z"][3] = np.nan
    np.savez(files / "holes.npz", **data)
    head = [run_folder / "trust.vic"] if verb == "predict" else []
    code, _, err = vicinal(verb, *head, files / "holes.npz")
    assert code == 2
    assert "in 1 of 240 rows (first: row 3" in err
    assert ("--drop-bad" in err) == (verb == "audit")
