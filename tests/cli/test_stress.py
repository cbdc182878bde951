"""``--stress`` and ``--checkpoints``: from a model and images in files to the page."""

import json

import numpy as np
import pytest
import torch
from torch import nn

MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))
"""
AUDIT = ("audit", "train.npz", "test.npz", "--model", "net.py:make", "--embedding-key", "x", "-o",
         "run", "--k", "10", "--space", "raw")  # fmt: skip


def striped(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = 0.3 * rng.random((n, 1, 8, 8))
    x[np.arange(n), 0, 2 * y + 1] += 0.4
    return {"x": x.astype(np.float32), "y": y}


@pytest.fixture
def job(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    np.savez(tmp_path / "train.npz", **striped(150, 0))
    np.savez(tmp_path / "test.npz", **striped(120, 1))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))
    (tmp_path / "ckpt").mkdir()
    for step in (1, 2):
        torch.save(net.state_dict(), tmp_path / "ckpt" / f"step{step}.pt")
    return tmp_path


def test_a_model_of_images_is_stressed_and_its_checkpoints_are_read(vicinal, job):
    code, said, _ = vicinal(*AUDIT, "--checkpoints", "ckpt/*.pt")
    assert code == 0
    before, _, after = said.partition("no network used")
    assert "stress, where the inputs are images: 100 query rows under 4 corruptions" in before
    assert "checkpoints: 2 of 150 rows each" in before
    assert "stress     At worst" in after
    summary = json.loads((job / "run" / "summary.json").read_text())
    assert summary["stress"]["rows"] == 100
    assert all(len(layer["history"]) == 2 for layer in summary["layers"])
    page = (job / "run" / "report.html").read_text()
    assert 'id="stress-verdicts"' in page
    assert 'id="layer-history"' in page
    config = json.loads((job / "run" / "config.json").read_text())
    assert config["checkpoints"] == "ckpt/*.pt"


def test_no_stress_means_none(vicinal, job):
    code, said, _ = vicinal(*AUDIT, "--no-stress")
    assert code == 0
    assert "where the inputs are images" not in said
    assert json.loads((job / "run" / "summary.json").read_text())["stress"] is None


@pytest.mark.parametrize(
    "flag", [("--stress",), ("--checkpoints", "ckpt/*.pt"), ("--weights", "w.pt"), ("--layer", "1")]
)
def test_what_needs_a_model_says_so_where_there_is_none(vicinal, files, flag):
    code, _, said = vicinal("audit", files / "train.npz", files / "test.npz", *flag)
    assert code == 2
    assert f"{flag[0]} needs the model" in said


def test_a_pattern_without_files_is_answered_before_anything_is_computed(vicinal, job):
    code, _, said = vicinal(*AUDIT, "--checkpoints", "none/*.pt")
    assert code == 2
    assert "no checkpoint matches 'none/*.pt'" in said
    assert not (job / "run").exists()
