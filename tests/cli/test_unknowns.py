"""Unknown inputs from the shell: the promised rate, and a foreign set."""

import json

import numpy as np
import pytest

from vicinal.cli.__main__ import main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("unknowns"), np.random.default_rng(0)
    for name, n in (("support", 200), ("query", 120)):
        y = np.arange(n) % 2
        z = (rng.normal(size=(n, 6)) + 4 * y[:, None]).astype(np.float32)
        np.savez(folder / f"{name}.npz", Z=z, y=y)
    np.savez(folder / "foreign.npz", Z=(rng.normal(size=(40, 6)) - 9).astype(np.float32))
    np.savez(folder / "narrow.npz", Z=np.ones((4, 5), dtype=np.float32))
    return folder


def test_a_foreign_set_is_in_summary_terminal_and_page(files, capsys):
    out = files / "run"
    sets = [str(files / "support.npz"), str(files / "query.npz")]
    flags = ["--foreign", str(files / "foreign.npz"), "--unfamiliar", "0.1", "-o", str(out)]
    assert main(["audit", *sets, *flags]) == 0
    said = capsys.readouterr().out
    found = json.loads((out / "summary.json").read_text())["unknowns"]
    assert (found["rate"], found["foreign"]["name"], found["rows"]) == (0.1, "foreign.npz", 20)
    assert found["parts"][0]["flagged"] == 1
    assert "unknowns   foreign.npz: 100 % of 20 held-out foreign rows are unfamiliar" in said
    assert 'id="unknowns"' in (out / "report.html").read_text()
    assert json.loads((out / "config.json").read_text())["unfamiliar"] == 0.1


def test_a_foreign_set_needs_no_labels_ids_or_pictures(files, tmp_path):
    for name in ("support", "query"):
        z, y = np.load(files / f"{name}.npz").values()
        pictures = np.zeros((len(z), 4, 4), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", Z=z, kind=y, name=np.arange(len(z)), seen=pictures)
    sets = [str(tmp_path / "support.npz"), str(tmp_path / "query.npz")]
    keys = ["--label-key", "kind", "--id-col", "name", "--image-col", "seen"]
    foreign = ["--foreign", str(files / "foreign.npz"), "-o", str(tmp_path / "run"), "--quiet"]
    assert main(["audit", *sets, *keys, *foreign]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["unknowns"]["rows"] == 20


def test_the_rate_goes_into_the_saved_head_and_predictions_carry_the_p_value(files):
    head, table = files / "trust.vic", files / "out.jsonl"
    support = str(files / "support.npz")
    assert main(["fit", support, "--unfamiliar", "0.2", "-o", str(head), "--quiet"]) == 0
    assert main(["predict", str(head), str(files / "foreign.npz"), "-o", str(table)]) == 0
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    assert all(line["familiarity"] <= 0.2 for line in lines)
    assert {line["verdict"] for line in lines} == {"unfamiliar"}


@pytest.mark.parametrize(
    ("flags", "words"), [(["--foreign", "narrow.npz"], "dims"), (["--unfamiliar", "0"], "between")]
)
def test_what_cannot_be_is_answered_with_a_sentence_and_nothing_is_written(
    files, capsys, monkeypatch, flags, words
):
    monkeypatch.chdir(files)
    assert main(["audit", "support.npz", "query.npz", *flags, "-o", "never"]) == 2
    assert words in capsys.readouterr().err
    assert not (files / "never").exists()
