"""What was made anew stands beside what is stored, number by number and verdict by verdict."""

import pytest
from experiments import compare
from experiments.__main__ import run
from experiments.record import path_of, save

NAME = "toy/fig01_toy"


def record(gaps, verdict):
    claim = {"sentence": "above", "verdict": verdict, "mean": 1.0, "error": 0.1}
    rows = [{"seed": s, "cpu_seconds": s / 7, "gap": [g, 2]} for s, g in enumerate(gaps)]
    return {"rows": rows, "claims": [claim]}


@pytest.fixture
def stored(monkeypatch, tmp_path):
    def beside(name, preset, folder=None):
        return path_of(name, preset, folder or tmp_path / "stored")

    monkeypatch.setattr(compare, "path_of", beside)
    save(beside(NAME, "cpu"), record([0.5, 0.25], "holds"))
    return tmp_path


def told_of(folder, gaps, verdict):
    save(path_of(NAME, "cpu", folder / "toy"), record(gaps, verdict))
    return compare.told([NAME, "toy/fig02_not_made"], "cpu", folder)


def test_equal_runs_are_equal_whatever_their_seconds(stored):
    said = told_of(stored / "anew", [0.5, 0.25], "holds")
    assert said == ["4 of 4 numbers and 1 of 1 verdicts are as stored"]


def test_a_number_that_moved_is_counted_and_a_verdict_that_moved_is_named(stored):
    first, moved = told_of(stored / "anew", [0.5, 0.26], "leans")
    assert first == "3 of 4 numbers and 0 of 1 verdicts are as stored"
    assert moved == f"{NAME}: above: holds (+1 ± 0.1), anew leans (+1 ± 0.1)"


def test_all_anew_goes_into_the_folder_and_leaves_what_is_stored(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("experiments.board.write", lambda: pytest.fail("the board was written"))
    name = "charpiat2019similarity/fig03_influence"
    assert run([name, "--preset", "quick", "--into", str(tmp_path)]) == 0
    made = path_of(name, "quick", tmp_path / "charpiat2019similarity")
    before = made.read_bytes()
    assert run([name, "--preset", "quick", "--into", str(tmp_path)]) == 0  # it goes on there
    assert made.read_bytes() == before
    assert "verdicts are as stored" in capsys.readouterr().out.splitlines()[-1]
