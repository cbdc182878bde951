"""The support's labels in an audit: every row scored, how many are wrong, which classes are one."""

import json

import numpy as np
import pytest
import torch

from vicinal.audits.files import label_rows
from vicinal.confidence.label_noise import label_noise
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.report.facts import label_sentences
from vicinal.studies import Audit, AuditSettings, audit


def blobs(n, seed, classes=4):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return (np.eye(classes, 5)[y] * 4 + rng.normal(size=(n, 5))).astype(np.float32), y


@pytest.fixture(scope="module")
def planted():
    (z, y), query = blobs(400, 0), blobs(160, 1)
    wrong = np.random.default_rng(2).permutation(400)[:30]
    given = y.copy()
    given[wrong] = (y[wrong] + 1) % 4
    report = audit(support=(z, given), query=query, settings=AuditSettings(k=20))
    return report, y, given, wrong


def test_every_row_is_scored_by_probabilities_that_never_saw_its_label(planted):
    _, _, given, _ = planted
    settings = AuditSettings(k=20, space="raw", prior="uniform")  # the neighbors alone
    report = audit(support=(blobs(400, 0)[0], given), query=blobs(160, 1), settings=settings)
    ned = report.head.ned
    scores = report.labels.scores
    assert scores.shape == (400,)
    p = ned.log_probs_of(_loo(ned, given))
    want = label_noise(p, torch.from_numpy(given)).scores.numpy()
    np.testing.assert_allclose(scores, want, rtol=1e-6, atol=1e-12)


def test_wrong_labels_score_highest_and_their_number_is_within_the_interval(planted):
    report, y, _, wrong = planted
    first = np.argsort(-report.labels.scores, kind="stable")[: len(wrong)]
    assert len(set(first) & set(wrong)) >= 27
    number = report.labels.wrong
    assert number.low <= 30 <= number.high
    assert 0 <= number.count - len(report.labels.suspects) <= 1  # one has no likelier class
    assert [s.score for s in report.labels.suspects] == sorted(
        (s.score for s in report.labels.suspects), reverse=True
    )
    found = [s for s in report.labels.suspects if s.row in set(wrong)]
    assert np.mean([s.suggested == y[s.row] for s in found]) > 0.95
    top = number.pairs[0]
    assert (top.given - top.true) % 4 == 1
    assert all(pair.low <= pair.count <= pair.high for pair in number.pairs)


def test_the_numbers_are_in_the_summary_the_table_and_the_words(planted):
    report, _, _, _ = planted
    summary = report.summary
    assert summary["labels_wrong"]["count"] == report.labels.wrong.count
    assert summary["labels_ambiguous"] == len(report.labels.ambiguous.rows)
    assert summary["classes_alike"] == ()
    heading, *lines = label_rows(report)
    assert heading[:4] == ["id", "given", "suggested", "score"]
    assert len(lines) == 400
    assert sum(line[6] == "1" for line in lines) == len(report.labels.suspects)
    assert sum(line[7] == "1" for line in lines) == len(report.labels.ambiguous.rows)
    said = " ".join(label_sentences(report))
    assert f"about {report.labels.wrong.count} of 400" in said
    assert "could be either of two" in said


def test_a_record_of_before_the_scores_still_loads(planted):
    report, _, _, _ = planted
    assert Audit.from_json(report.to_json()).labels == report.labels
    old = json.loads(report.to_json())
    for name in ("rows", "wrong", "alike", "ambiguous"):
        del old["labels"][name]
    for suspect in old["labels"]["suspects"]:
        del suspect["score"]
    again = Audit.from_json(json.dumps(old))
    assert again.labels.scores.shape == (0,)
    assert len(again.labels.suspects) == len(report.labels.suspects)
    assert again.summary["labels_wrong"] is None
    assert label_sentences(again) == []
    assert len(list(label_rows(again))) == 1


def test_a_class_under_two_names_is_said_to_be_one_perhaps():
    z, y = blobs(400, 0)
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    rename = (y == 2) & (np.random.default_rng(0).random(400) < 0.5)
    names[rename] = "tom"
    report = audit(support=(z, names), settings=AuditSettings(k=20))
    (pair,) = report.labels.alike
    assert {report.classes[pair.a], report.classes[pair.b]} == {"cat", "tom"}
    assert pair.apart < 0.25
    assert any("cat and tom may be one class" in line for line in label_sentences(report))


def test_labels_without_a_contradiction_are_ranked_and_none_is_flagged():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    z = (20 * y[:, None] + rng.normal(size=(200, 3))).astype(np.float32)
    report = audit(support=(z, y), settings=AuditSettings(k=20))
    assert report.labels.suspects == ()
    assert report.labels.wrong.count == 0
    assert report.labels.scores.shape == (200,)


def test_an_embedding_that_says_little_about_the_labels_is_warned_of():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(200, 4)).astype(np.float32), np.arange(200) % 5
    report = audit(support=(z, y), settings=AuditSettings(k=20))
    assert any("more about the embedding than about the labels" in w for w in report.warnings)


def _loo(ned, given):
    """Each support row's neighbors among the others, by a plain sort."""
    x = ned.support_.rows.double()
    d = ((x[:, None] - x[None]) ** 2).sum(2).fill_diagonal_(torch.inf)
    near = d.sort(dim=1, stable=True)
    found = Neighborhood(near.values[:, : ned.k_], near.indices[:, : ned.k_])
    return found.labeled(torch.from_numpy(given))
