"""Seeds are stored one by one, a cut run goes on, and missing data is a sentence."""

import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from experiments import runner
from experiments.__main__ import run, told
from experiments.data import NoDataError, Source, images
from experiments.record import ROOT, Claim, load, save


@dataclass(frozen=True)
class Settings:
    size: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)


def experiment(fails=()):
    """A file of an experiment that notes which seeds it ran."""
    ran = []

    def one(settings, seed, source):
        if seed in fails:
            raise KeyboardInterrupt
        ran.append(seed)
        return {"gap": settings.size + 0.1 * seed}

    return SimpleNamespace(
        __doc__="Figure 1: a toy.", PRESETS={"cpu": Settings()}, THEIRS={}, SMALLER="", run=one,
        claims=lambda rows: [Claim("above", [row["gap"] for row in rows])],
        draw=lambda rows, figure: figure.subplots(), ran=ran,
    )  # fmt: skip


@pytest.fixture
def perform(monkeypatch, tmp_path):
    def call(module):
        monkeypatch.setattr(runner, "module_of", lambda name: module)
        return runner.perform("toy/fig01_toy", "cpu", Source(), folder=tmp_path)

    return call


def test_a_run_that_was_cut_goes_on_at_its_next_seed(perform, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        perform(experiment(fails=[2]))
    assert [r["seed"] for r in load(tmp_path / "fig01_toy.cpu.json")["rows"]] == [0, 1]
    again = experiment()
    record = perform(again)
    assert again.ran == [2]
    assert [r["gap"] for r in record["rows"]] == [1.0, 1.1, 1.2]
    assert record["claims"][0]["verdict"] == "holds"
    assert (tmp_path / "fig01_toy.cpu.png").is_file()


def test_more_seeds_are_added_and_other_settings_start_anew(perform):
    perform(experiment())
    more = experiment()
    more.PRESETS = {"cpu": Settings(seeds=(0, 1, 2, 3))}
    assert len(perform(more)["rows"]) == 4
    assert more.ran == [3]
    other = experiment()
    other.PRESETS = {"cpu": Settings(size=2)}
    perform(other)
    assert other.ran == [0, 1, 2]


def test_a_second_run_does_nothing_and_leaves_who_made_it(perform, monkeypatch, tmp_path):
    perform(experiment())
    monkeypatch.setattr(runner, "versions", lambda: {"vicinal": "another"})
    before = (tmp_path / "fig01_toy.cpu.json").read_bytes()
    perform(again := experiment())
    assert again.ran == []
    assert (tmp_path / "fig01_toy.cpu.json").read_bytes() == before


def test_a_picture_is_drawn_from_the_images_of_its_own_settings_alone(
    perform, monkeypatch, tmp_path
):
    monkeypatch.setattr(runner, "CACHE", tmp_path / "cache")
    drawn = []

    def painter(size):
        made = experiment()
        made.PICTURES, made.PRESETS = True, {"cpu": Settings(size)}
        made.run = lambda settings, seed, source: {"pictures": {"at": np.array(settings.size)}}
        made.claims = lambda rows: []
        made.draw = lambda rows, figure: drawn.append(int(rows[0]["pictures"]["at"]))
        return made

    for size in (1, 2, 1):
        perform(painter(size))
    assert drawn == [1, 2, 1]
    monkeypatch.setattr(runner, "module_of", lambda name: painter(3))
    runner.picture("toy/fig01_toy", "cpu", [{"seed": 0}], tmp_path / "none.png")
    assert drawn == [1, 2, 1], "images of other settings were drawn"
    assert not (tmp_path / "none.png").exists()


def test_the_estimate_counts_the_seeds_that_are_missing(perform, monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "path_of", lambda *_: tmp_path / "fig01_toy.cpu.json")
    monkeypatch.setattr(runner, "module_of", lambda name: experiment())
    assert runner.left("toy/fig01_toy", "cpu") == 60
    perform(experiment())
    more = experiment()
    more.PRESETS = {"cpu": Settings(seeds=(0, 1, 2, 3))}
    monkeypatch.setattr(runner, "module_of", lambda name: more)
    stored = tmp_path / "fig01_toy.cpu.json"
    save(stored, load(stored) | {"cpu_seconds": 9.0})
    assert runner.left("toy/fig01_toy", "cpu") == 3.0


def test_missing_data_is_one_sentence_that_names_file_and_source(tmp_path):
    with pytest.raises(NoDataError, match=r"mnist/train-images.*--data DIR.*yann\.lecun"):
        images(Source(tmp_path), "mnist")


def test_an_experiment_without_its_data_is_not_tried_rather_than_failed(monkeypatch, capsys):
    def without(name, preset, source, **more):
        raise NoDataError(f"no {source.root}/cub200")

    monkeypatch.setattr("experiments.__main__.perform", without)
    assert run(["karpusha2020ned/table4_losses", "--data", "nowhere"]) == 2
    assert "not tried (no data): no nowhere/cub200" in capsys.readouterr().out


def test_a_run_that_is_stopped_says_that_it_goes_on(monkeypatch, capsys):
    def stopped(name, preset, source, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.__main__.perform", stopped)
    assert told(["karpusha2020ned/table4_losses", "--preset", "quick"]) == 130
    assert "the same command goes on" in capsys.readouterr().out


def test_the_list_has_name_title_and_verdicts(capsys):
    assert run(["karpusha*table1_heads", "--list"]) == 0
    name, title = capsys.readouterr().out.splitlines()
    assert name.startswith("karpusha2020ned/table1_heads")
    assert "holds" in name
    assert title.strip().startswith("Table 1: ")


def test_a_list_of_which_only_the_head_is_read_ends_without_a_traceback():
    command = [sys.executable, "-m", "experiments", "--list"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT.parent
    ) as running:
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0


def test_an_unknown_pattern_is_told_even_beside_a_known_one(capsys):
    assert run(["no_such_figure", "karpusha*"]) == 2
    assert capsys.readouterr().out.startswith("no experiment fits no_such_figure; see --list")


def test_check_alone_compares_the_board_and_runs_nothing(monkeypatch, capsys):
    monkeypatch.setattr("experiments.__main__.perform", None)
    monkeypatch.setattr("experiments.board.changed", lambda: ["docs/gallery.md"])
    assert run(["--check"]) == 1
    assert capsys.readouterr().out == "docs/gallery.md is not what --board writes\n"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(["--jobs", "0"], "'0' is not a number of processes"), (["--device", "mars"], "cannot use")],
)
def test_a_wrong_argument_is_one_sentence(wrong, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(wrong)
    assert told in capsys.readouterr().err.splitlines()[-1]
