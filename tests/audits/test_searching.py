"""An audit says who found its neighbors, and what an approximate search has moved."""

import json

import numpy as np
import pytest
import torch

import vicinal
from vicinal.audits.record import Audit
from vicinal.audits.settings import AuditSettings
from vicinal.checks import InputError
from vicinal.neighbors.search import ExactSearch, choice, lists
from vicinal.neighbors.search import faiss as search_faiss


@pytest.fixture
def small(monkeypatch):
    """Lists, and codes in them, for supports of a few thousand rows."""
    monkeypatch.setattr(search_faiss, "LISTS_FROM", 2000)
    monkeypatch.setattr(lists, "_CODED_FROM", 2000)


def sets(n=3000, queries=300, noise=0.05):
    draw = np.random.default_rng(0)
    centers, y = draw.normal(size=(5, 8)), draw.integers(0, 5, n + queries)
    z = (centers[y] + 0.8 * draw.normal(size=(n + queries, 8))).astype(np.float32)
    y[:n][draw.random(n) < noise] = 0
    return {"support": (z[:n], y[:n]), "query": (z[n:], y[n:])}


@pytest.mark.parametrize("space", ["raw", "whitened"])
def test_what_a_search_moved_is_what_an_exact_audit_differs_by(small, space):
    """Whitened by labels, each fold is searched in a space of its own."""
    given, settings = sets(), AuditSettings(space=space)
    exact = vicinal.audit(**given, search="exact", settings=settings)
    near = vicinal.audit(**given, search="faiss", recall=0.9, settings=settings)
    said = near.search
    assert exact.search.exact
    assert exact.search.recall is None
    assert not said.exact
    assert said.rows == 1000
    assert 0.9 < said.recall < 1
    assert f"recall@{said.k} {said.recall:.3f}" in said.how
    flags = [{s.row for s in audit.labels.suspects} for audit in (exact, near)]
    truly = len(flags[0] ^ flags[1]) / 3  # of 3,000 rows, so many in a thousand
    assert abs(said.suspects_moved - truly) < 10
    nll = [next(h.nll for h in audit.heads if h.name == "ned_fitted") for audit in (exact, near)]
    assert abs(nll[1] - nll[0]) < 0.02
    assert abs(said.nll_moved) < 0.02


def test_the_stated_recall_of_the_audit_is_true_on_other_rows(small):
    given = sets()
    audit = vicinal.audit(**given, search="faiss", settings=AuditSettings(space="raw", k=50))
    x = torch.from_numpy(given["support"][0])
    rows = torch.arange(0, 3000, 3)
    found = audit.head.ned.support_.search.query(x[rows], 50, exclude=rows)
    true = ExactSearch().build(x).query(x[rows], 50, exclude=rows)
    pairs = zip(found.indices.tolist(), true.indices.tolist(), strict=True)
    truly = np.mean([len(set(a) & set(b)) / 50 for a, b in pairs])
    assert abs(truly - audit.search.recall) < 5 * audit.search.recall_se + 0.002


@pytest.mark.parametrize("tries_harder", [True, False])
def test_rows_that_lie_otherwise_than_the_support_get_more_effort_or_a_sentence(
    small, monkeypatch, tries_harder
):
    if not tries_harder:
        monkeypatch.setattr(search_faiss.FaissSearch, "reach", lambda self, x, k: None)
    given = sets()
    between = given["query"][0].mean(0) + 0.05 * given["query"][0]  # where all lists meet
    audit = vicinal.audit(
        support=given["support"],
        query=(between, given["query"][1]),
        search="faiss",
        settings=AuditSettings(space="raw"),
    )
    said = [text for text in audit.warnings if "lie otherwise than those of the support" in text]
    exact = ExactSearch().build(torch.from_numpy(given["support"][0]))
    true = exact.query(torch.from_numpy(between), 100).indices[:, :20]
    shown = [set(rows) for rows in audit.cases.neighbors]
    found = [len(set(t) & s) / 20 for t, s in zip(true.tolist(), shown, strict=True)]
    if tries_harder:
        assert not said
        assert np.mean(found) > 0.95
        assert all(share >= 0.97 for share in audit.search.recalls.values())
    else:
        assert said
        assert audit.search.recalls["query"] < 0.95
        assert "query: recall@100" in audit.search.how


def test_auto_is_exact_to_the_bit_where_exact_is_cheap():
    given = sets(600, 100)
    exact, auto = (vicinal.audit(**given, search=name) for name in ("exact", "auto"))
    assert auto.search.exact
    assert auto.cases == exact.cases
    assert auto.labels == exact.labels


def test_auto_takes_lists_where_exact_would_take_long(small, monkeypatch):
    for place in (choice, search_faiss):
        monkeypatch.setattr(place, "lists_may_pay", lambda rows, width: rows > 2000)
    audit = vicinal.audit(**sets(3000, 60), settings=AuditSettings(space="raw"))
    assert audit.search.engine.startswith("IVF")


def test_the_statement_is_in_summary_record_and_page(small, tmp_path):
    audit = vicinal.audit(**sets(), search="faiss", settings=AuditSettings(space="raw"))
    assert audit.summary["search"]["recall"] == audit.search.recall
    assert Audit.from_json(audit.to_json()).search == audit.search
    audit.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert f"recall@100 {audit.search.recall:.3f}" in page
    json.dumps(audit.summary, allow_nan=False)


def test_blocks_of_one_search_are_not_taken_for_those_of_another(small, tmp_path):
    given, settings = sets(), AuditSettings(space="raw")
    vicinal.audit(**given, search="faiss", recall=0.8, settings=settings, work=tmp_path)
    kept = vicinal.audit(**given, search="exact", settings=settings, work=tmp_path)
    assert kept.cases == vicinal.audit(**given, search="exact", settings=settings).cases


def test_wrong_choices_earn_a_sentence():
    given = sets(60, 10)
    with pytest.raises(InputError, match="Did you mean 'exact'"):
        vicinal.audit(**given, search="exakt")
    with pytest.raises(InputError, match="`recall` must be between 0 and 1"):
        vicinal.audit(**given, recall=1.5)
