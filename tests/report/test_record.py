"""The record of an audit is plain numbers that survive JSON; its files are whole and harmless."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest

from report.synthetic import comparison, hostile_audit, image_audit, table_audit, text_audit
from vicinal import files
from vicinal.audits import files as run_files
from vicinal.audits.paired import Comparison, Delta
from vicinal.audits.record import Audit, Media
from vicinal.audits.sections import Histogram
from vicinal.checks import InputError
from vicinal.confidence.verdicts import VERDICTS
from vicinal.records import plain

BUILDERS = [image_audit, text_audit, table_audit, hostile_audit]


@pytest.mark.parametrize("builder", BUILDERS)
def test_an_audit_comes_back_from_json_as_it_was(builder):
    audit, _ = builder()
    again = Audit.from_json(audit.to_json())
    assert again == audit
    assert again.to_json() == audit.to_json()


def test_a_comparison_comes_back_from_json_as_it_was():
    assert Comparison.from_json(comparison().to_json()) == comparison()


def test_arrays_become_tuples_of_python_numbers():
    record = Histogram("h", np.linspace(0, 1, 3), np.array([1, 2]))
    assert record.edges == (0.0, 0.5, 1.0)
    assert all(type(count) is int for count in record.counts)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.array([1.0, np.nan])])
def test_a_missing_number_is_none_and_never_nan(bad):
    with pytest.raises(InputError, match=r"Histogram\.edges.*None"):
        Histogram("h", bad, ())


def test_columns_of_cases_have_one_entry_per_row():
    audit, _ = table_audit()
    with pytest.raises(InputError, match=r"Cases\.reason.*one entry for each of the 50 in `id`"):
        dataclasses.replace(audit.cases, reason=("one",))


def test_an_unknown_verdict_is_refused_with_the_nearest_name():
    audit, _ = table_audit()
    verdicts = ("suported", *audit.cases.verdict[1:])
    with pytest.raises(InputError, match="Did you mean 'supported'"):
        dataclasses.replace(audit.cases, verdict=verdicts)


def test_every_neighbor_of_a_case_is_a_known_support_row():
    audit, _ = table_audit()
    support = audit.support
    fewer = dataclasses.replace(
        support, row=support.row[1:], id=support.id[1:], label=support.label[1:]
    )
    with pytest.raises(InputError, match=rf"row {support.row[0]} is missing"):
        dataclasses.replace(audit, support=fewer)


@pytest.mark.parametrize("text", ["", "[1]", '{"name": "x"}', '{"color": 1}', '{"name":'])
def test_what_is_no_saved_audit_is_an_input_error(text):
    with pytest.raises(InputError):
        Audit.from_json(text)


def test_the_summary_holds_the_contracted_names_and_counts():
    audit, _ = image_audit()
    summary = json.loads(dict(run_files.files_of(audit))["summary.json"])
    for key in ("recommended", "warnings", "not_checked", "data", "provenance"):
        assert key in summary
    wanted = {"accuracy", "accuracy_se", "ece", "noise_floor", "nll", "coverage_at_target"}
    assert set(summary["heads"]) == {head.name for head in audit.heads}
    assert all(wanted <= set(head) for head in summary["heads"].values())
    assert summary["verdicts"] == {v: audit.cases.verdict.count(v) for v in VERDICTS}
    assert summary["suspects"] == len(audit.labels.suspects)
    assert audit.summary["verdicts"] == summary["verdicts"]
    assert sum(summary["verdicts"].values()) == len(audit.cases.id)


def test_equal_audits_give_equal_bytes():
    a, b = (dict(run_files.files_of(image_audit.__wrapped__()[0])) for _ in range(2))
    assert a == b


def test_samples_hold_every_query_row_and_suspects_come_most_suspicious_first():
    audit, _ = image_audit()
    texts = dict(run_files.files_of(audit))
    samples, suspects = (
        list(csv.DictReader(io.StringIO(texts[name]))) for name in ("samples.csv", "suspects.csv")
    )
    assert [row["id"] for row in samples] == list(audit.cases.id)
    start = ["id", "label", "predicted", "confidence", "credibility", "near_percentile"]
    assert list(samples[0])[:6] == start
    assert [audit.classes[p] for p in audit.cases.predicted] == [r["predicted"] for r in samples]
    assert [float(r["p_given"]) for r in suspects] == sorted(float(r["p_given"]) for r in suspects)
    assert {"id", "given", "suggested", "p_given", "p_suggested", "affected"} <= set(suspects[0])


def test_no_cell_of_a_users_text_starts_a_formula():
    audit, _ = hostile_audit()
    text = dict(run_files.files_of(audit))["samples.csv"]
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 1 + len(audit.cases.id)
    assert any(cell.startswith("'=HYPERLINK") for row in rows for cell in row)
    assert not any(cell[:1] in ("=", "@", "\t", "\r") for row in rows for cell in row)


def test_numbers_used_as_labels_stay_numbers():
    assert [run_files.word(cell) for cell in ("-1", "+1", "-1.5")] == ["-1", "+1", "-1.5"]
    assert [run_files.word(cell)[0] for cell in ("-1+2", "@x", "+a", "\tx")] == ["'"] * 4


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    files.write_atomically(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_difference_is_evidence_only_where_its_interval_leaves_zero_out():
    delta = lambda low, high, up: Delta("m", "m", 1.0, 1.0, 0.0, low, high, up).finding
    assert delta(-1.0, 1.0, True) == "no evidence"
    assert delta(0.5, 1.0, True) == "better"
    assert delta(0.5, 1.0, False) == "worse"
    assert delta(None, None, True) == "not measured"


def test_media_may_have_gaps():
    media = Media("texts", {3: "three"}, ["zero"])
    assert media.get("query", 3) == "three"
    assert media.get("query", 0) is None
    assert media.get("support", 0) == "zero"
    assert media.get("support", 1) is None
    with pytest.raises(InputError, match=r"Media\.kind"):
        Media("video", [], [])


def test_a_column_of_numbers_is_kept_and_one_missing_number_in_it_is_found():
    column = tuple(float(i) for i in range(5))
    assert plain(column, "x") == plain(list(column), "x") == plain(np.array(column), "x") == column
    assert plain([1, None, True, "a"], "x") == (1, None, True, "a")
    for wrong in ((1.0, float("nan")), (float("inf"),), ((1.0,), (float("nan"), 2.0)), (1, np.nan)):
        with pytest.raises(InputError, match="Pass None where there is no value"):
            plain(wrong, "x")
