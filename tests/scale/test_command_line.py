"""``vicinal audit`` of patterns of shards: the run's files, its sentences, and what it refuses."""

import json
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import vicinal
from vicinal.audits import sampled, scale, streamed
from vicinal.cli.__main__ import main


def rows(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return (rng.normal(size=(n, 4)) + 2 * y[:, None]).astype(np.float32), y


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, n, seed in (("train", 300, 0), ("test", 120, 1)):
        z, y = rows(n, seed)
        (tmp_path / name).mkdir()
        for at, part in enumerate(np.array_split(np.arange(n), 3)):
            ids = [f"{name}-{i}" for i in part]
            columns = {"embedding": list(z[part]), "label": y[part], "id": ids}
            parquet.write_table(pa.table(columns), tmp_path / name / f"{at}.parquet")
    return tmp_path


@pytest.fixture
def streaming(monkeypatch):
    monkeypatch.setattr(scale, "needed", lambda rows, settings: 1 << 60)
    monkeypatch.setattr(sampled, "ANCHORS", 100)
    monkeypatch.setattr(sampled, "PASS", 90)


def test_a_pattern_of_shards_is_audited_into_a_run_with_a_part_for_every_row(
    shards, streaming, capsys
):
    code = main(["audit", "train/*.parquet", "test/*.parquet", "-o", "run", "--memory", "16GB"])
    said = capsys.readouterr().out
    assert code == 0
    assert "everything is fitted on 100 of 300 support rows" in said
    run = shards / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert sum(summary["verdicts"].values()) == 120
    assert summary["scale"]["support_rows"] == summary["labels_checked"] == 300
    labels = [parquet.read_table(path) for path in sorted(run.glob("labels-*.parquet"))]
    assert [v.as_py() for table in labels for v in table["id"]] == [
        f"train-{i}" for i in range(300)
    ]
    samples = [parquet.read_table(path) for path in sorted(run.glob("samples-*.parquet"))]
    assert [v.as_py() for table in samples for v in table["id"]] == [
        f"test-{i}" for i in range(120)
    ]
    assert (run / "report.html").exists()
    assert not (run / ".work").exists()
    assert "trust.vic stands on the 100 rows alone" in summary["scale"]["how"]
    assert "100 of 300 rows" in repr(vicinal.load(run / "trust.vic"))
    assert main(["predict", "run/trust.vic", "test/0.parquet", "-o", "new.csv"]) == 0
    assert (
        len((shards / "new.csv").read_text().splitlines())
        == 1 + parquet.read_metadata("test/0.parquet").num_rows
    )


def test_the_page_counts_all_rows_and_names_the_files_that_hold_them(
    shards, streaming, monkeypatch, capsys
):
    """Not those of the sample, nor the suspects that have a line: 2 here, else 10,000."""
    monkeypatch.setattr(streamed, "MOST_SUSPECTS", 2)
    monkeypatch.setattr(streamed, "MOST_ROWS", 200)
    table = parquet.read_table("train/1.parquet").to_pydict()
    table["label"][:10] = [(label + 1) % 3 for label in table["label"][:10]]
    parquet.write_table(pa.table(table), "train/1.parquet")
    words = ["audit", "train/*.parquet", "test/*.parquet", "-o", "run", "--memory", "16GB"]
    assert main(words) == 0
    run = shards / "run"
    page = re.sub(r"\s+", " ", (run / "report.html").read_text())
    summary = json.loads((run / "summary.json").read_text())
    suspects, strange = summary["suspects"], summary["verdicts"]["unfamiliar"]
    assert suspects > 2
    assert f"{suspects} of 300 support labels are contradicted by their neighborhood" in page
    assert f"Review {suspects} labels" in page
    assert f"{strange or 'none'} of 120 inputs" in page
    assert "with a label in a sample of 100 " in page
    assert "the 2 most suspicious are in suspects.csv" in page
    assert "Every row is in samples-*.parquet and labels-*.parquet." in page
    assert "trust.vic · labels-*.parquet · samples-*.parquet" in capsys.readouterr().out
    assert "labels.csv" not in page
    assert not (run / "labels.csv").exists()


def test_a_pattern_that_fits_is_the_audit_of_one_file(shards):
    assert main(["audit", "train/*.parquet", "test", "-o", "run", "-q"]) == 0
    z, y = rows(300, 0)
    np.savez("train.npz", Z=z, y=y, ids=[f"train-{i}" for i in range(300)])
    z, y = rows(120, 1)
    np.savez("test.npz", Z=z, y=y, ids=[f"test-{i}" for i in range(120)])
    assert main(["audit", "train.npz", "test.npz", "-o", "one", "-q"]) == 0
    for name in ("samples.csv", "suspects.csv", "labels.csv"):
        assert (shards / "run" / name).read_bytes() == (shards / "one" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["audit", "none/*.npz"], "no shard at none/*.npz"),
        (["audit", "train/*.parquet", "--memory", "lots"], "must be a size like 2GB"),
        (["audit", "train/*.parquet", "--memory", "0"], "must be a size like 2GB"),
        (["audit", "train/*.parquet", "--drop-bad"], "--drop-bad looks at all rows at once"),
        (["audit", "train/*.parquet", "--on", "spark"], "on='spark' is no cluster"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(shards, capsys, words, sentence):
    if "spark" in words and not os.environ.get("CI"):
        pytest.importorskip("ray")
    assert main([*words, "-o", "run"]) == 2
    assert sentence in capsys.readouterr().err
    assert not (shards / "run").exists() or not any((shards / "run").glob("*.*"))


def test_a_shard_that_vanishes_ends_with_one_sentence_and_no_run(shards, streaming, monkeypatch):
    fit = scale.gather

    def vanish(*given):
        (shards / "train" / "1.parquet").unlink()
        return fit(*given)

    monkeypatch.setattr(scale, "gather", vanish)
    words = ["audit", "train/*.parquet", "test/*.parquet", "-o", "run", "--memory", "16GB"]
    assert main(words) == 2
    assert not (shards / "run" / "summary.json").exists()
