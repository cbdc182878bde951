"""The main job from the shell: what it writes, that it repeats, and what a wrong word earns."""

import csv
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from vicinal.audits.audit import SECTIONS
from vicinal.audits.recommend import ORDER
from vicinal.cli.console import Clock
from vicinal.confidence import load
from vicinal.report.words import percent, threshold
from vicinal.studies import Audit

FILES = {
    "audit.json", "config.json", "labels.csv", "media.npz", "provenance.json", "report.html",
    "samples.csv", "summary.json", "suspects.csv", "trust.vic",
}  # fmt: skip


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_holds_everything_and_nothing_half_done(run_folder):
    assert {path.name for path in run_folder.iterdir()} == FILES
    summary = json.loads((run_folder / "summary.json").read_text())
    for head in summary["heads"].values():
        assert {
            "accuracy",
            "accuracy_se",
            "ece",
            "noise_floor",
            "nll",
            "coverage_at_target",
        } <= set(head)
    assert summary["recommended"] in summary["heads"]
    assert set(summary["verdicts"]) == {"supported", "contested", "unfamiliar", "isolated"}
    assert sum(summary["verdicts"].values()) == 240
    assert {"warnings", "not_checked", "data", "provenance", "suspects"} <= set(summary)
    samples = rows(run_folder / "samples.csv")
    assert len(samples) == 240
    wanted = {
        "id",
        "label",
        "predicted",
        "confidence",
        "credibility",
        "near_percentile",
        "verdict",
        "reason",
    }
    assert wanted <= set(samples[0])
    assert samples[7]["id"] == "7"
    assert (
        Audit.from_json((run_folder / "audit.json").read_text()).recommended
        == summary["recommended"]
    )


def test_the_planted_wrong_labels_lead_the_list_of_suspects(run_folder):
    suspects = rows(run_folder / "suspects.csv")
    assert {"id", "given", "suggested", "p_given", "p_suggested", "affected"} <= set(suspects[0])
    found = {int(row["id"]) for row in suspects[:10]}
    assert len(found & set(range(10))) >= 8
    scores = [float(row["score"]) for row in suspects]
    assert scores == sorted(scores, reverse=True)


def test_every_support_label_is_listed_with_its_score(run_folder):
    labels, suspects = rows(run_folder / "labels.csv"), rows(run_folder / "suspects.csv")
    assert list(labels[0])[:7] == [
        "id", "given", "suggested", "score", "p_given", "p_suggested", "flagged"
    ]  # fmt: skip
    assert [row["id"] for row in labels] == [str(i) for i in range(400)]
    flagged = {row["id"] for row in labels if row["flagged"] == "1"}
    assert flagged == {row["id"] for row in suspects}
    worst = sorted(labels, key=lambda row: -float(row["score"]))[: len(suspects)]
    assert {row["id"] for row in worst} == flagged
    audit = Audit.from_json((run_folder / "audit.json").read_text())
    assert audit.labels.scores.tolist() == [float(row["score"]) for row in labels]
    wrong = json.loads((run_folder / "summary.json").read_text())["labels_wrong"]
    assert wrong["low"] <= 10 <= wrong["high"]  # so many were planted
    assert wrong["count"] == len(suspects)


def test_the_recommended_head_is_within_one_standard_error_of_the_lowest_log_loss(run_folder):
    summary = json.loads((run_folder / "summary.json").read_text())
    losses = {name: summary["heads"][name]["nll"] for name in ORDER if name in summary["heads"]}
    losses.pop("ned")  # a class without a neighbor has probability 0: shown, not recommended
    chosen = summary["recommendation"]
    assert summary["recommended"] == chosen["head"]
    assert chosen["best"] == min(losses, key=losses.get)
    gap = losses[chosen["head"]] - losses[chosen["best"]]
    assert chosen["gap"] == pytest.approx(gap, abs=1e-6)
    assert gap <= chosen["gap_se"] + 1e-9


def test_the_same_seed_gives_the_same_bytes_but_for_times(vicinal, files, run_folder, tmp_path):
    code, _, _ = vicinal("audit", files / "train.npz", files / "test.npz", "-o", "again", "-q")
    assert code == 0
    for name in ("samples.csv", "suspects.csv", "labels.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run_folder / name).read_bytes()
    first, second = (
        json.loads((folder / "summary.json").read_text())
        for folder in (run_folder, tmp_path / "again")
    )
    for summary in (first, second):
        for key in ("created", "seconds", "command", "reproduce"):
            summary["provenance"].pop(key)
    assert first == second


def test_json_is_all_that_stdout_gets(vicinal, files):
    code, out, _ = vicinal(
        "audit", files / "train.npz", files / "test.npz", "-o", "r", "--json", "--k", "20"
    )
    assert code == 0
    assert json.loads(out)["data"]["k"] == 20


def test_a_calibration_set_sets_the_temperature(vicinal, files, tmp_path):
    code, out, _ = vicinal(
        "audit", files / "train.npz", files / "test.npz", "--calib", files / "val.npz", "-o", "c"
    )
    assert code == 0
    assert "fitted on 200 calibration rows" in out
    assert "wrote  c/report.html" in out
    audit = Audit.from_json((tmp_path / "c" / "audit.json").read_text())
    assert audit.data.calib.rows == 200


def test_one_set_alone_is_judged_leave_one_out_with_a_banner(vicinal, files, tmp_path):
    code, out, err = vicinal("audit", files / "train.npz", "-o", "one", "--k", "15")
    assert code == 0
    assert "query and support are the same rows: using leave-one-out" in err
    assert "leave-one-out on the support" in out
    samples = rows(tmp_path / "one" / "samples.csv")
    assert all(row["neighbor_1"] != row["id"] for row in samples)


def test_rows_without_labels_are_judged_without_scores(vicinal, files, tmp_path):
    x = np.load(files / "test.npz")["Z"]
    np.savez(tmp_path / "new.npz", Z=x[:50])
    code, _, err = vicinal("audit", files / "train.npz", "new.npz", "-o", "u")
    assert code == 0
    assert "running in predict-only mode (no accuracy, no ECE)" in err
    summary = json.loads((tmp_path / "u" / "summary.json").read_text())
    assert summary["heads"]["ned"]["accuracy"] is None
    assert sum(summary["verdicts"].values()) == 50
    (level,) = re.findall(r"face value: below ([\d.]+) it is", " ".join(summary["not_checked"]))
    for row in rows(tmp_path / "u" / "samples.csv"):
        assert row["verdict"] != "supported" or float(row["confidence"]) >= float(level)


def test_calibration_rows_set_the_threshold_of_a_query_without_labels(vicinal, files, tmp_path):
    x = np.load(files / "test.npz")["Z"]
    np.savez(tmp_path / "new.npz", Z=x)
    words = ["audit", files / "train.npz", "new.npz", "--calib", files / "val.npz", "-o", "c"]
    code, out, _ = vicinal(*words, "--target-accuracy", "0.9", "--map", "none")
    assert code == 0
    summary = json.loads((tmp_path / "c" / "summary.json").read_text())
    chosen, head = summary["risk_coverage"]["chosen"], load(tmp_path / "c" / "trust.vic")
    assert chosen["rows"] == 200
    assert chosen["value"] == head.standards.threshold
    sentence = f"Accept confidence ≥ {threshold(chosen['value'])}: "
    assert f"{sentence}{percent(chosen['coverage'])} of the calibration rows" in out
    assert sentence.strip() in (tmp_path / "c" / "report.html").read_text()
    held = np.load(files / "val.npz")
    sure = head.predict(held["Z"]).confidence >= chosen["value"]  # fitted on the rows themselves
    assert abs(sure.mean() - chosen["coverage"]) < 0.05
    verdicts = [row["verdict"] for row in rows(tmp_path / "c" / "samples.csv")]
    assert "supported" in verdicts


def test_a_config_repeats_a_run(vicinal, files, run_folder, tmp_path):
    code, _, _ = vicinal("audit", "-", "--config", run_folder / "config.json", "-o", "same", "-q")
    assert code == 0
    assert (tmp_path / "same" / "samples.csv").read_bytes() == (
        run_folder / "samples.csv"
    ).read_bytes()
    _, _, err = vicinal("audit", "-", "--config", "same", "-o", "again")
    assert "is not what it was" not in err
    (tmp_path / "bad.json").write_text('{"metrc": "l2"}')
    code, _, err = vicinal("audit", "-", "--config", "bad.json")
    assert code == 2
    assert "no setting 'metrc'. Did you mean 'metric'?" in err


def test_a_config_whose_inputs_have_changed_is_told_of(vicinal, tmp_path):
    save(tmp_path / "a.npz", **(held := arrays()))
    save(tmp_path / "b.npz", Z=held["Z"] + 0.1, y=held["y"])
    assert vicinal("audit", "a.npz", "b.npz", "-o", "one", "-q")[0] == 0
    held["Z"][3] += 1
    save(tmp_path / "a.npz", **held)
    code, _, err = vicinal("audit", "-", "--config", "one", "-o", "two")
    assert code == 0
    assert "support a.npz is not what it was when one was written (sha " in err
    assert "query b.npz" not in err
    decide = "id,given,label,decision\n0,0,1,relabel\n"
    (tmp_path / "d.csv").write_text(decide)
    _, _, err = vicinal("audit", "-", "--config", "two", "--apply", "d.csv", "-o", "four")
    assert "is not what it was" not in err  # labels are meant to change
    (tmp_path / "one" / "summary.json").write_text('{"data": []}')  # no run of ours: nothing to say
    code, _, err = vicinal("audit", "-", "--config", "one", "-o", "three")
    assert (code, "is not what it was" in err) == (0, False)


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def arrays(n=60, d=4, classes=3):
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    return {"Z": (rng.normal(size=(n, d)) + y[:, None]).astype(np.float32), "y": y}


def wide(folder):
    save(folder / "q.npz", **arrays(d=6))
    return ["t.npz", "q.npz"]


def maps(folder):
    save(folder / "t.npz", Z=np.zeros((60, 5, 2, 2)), y=np.arange(60) % 3)
    return ["t.npz", "t.npz"]


def transposed(folder):
    save(folder / "t.npz", Z=np.zeros((4, 60)), y=np.arange(60) % 3)
    return ["t.npz"]


def ragged(folder):
    save(folder / "t.npz", Z=np.zeros((60, 4)), y=np.arange(58) % 3)
    return ["t.npz"]


def holes(folder):
    data = arrays()
    data["Z"][17] = np.nan
    save(folder / "q.npz", **data)
    return ["t.npz", "q.npz"]


def zeros(folder):
    data = arrays()
    data["Z"][:12] = 0
    save(folder / "t.npz", **data)
    return ["t.npz", "--metric", "cosine"]


def nameless(folder):
    data = arrays()
    save(folder / "t.npz", Z=data["Z"], target_=data["y"])
    return ["t.npz"]


def regression(folder):
    save(folder / "t.npz", Z=arrays()["Z"], y=np.linspace(0, 1, 60))
    return ["t.npz"]


def alone(folder):
    save(folder / "t.npz", Z=arrays()["Z"], y=np.zeros(60, int))
    return ["t.npz"]


def damaged(folder):
    whole = (folder / "t.npz").read_bytes()
    (folder / "t.npz").write_bytes(whole[: len(whole) // 2])
    return ["t.npz"]


def pickled(folder):
    save(folder / "t.npz", Z=arrays()["Z"], y=np.array([None, 1] * 30, dtype=object))
    return ["t.npz"]


WRONG = [
    (
        wide,
        "support embeddings have 4 dims but query has 6 (q.npz:Z). They must come from the same",
    ),
    (maps, "t.npz:Z has shape (60, 5, 2, 2). Neighbors need one vector per row: add --pool mean"),
    (transposed, "embeddings look transposed: shape (4, 60) with 60 labels. Pass --transpose"),
    (ragged, "t.npz: 60 embeddings but 58 labels. Rows must match one to one"),
    (
        holes,
        "q.npz:Z has NaN/Inf or empty cells in 1 of 60 rows (first: row 17, id 17). Fix them, or",
    ),
    (zeros, "12 rows of t.npz:Z have zero norm; cosine/normalized distance is undefined."),
    (
        nameless,
        "t.npz has no key 'y' or 'labels' (keys: Z, target_). Did you mean --label-key target_?",
    ),
    (regression, "labels are float with 60 distinct values — regression is not supported"),
    (alone, "support has one class only (0); nothing to contrast."),
    (damaged, "cannot read t.npz:"),
    (pickled, "t.npz:y holds Python objects (pickle). Refused for safety; save strings with dtype"),
    (lambda f: ["t.npz", "--k", "500"], "k=500 but the smallest support fold has 59 rows."),
    (lambda f: ["t.npz", "--k", "many"], "--k must be a whole number or auto, got 'many'."),
    (lambda f: ["missing.npz"], "no such file: missing.npz."),
    (lambda f: ["t.npz", "--metric", "l3"], "`--metric` must be one of 'l2', 'cosine', got 'l3'"),
    (lambda f: ["t.npz", "--target-accuracy", "99"], "`target_accuracy` must be between 0 and 1"),
    (lambda f: ["t.npz", "--targt-accuracy", "0.9"], "--target-accuracy"),
    (lambda f: ["t.npz", "--align", "rows"], "--align must be 'ids', got 'rows'."),
]


@pytest.mark.parametrize(("make", "sentence"), WRONG, ids=lambda v: getattr(v, "__name__", "")[:20])
def test_bad_input_is_answered_with_a_sentence_exit_code_2_and_nothing_written(
    vicinal, tmp_path, make, sentence
):
    save(tmp_path / "t.npz", **arrays())
    words = make(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, out, err = vicinal("audit", *words, "-o", "run")
    assert code == 2
    assert sentence in " ".join(err.split())
    assert out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


WARNED = [
    (
        lambda d: {**d, "y": np.where(np.arange(60) == 5, 7, d["y"])},
        None,
        "1 class has a single support row (7). They can be predicted but not leave-one-out checked",
    ),
    (
        None,
        lambda d: {**d, "y": np.where(np.arange(60) < 9, 8, d["y"])},
        "class '8' occurs 9x in query but never in support. Those rows count as unknown",
    ),
    (
        None,
        lambda d: d,
        "query has 60 scored rows: ECE of a perfectly calibrated model would already read",
    ),
]


@pytest.mark.parametrize(("change", "change_query", "sentence"), WARNED)
def test_what_is_odd_but_possible_is_done_with_a_warning_here_and_on_the_page(
    vicinal, tmp_path, change, change_query, sentence
):
    save(tmp_path / "t.npz", **(change(arrays()) if change else arrays()))
    query = arrays()
    query["Z"] = query["Z"] + 0.01
    save(tmp_path / "q.npz", **(change_query(query) if change_query else query))
    code, _, err = vicinal("audit", "t.npz", "q.npz", "-o", "run", "--k", "10")
    assert code == 0
    assert sentence in " ".join(err.split())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert any(sentence in warning for warning in summary["warnings"])
    words = sentence[1:].replace("'", "&#39;")  # the page begins with a capital
    page = (tmp_path / "run" / "report.html").read_text().replace("\u00a0", " ")
    assert words in page or sentence[1:] in page


def test_dropped_rows_are_listed(vicinal, tmp_path):
    save(tmp_path / "t.npz", **arrays())
    holes(tmp_path)
    code, _, err = vicinal("audit", "t.npz", "q.npz", "-o", "run", "--drop-bad", "--k", "10")
    assert code == 0
    assert "1 row was dropped; it is listed in dropped.csv" in err
    assert rows(tmp_path / "run" / "dropped.csv") == [{"id": "17", "why": "NaN/Inf"}]


def test_a_folder_of_another_kind_is_left_alone(vicinal, files, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("…")
    code, _, err = vicinal("audit", files / "train.npz", "-o", "mine")
    assert code == 2
    assert "is not empty and not a run of vicinal" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_numbers(files, run_folder, tmp_path):
    """Killed at a moment of no choosing: the folder is resumable or absent, never a broken run."""
    command = [sys.executable, "-m", "vicinal.cli", "audit", str(files / "train.npz"),
               str(files / "test.npz"), "-o", "run", "-q"]  # fmt: skip
    victim = subprocess.Popen(command, cwd=tmp_path)
    deadline = time.time() + 120
    work = tmp_path / "run" / ".work"
    while not (work.is_dir() and any(work.iterdir())) and victim.poll() is None:
        assert time.time() < deadline
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    left = (
        {path.name for path in (tmp_path / "run").iterdir()}
        if (tmp_path / "run").exists()
        else set()
    )
    assert left <= {".lock", ".work", ".unfinished"} or left == FILES
    done = subprocess.run(command, cwd=tmp_path, timeout=600, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    again, first = (folder / "samples.csv" for folder in (tmp_path / "run", run_folder))
    assert again.read_bytes() == first.read_bytes()


def test_phases_that_are_too_short_to_name_are_told_together():
    clock = Clock("reading")
    clock.spent = {"reading": 9.0, "space": 0.4, "writing": 0.4}
    assert str(clock).endswith("reading 9.0 · the rest 0.8")


def test_where_the_time_went_is_told_at_the_end(vicinal, files, tmp_path):
    code, out, _ = vicinal("audit", files / "train.npz", files / "test.npz", "--k", "20")
    assert code == 0
    last = out.strip().splitlines()[-1]
    assert re.match(r"took   \d+\.\d s: ", last)
    parts = dict(part.rsplit(" ", 1) for part in last.split(": ")[1].split(" · "))
    known = {"reading", "writing", "neighbors", "label audit", "space", "the rest"}
    assert "space" in parts  # fitting is not called reading
    assert set(parts) <= known | {name.replace("_", " ") for name in SECTIONS}
    total = float(last.split()[1])
    assert sum(map(float, parts.values())) == pytest.approx(total, abs=0.05 * (len(parts) + 2))
