"""The other verbs, and how the command line behaves as a whole."""

import io
import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import vicinal as package
from vicinal.cli.__main__ import main
from vicinal.cli.explore import bound, judge_of
from vicinal.cli.explore_server import application
from vicinal.cli.folders import locked
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import VERBS, ExploreOptions
from vicinal.confidence.verdicts import VERDICTS


def test_alone_it_prints_the_lines_a_newcomer_needs(vicinal):
    code, out, _ = vicinal()
    assert code == 0
    assert "vicinal demo" in out
    assert "vicinal audit train.npz test.npz" in out
    code, out, _ = vicinal("--version")
    assert (code, out.strip()) == (0, f"vicinal {package.__version__}")


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "vicinal", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"vicinal {package.__version__}"


def test_every_command_has_help_with_an_example(vicinal):
    for verb in VERBS:
        code, out, _ = vicinal(verb, "--help")
        assert code == 0
        assert f"vicinal {verb}" in out


def test_a_mistyped_verb_or_option_is_answered_with_the_nearest(vicinal):
    code, _, err = vicinal("audt", "a.npz")
    assert code == 2
    assert "audit" in err
    code, _, err = vicinal("check", "a.npz", "--metrc", "l2")
    assert code == 2
    assert "--metric" in err


def test_a_missing_argument_is_answered_with_a_line_to_type(vicinal):
    for verb in ("compare", "embed", "predict"):
        code, _, err = vicinal(verb)
        assert code == 2
        assert f"For example: vicinal {verb} " in err


def test_an_error_of_ours_is_exit_code_3_with_a_log(vicinal, tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("vicinal.cli.check.read_rows", broken)
    code, _, err = vicinal("check", "a.npz")
    assert code == 3
    assert "fault of vicinal" in err
    assert "ZeroDivisionError" in (tmp_path / "vicinal-error.log").read_text()


def test_an_interrupt_is_exit_code_130(vicinal, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vicinal.cli.check.read_rows", stop)
    code, _, err = vicinal("check", "a.npz")
    assert code == 130
    assert "Run the same command again to continue" in err


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), signal.SIGTERM)", "sys.exit(15)", "sys.exit(1)"]
)
def test_who_is_asked_to_end_says_one_sentence(tmp_path, ending):
    """By the system, by the handler that Ray puts in its place, or by Ray as it connects."""
    script = f"""
import os, signal, sys
import vicinal.cli.__main__ as cli
def stop(*_): {ending}
import vicinal.cli.check
vicinal.cli.check.read_rows = stop
sys.argv = ["vicinal", "check", "a.npz"]
cli.entry()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 143
    assert done.stderr.split("\n") == [
        "", "interrupted. Run the same command again to continue.", ""
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_check_tells_what_files_hold_and_whether_they_fit(vicinal, files, tmp_path):
    code, out, _ = vicinal("check", files / "train.npz", files / "test.npz", "--json")
    assert code == 0
    first, second = json.loads(out)
    assert (first["rows"], first["dims"], first["classes"]) == (400, 64, 10)
    assert second["rows"] == 240
    np.savez(tmp_path / "other.npz", Z=np.ones((3, 5)), y=[0, 1, 0])
    code, _, err = vicinal("check", files / "train.npz", "other.npz")
    assert code == 2
    assert "64 dims but other.npz has 5" in " ".join(err.split())


def test_fit_then_predict_judges_new_rows(vicinal, files, tmp_path):
    code, out, _ = vicinal(
        "fit", files / "train.npz", "--calib", files / "val.npz", "--target-accuracy", "0.9"
    )
    assert code == 0
    assert "threshold conf ≥" in out
    assert "wrote  trust.vic" in out
    code, out, _ = vicinal("predict", "trust.vic", files / "test.npz", "--head", "3")
    assert code == 0
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[0] == "id,label,confidence,credibility,near_percentile,familiarity,verdict,reason"
    assert len(lines) == 241
    truth = np.load(files / "test.npz")["y"]
    labels = np.array([int(line.split(",")[1]) for line in lines[1:]])
    assert (labels == truth).mean() > 0.85
    counts, took = out.splitlines()[-2:]
    said = [part.split()[0] for part in counts.split(" · ")]
    assert said == [name for name in VERDICTS if name in said]  # in the order of every other page
    assert took.startswith("took   ")
    assert "judging" in took


def test_predict_streams_json_lines(vicinal, files, run_folder, monkeypatch):
    x = np.load(files / "test.npz")["Z"][:3]
    text = "\n".join(
        json.dumps({"id": f"r{i}", "embedding": row.tolist()}) for i, row in enumerate(x)
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code, out, _ = vicinal("predict", run_folder / "trust.vic", "-", "--jsonl", "-")
    assert code == 0
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["id"] for answer in answers] == ["r0", "r1", "r2"]
    assert {"label", "confidence", "verdict", "reason", "neighbors"} <= set(answers[0])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["predict", "none.vic", "{files}/test.npz"], "no such file: none.vic"),
        (["predict", "{files}/test.npz", "{files}/test.npz"], "test.npz"),
        (["predict", "{run}/trust.vic", "small.npz"], "fitted on 64 dims but small.npz has 3"),
        (["fit", "{files}/train.npz", "-o", "head.bin"], "must end in .vic"),
        (["compare", "{run}", "nowhere"], "no run in nowhere: there is no such folder"),
        (["compare", "{run}", "{run}", "--fail-if", "speed > 3"], "no measure 'speed'"),
        (["compare", "{run}", "{run}", "--fail-if", "ece"], "not of the form"),
        (["explore", "nowhere"], "no run in nowhere: there is no such folder"),
        (["layers", "nowhere.py:make"], "no such file: nowhere.py"),
        (["compare", "{run}/summary.json", "{run}"], "summary.json is a file of a run. Give its"),
        (["compare", "small.npz", "{run}"], "small.npz is data, not a run"),
        (["explore", "small.npz"], "small.npz is data, not a run"),
        (["fit", "{files}/train.npz", "-o", "no/a.vic"], "the folder no does not exist"),
        (["check", "{files}/train.npz", "--metric", "l3"], "`--metric` must be one of"),
        (["embed", "torch.nn:Identity", "{files}/test.npz", "--pool", "x"], "`--pool` must be one"),
    ],
)
def test_wrong_words_earn_a_sentence_and_exit_code_2(
    vicinal, files, run_folder, tmp_path, words, sentence
):
    np.savez(tmp_path / "small.npz", Z=np.ones((3, 3)))
    code, _, err = vicinal(*(w.format(files=files, run=run_folder) for w in words))
    assert code == 2
    assert sentence in " ".join(err.split())
    assert {path.name for path in tmp_path.iterdir()} == {"small.npz"}


def test_a_run_compared_with_itself_shows_no_evidence_and_passes_its_gates(
    vicinal, run_folder, tmp_path
):
    words = ["compare", run_folder, run_folder, "-o", "cmp", "--json"]
    code, out, _ = vicinal(*words, "--fail-if", "accuracy < -0.01", "--fail-if", "ece > +0.01")
    assert code == 0
    found = json.loads(out)
    assert found["changed"] == 0
    assert found["overlap"] == 1.0
    assert all(gate["passed"] for gate in found["gates"])
    assert (tmp_path / "cmp" / "compare.html").exists()
    code, _, err = vicinal(*words, "--fail-if", "accuracy < 1.1")
    assert code == 1
    assert "gate failed: accuracy < 1.1" in err


MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 3))
"""


@pytest.fixture
def photos(tmp_path):
    """Class folders of small images, and a model for them."""
    (tmp_path / "net.py").write_text(textwrap.dedent(MODEL))
    rng = np.random.default_rng(0)
    for name, count in (("train", 20), ("test", 8)):
        for code, kind in enumerate(("cat", "dog", "owl")):
            folder = tmp_path / name / kind
            folder.mkdir(parents=True)
            for at in range(count):
                pixels = np.clip(rng.normal(60 + 70 * code, 30, (8, 8)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{at}.png")
    return tmp_path


def test_layers_are_listed_with_their_shapes(vicinal, photos):
    code, out, _ = vicinal("layers", "net.py:make", "--input", "1,8,8", "--json")
    assert code == 0
    found = {row["name"]: row["output"] for row in json.loads(out)}
    assert found == {"0": [64], "1": [24], "2": [24], "3": [3]}
    code, _, err = vicinal("layers", "net.py:make", "--input", "3,9,9")
    assert code == 2
    assert "Last layers reached: 0" in err


def test_embed_says_which_layers_hold_rows_that_are_no_numbers(vicinal, photos):
    (photos / "nan.py").write_text(
        "import torch\n"
        "def make():\n"
        "    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
        "    net[1].bias.data[0] = torch.nan\n"
        "    return net\n"
    )
    code, _, err = vicinal("embed", "nan.py:make", "train", "--gray", "-o", "e")
    assert code == 0
    assert "60 of 60 rows of output are not finite numbers" in err


def test_images_and_a_model_are_embedded_and_the_embeddings_audited(vicinal, photos):
    code, out, _ = vicinal("embed", "net.py:make", "train", "--gray", "--layer", "1", "-o", "e")
    assert code == 0
    assert "1: 60 x 24" in out
    code, _, err = vicinal("embed", "net.py:make", "train", "--gray", "--layer", "fc", "-o", "f")
    assert code == 2
    assert "no layer 'fc' in Sequential" in err
    assert not (photos / "f").exists()
    code, _, err = vicinal("embed", "net.py:make", "train", "-o", "f")
    assert code == 2
    assert "the model failed on its inputs: mat1 and mat2 shapes cannot be multiplied" in err
    assert not (photos / "f").exists()
    code, _, err = vicinal("embed", "net.py:make", "test", "--gray", "--layer", "1", "-o", "e")
    assert code == 2
    code, _, _ = vicinal(
        "embed", "net.py:make", "train", "--gray", "--fresh", "--layer", "1", "-o", "e"
    )
    assert code == 0
    (photos / "other").mkdir()
    (photos / "other" / "summary.json").write_text("{}")
    code, _, err = vicinal("embed", "net.py:make", "train", "--gray", "--fresh", "-o", "other")
    assert code == 2
    assert "is not empty and holds no capture" in err
    assert [path.name for path in (photos / "other").iterdir()] == ["summary.json"]
    with locked(photos / "e"):
        code, _, err = vicinal("embed", "net.py:make", "train", "--gray", "--fresh", "-o", "e")
    assert code == 2
    assert "e is in use by another process" in err
    code, out, _ = vicinal("audit", "e", "-o", "run", "--k", "10")
    assert code == 0
    assert "3 classes (min 20 · max 20)" in out


def test_a_model_brings_its_layers_and_its_own_view_into_the_audit(vicinal, photos):
    code, out, _ = vicinal(
        "audit",
        "train",
        "test",
        "--model",
        "net.py:make",
        "--gray",
        "-o",
        "run",
        "--k",
        "10",
        "--json",
    )
    assert code == 0
    summary = json.loads(out)
    assert [layer["name"] for layer in summary["layers"]][-1] == "output"
    assert summary["network"]["overlap_k"] == 10
    assert "softmax" in summary["heads"]
    code, _, err = vicinal("audit", "train", "--model", "net.py:make", "-o", "r2")
    assert code == 2
    assert "give both sets" in err


def test_out_of_memory_is_answered_with_a_smaller_batch(vicinal, photos, monkeypatch):
    whole = torch.nn.Linear.forward

    def short_of_memory(self, x):
        if len(x) > 16:
            raise RuntimeError("DefaultCPUAllocator: out of memory")
        return whole(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", short_of_memory)
    code, _, err = vicinal(
        "embed", "net.py:make", "train", "--gray", "-o", "e", "--batch-size", "32"
    )
    assert code == 0
    assert "out of memory at batch 32 → retrying at 16 (result is identical)." in " ".join(
        err.split()
    )


def served(folder, token, *, trust_folder=False):
    audit = read_run(folder)
    judge = judge_of(audit, ExploreOptions(folder=folder, trust_folder=trust_folder))
    app = application(folder, audit, judge, token)
    return TestClient(app, base_url="http://127.0.0.1:8000")


def test_explore_serves_the_page_to_those_who_have_the_token(run_folder, files):
    client = served(run_folder, "secret")
    assert client.get("/").status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    page = client.get("/?token=secret")
    assert page.status_code == 200
    assert "data-live" in page.text
    assert client.get("/data.json?token=secret").status_code == 200
    assert client.get("/../secrets?token=secret").status_code == 404
    assert client.get("/?token=secret", headers={"host": "evil.example"}).status_code == 403
    x = np.load(files / "test.npz")["Z"][:2]
    rows = "\n".join(",".join(map(str, row)) for row in x)
    answer = client.post("/predict?token=secret", data={"rows": rows})
    assert answer.status_code == 200
    assert len(answer.json()["rows"]) == 2
    assert {"label", "confidence", "verdict", "reason", "neighbors"} <= set(
        answer.json()["rows"][0]
    )
    buffer = io.BytesIO()
    np.savez(buffer, Z=x)
    sent = client.post("/predict?token=secret", files={"file": ("x.npz", buffer.getvalue())})
    assert sent.json() == answer.json()
    bad = client.post("/predict?token=secret", files={"file": ("x.npz", b"none")})
    assert bad.status_code == 400
    assert "cannot read x.npz" in bad.json()["error"]
    bad = client.post("/predict?token=secret", data={"rows": "a,b"})
    assert bad.status_code == 400
    assert "one row of numbers per line" in bad.json()["error"]
    assert client.post("/predict", data={"rows": rows}).status_code == 403


def test_an_image_is_judged_by_the_model_of_the_run(photos, vicinal):
    vicinal(
        "audit",
        "train",
        "test",
        "--model",
        str(photos / "net.py:make"),
        "--gray",
        "-o",
        "run",
        "-q",
        "--k",
        "10",
    )
    data = (photos / "test" / "cat" / "0.png").read_bytes()
    upload = {"file": ("cat.png", data, "image/png")}
    refused = served(photos / "run", "t").post("/predict?token=t", files=upload)
    assert refused.status_code == 400
    assert "--trust-folder" in refused.json()["error"]
    client = served(photos / "run", "t", trust_folder=True)
    answer = client.post("/predict?token=t", files=upload)
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"][0]["label"] in ("cat", "dog", "owl", "0", "1", "2")


def test_explore_listens_on_this_machine_alone():
    socket = bound(0)
    assert socket.getsockname()[0] == "127.0.0.1"
    socket.close()


@pytest.mark.slow
def test_the_demo_finds_most_of_what_was_planted(vicinal, tmp_path):
    code, out, _ = vicinal("demo", "--json", "-o", "demo")
    assert code == 0
    planted = {item["what"]: item for item in json.loads(out)["planted"]}
    wrong, letters = planted["wrong labels"], planted["letters among the digits"]
    assert wrong["found"] >= 25
    assert wrong["flagged"] <= 60
    assert letters["found"] >= 20
    page = (tmp_path / "demo" / "report.html").read_text()
    assert len(page) < 10_000_000


def test_the_module_runs_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vicinal.cli", "check", "none.npz"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no such file: none.npz" in done.stderr
    assert main(["--version"]) == 0


def test_one_of_a_thing_is_counted_as_one(vicinal, files, tmp_path):
    one = {key: value[:1] for key, value in np.load(files / "test.npz").items()}
    np.savez(tmp_path / "one.npz", **one)
    code, out, _ = vicinal("fit", files / "train.npz", "--calib", files / "val.npz")
    assert code == 0
    code, out, _ = vicinal("predict", "trust.vic", "one.npz")
    assert code == 0
    assert "wrote  predictions.csv (1 row)" in out
    assert (
        repr(package.load(tmp_path / "trust.vic").predict(one["Z"]))
        .splitlines()[-1]
        .startswith("1 row:")
    )


def test_sixty_columns_hold_the_table_of_heads(vicinal, files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = vicinal("audit", files / "train.npz", files / "test.npz", "-o", "run")
    assert code == 0
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if "cover@" in line)
    table = lines[at : lines.index("  → recommended")]
    assert len(table) > 8
    assert max(map(len, table)) <= 60
    assert sum(line.startswith("→ ") for line in table) == 1
    assert len({line[2:29] for line in table[1:]}) == len(table) - 1


def test_a_target_out_of_reach_comes_with_one_that_is_not(vicinal, tmp_path):
    """Half of all labels are wrong at random: nothing keeps 99.9 %, or any usual target."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 4)).astype(np.float32)
    y = np.where(rng.random(900) < 0.3, rng.integers(0, 2, 900), x[:, 0] > 0)
    np.savez(tmp_path / "a.npz", Z=x[:400], y=y[:400])
    np.savez(tmp_path / "b.npz", Z=x[400:], y=y[400:])
    code, out, _ = vicinal("audit", "a.npz", "b.npz", "--target-accuracy", "0.999", "-o", "run")
    assert code == 0
    assert re.search(
        r"No threshold reaches an accuracy of 99.9 %.* \d+ % is reachable: it acc", out
    )
    assert re.search(r"cover@99.9 %\n", out)
    record = json.loads((tmp_path / "run" / "audit.json").read_text())
    targets = record["risk_coverage"]["targets"]
    reached = [t for t in targets if t["value"] is not None]
    assert 1 <= len(reached) <= 2  # what most rows can have, and the most that few can
    assert len(targets) == 5 + len(reached)


@pytest.mark.parametrize("flag", [("--size", "8"), ("--gray",), ("--online",)])
def test_what_is_said_of_images_is_not_left_aside_where_rows_are_embeddings(vicinal, files, flag):
    code, _, err = vicinal("audit", files / "train.npz", files / "test.npz", *flag, "-o", "run")
    assert code == 2
    assert flag[0] in err
