"""One number, one value: page, terminal, summary.json, samples.csv, compare and .vic agree."""

import base64
import csv
import gzip
import io
import json
import os
import re
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import numpy as np
import pytest
from sklearn.datasets import load_digits

import vicinal as library
from vicinal.cli.__main__ import main
from vicinal.cli.run_folder import read_run
from vicinal.evaluation import expected_calibration_error

NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
"""


@contextmanager
def inside(folder):
    here = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def run(folder, *words):
    said = io.StringIO()
    with inside(folder), redirect_stdout(said), redirect_stderr(said):
        assert main([*map(str, words)]) == 0
    return said.getvalue()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By name: a folder of an audit, and what its command printed."""
    folder = tmp_path_factory.mktemp("one")
    data = load_digits()
    z, y, x = data.data.astype(np.float32), data.target.copy(), data.images[:, None] / 16
    y[:10] = (y[:10] + 1) % 10  # wrong labels in the support
    y[400:405], y[405:410] = -1, 77  # no label; a class the support lacks
    for name, rows in (("train", slice(0, 400)), ("test", slice(400, 640))):
        np.savez(folder / f"{name}.npz", Z=z[rows], y=y[rows])
        np.savez(folder / f"{name}-x.npz", x=x[rows].astype(np.float32), y=y[rows])
    (folder / "net.py").write_text(NET)
    return folder


@pytest.fixture(params=["arrays", "model", "demo"], scope="module")
def audited(request, runs):
    words = {
        "arrays": ("audit", "train.npz", "test.npz"),
        "model": ("audit", "train-x.npz", "test-x.npz", "--model", "net.py:make", "--k", "20"),
        "demo": ("demo",),
    }[request.param]
    out = runs / request.param
    return out, " ".join(run(runs, *words, "-o", out.name).split())


def samples(out):
    with (out / "samples.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def page(out):
    text = (out / "report.html").read_text().replace("\u00a0", " ")
    packed = re.search(r'id="data">([^<]*)<', text)[1]
    return text, json.loads(gzip.decompress(base64.b64decode(packed)))


def percent(share):
    return f"{100 * share:.1f} %"


def test_accuracy_and_calibration_are_those_of_the_rows_in_samples(audited):
    out, said = audited
    summary, rows = json.loads((out / "summary.json").read_text()), samples(out)
    kept = summary["heads"][summary["recommendation"]["kept"]]
    scored = [row for row in rows if row["label"]]
    right = np.array([row["label"] == row["predicted"] for row in scored])
    sure = np.array([float(row["confidence"]) for row in scored])
    assert right.mean() == pytest.approx(kept["accuracy"], abs=1e-12)
    assert expected_calibration_error(sure, right) == pytest.approx(kept["ece"], abs=1e-9)
    accuracy = f"{100 * kept['accuracy']:.1f} ± {100 * kept['accuracy_se']:.1f}"
    assert f"{kept['title']} {accuracy}" in said
    assert kept["accuracy"] == pytest.approx(summary["label_effects"][-1]["accuracy_before"]) or (
        summary["label_effects"][-1]["head"] != summary["recommendation"]["kept"]
    )


def test_the_threshold_is_one_in_summary_samples_head_page_and_terminal(audited):
    out, said = audited
    summary, rows = json.loads((out / "summary.json").read_text()), samples(out)
    chosen = summary["risk_coverage"]["chosen"]
    kept = summary["heads"][summary["recommendation"]["kept"]]
    assert chosen["coverage"] == kept["coverage_at_target"]
    head = library.load(out / "trust.vic")
    assert head.standards.target_accuracy == chosen["target"]
    assert head.standards.level == chosen["level"]
    text, data = page(out)
    if chosen["value"] is None:
        assert not head.standards.reachable
        assert kept["coverage_at_target"] == 0
        return
    assert head.standards.threshold == chosen["value"]
    taken = [row for row in rows if float(row["confidence"]) >= chosen["value"]]
    scored = [row for row in taken if row["label"]]
    assert len(scored) == chosen["accepted"]
    assert len(taken) - len(scored) == chosen["unscored"]
    assert sum(row["label"] != row["predicted"] for row in scored) == chosen["errors"]
    assert chosen["accepted"] / chosen["rows"] == pytest.approx(chosen["coverage"])
    assert chosen in [{**t, "why": chosen["why"]} for t in summary["risk_coverage"]["targets"]]
    curve = data["curve"]
    home = int(np.argmin(np.abs(np.array(curve["threshold"]) - curve["chosen"])))
    assert curve["coverage"][home] == pytest.approx(chosen["coverage"], abs=1e-5)  # the slider's
    assert len(rows) - sum(curve["rejected"][home]) == len(taken)
    assert percent(chosen["coverage"]) in text
    assert percent(chosen["coverage"]) in said
    assert chosen["why"].split(" (")[0] in said


def test_verdicts_and_suspects_are_counted_alike_everywhere(audited):
    out, said = audited
    summary, rows = json.loads((out / "summary.json").read_text()), samples(out)
    counts = {name: sum(r["verdict"] == name for r in rows) for name in summary["verdicts"]}
    assert counts == summary["verdicts"]
    assert " · ".join(f"{name} {n:,}" for name, n in counts.items()) in said
    text, data = page(out)
    shown = [data["verdicts"][code] for code in data["points"]["verdict"]]
    assert len(shown) == data["total"] == len(rows)
    assert {name: shown.count(name) for name in counts} == counts
    for name, n in counts.items():
        assert re.search(rf'<span class="name">{name}</span><b[^>]*>{n:,}</b>', text) or n == 0
    with (out / "suspects.csv").open(newline="") as file:
        suspects = list(csv.DictReader(file))
    assert len(suspects) == summary["suspects"] == len(data["suspects"])
    assert f"{len(suspects):,} of {summary['labels_checked']:,} support labels contradicted" in said


def test_contested_is_what_the_recorded_level_says(audited):
    out, _ = audited
    report = read_run(out)
    level = report.risk_coverage.chosen.level
    for i, verdict in enumerate(report.cases.verdict):
        doubtful = report.cases.credibility[i] <= 0.05 or report.cases.confidence[i] < level
        if verdict in ("supported", "contested"):
            assert doubtful == (verdict == "contested")


def test_a_comparison_repeats_what_the_audits_say(audited):
    out, _ = audited
    said = run(out.parent, "compare", out.name, out.name, "-o", f"c-{out.name}", "--json")
    found = {d["name"]: d for d in json.loads(said[said.index("{") :])["deltas"]}
    summary = json.loads((out / "summary.json").read_text())
    kept = summary["heads"][summary["recommendation"]["kept"]]
    assert found["accuracy"]["a"] == pytest.approx(kept["accuracy"], abs=1e-12)
    assert found["ece"]["a"] == pytest.approx(kept["ece"], abs=1e-9)
    assert found["coverage"]["a"] == kept["coverage_at_target"]


def test_a_reason_names_the_weights_of_the_neighbors_not_their_number(audited):
    out, _ = audited
    report = read_run(out)
    for i, reason in enumerate(report.cases.reason):
        if not reason.startswith("neighbors "):
            continue
        first = re.match(r"neighbors (?:class )?(.+?) (\d+) %", reason)
        others = "decides for" in reason
        assert (first[1] == report.classes[report.cases.predicted[i]]) or others
