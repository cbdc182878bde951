"""Unknown inputs in an audit: the promise, a foreign set that tests it, and what the head keeps."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vicinal.audits import AuditSettings, audit
from vicinal.audits.familiarity import REFERENCE
from vicinal.audits.model import layer_neighbors, model_scores, outputs_are_logits
from vicinal.capture import Activations
from vicinal.checks import InputError
from vicinal.confidence.familiarity import COMBINED, PARTS
from vicinal.evaluation import auroc
from vicinal.report.page import render


def blobs(n, rng, d=12):
    y = np.arange(n) % 3
    x = 3 * np.eye(3, d)[y] + 0.7 * rng.normal(size=(n, d))
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def sets():
    rng = np.random.default_rng(0)
    foreign = (0.7 * rng.normal(size=(80, 12)) + 3 * np.eye(3, 12)[0] + 1.2).astype(np.float32)
    return blobs(300, rng), blobs(240, rng), foreign


@pytest.fixture(scope="module")
def report(sets):
    support, query, foreign = sets
    settings = AuditSettings(k=15, target_accuracy=0.9)
    return audit(support=support, query=query, foreign=foreign, settings=settings)


def test_a_foreign_set_is_reported_part_by_part_on_the_half_that_chose_nothing(report):
    found = report.unknowns
    assert [part.name for part in found.parts] == ["combination", *PARTS]
    assert (found.foreign.rows, found.rows, found.ordinary) == (80, 40, 240)
    assert sum(found.verdicts.values()) == 40
    assert found.supported == found.verdicts["supported"] / 40
    assert found.parts[0].flagged == found.verdicts["unfamiliar"] / 40
    assert {part.name for part in found.parts[1:] if part.combined} == set(found.combination)
    assert found.parts[0].auroc > 0.9
    assert report.summary["unknowns"]["rate"] == 0.05
    assert "outliers" not in report.not_checked


def test_the_auroc_of_a_part_is_that_of_its_scores(sets):
    (x, y), (query, labels), foreign = sets
    settings = AuditSettings(k=15, space="raw")
    report = audit(support=(x, y), query=(query, labels), foreign=foreign, settings=settings)
    half = np.random.default_rng(0).permutation(80)[40:]

    def fifth(rows):
        return np.sort(((rows[:, None] - x[None]) ** 2).sum(2), 1)[:, 4]

    near = next(part for part in report.unknowns.parts if part.name == "near")
    assert near.auroc == pytest.approx(auroc(fifth(query), fifth(foreign[half])), abs=1e-3)


def test_the_saved_head_says_of_foreign_rows_what_the_audit_reports(report, sets):
    half = np.random.default_rng(0).permutation(80)[40:]
    out = report.head.predict(sets[2][half])
    assert out.counts() == report.unknowns.verdicts


def test_rows_at_most_at_the_promised_rate_are_unfamiliar_and_the_p_value_says_which(report, sets):
    cases = report.cases
    for p, verdict in zip(cases.familiarity, cases.verdict, strict=True):
        assert (verdict == "unfamiliar") == (p <= 0.05)
    share = np.mean(np.array(cases.familiarity) <= 0.05)
    assert share == report.unknowns.flagged
    assert share < 0.05 + 3 * (0.05 * 0.95 * (1 / 120 + 1 / 240)) ** 0.5


@pytest.mark.parametrize("how", ["calib", "alone", "unlabeled"])
def test_every_kind_of_audit_ranks_among_rows_that_nothing_was_fitted_on(sets, how):
    support, query, foreign = sets
    settings = AuditSettings(k=15, unfamiliar=0.1)
    given = {
        "calib": {"query": query, "calib": blobs(200, np.random.default_rng(5))},
        "alone": {},
        "unlabeled": {"query": query[0]},
    }[how]
    found = audit(support=support, foreign=(foreign,), settings=settings, **given)
    assert found.unknowns.flagged < 0.16
    assert found.unknowns.parts[0].auroc > 0.9
    assert found.head.standards.familiarity.rate == 0.1


def test_another_combination_is_chosen_only_where_it_is_surely_better(sets):
    """Rows that only the residual sees: off the plane that the support lies in, and near it."""
    rng = np.random.default_rng(7)
    y = np.arange(400) % 2
    plane = rng.normal(size=(400, 2)) * 5 + 20 * y[:, None]
    thin = 0.02 * rng.normal(size=(400, 30))
    x = np.c_[plane, thin].astype(np.float32)
    foreign = x[:200].copy()
    foreign[:, 2:] += 0.04 * rng.normal(size=(200, 30))
    found = audit(support=(x[200:], y[200:]), foreign=foreign, settings=AuditSettings(k=10))
    best = max(found.unknowns.parts, key=lambda part: part.auroc)
    assert found.unknowns.parts[0].auroc > best.auroc - 0.05
    usual = audit(support=sets[0], query=sets[1], foreign=sets[1][0] + 1e-3)  # nothing to find
    assert usual.unknowns.combination == COMBINED


def test_without_a_foreign_set_the_record_says_what_experience_suggests(sets):
    found = audit(support=sets[0], query=sets[1])
    assert found.unknowns is None
    assert f"{REFERENCE.pairs} reference pairs" in found.not_checked["outliers"]
    assert f"{100 * REFERENCE.mean:.0f} % of the foreign rows slipped through" in (
        render(found).replace("\u00a0", " ")
    )


def test_the_reference_is_the_table_that_was_measured():
    kept = Path(__file__).parents[2] / REFERENCE.source
    summary = json.loads(kept.read_text())["results"]["summary"]
    assert summary == {name: getattr(REFERENCE, name) for name in summary}


def test_the_page_has_the_section_where_a_foreign_set_was_given_and_only_there(report):
    page = render(report)
    assert 'id="unknowns"' in page
    assert "these slip through" in page
    without = render(dataclasses.replace(report, unknowns=None))
    assert 'id="unknowns"' not in without
    assert "those of one foreign set" in page
    assert '<th scope="row">foreign</th>' in page
    assert "those of one foreign set" not in without


def test_foreign_rows_of_another_width_nan_or_none_earn_a_sentence(sets):
    support, query, foreign = sets
    with pytest.raises(InputError, match="`foreign` has 11"):
        audit(support=support, query=query, foreign=foreign[:, :11])
    with pytest.raises(InputError, match="`foreign` has NaN"):
        audit(support=support, query=query, foreign=np.full_like(foreign, np.nan))
    with pytest.raises(InputError, match="`foreign` is empty"):
        audit(support=support, query=query, foreign=foreign[:0])
    with pytest.raises(InputError, match="`unfamiliar`"):
        AuditSettings(unfamiliar=1.0)


def test_a_models_foreign_inputs_go_through_the_model(sets):
    (x, y), (query, yq), foreign = (
        tuple(map(torch.from_numpy, pair)) if isinstance(pair, tuple) else torch.from_numpy(pair)
        for pair in sets
    )
    net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
    settings = AuditSettings(k=15, network_rows=0)
    found = audit(net, (x, y), (query, yq), foreign=foreign, settings=settings)
    assert found.unknowns.foreign.dims == 8
    assert found.unknowns.rows == 40
    own = {part.name: part for part in found.unknowns.parts if part.name not in PARTS}
    assert list(own) == ["combination", "energy", "dknn", "layer:0", "layer:output"]
    assert "energy of the logits" in render(found)
    assert set(found.head.standards.familiarity.parts) <= set(PARTS), "it sees embeddings alone"


def model_of(sets):
    torch.manual_seed(0)
    (x, y), (query, yq), _ = sets
    net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()
    return net, (torch.from_numpy(x), torch.from_numpy(y)), torch.from_numpy(query), yq


def test_layers_and_logits_of_a_model_have_a_say_in_unfamiliar_and_the_record_says_so(sets):
    net, train, query, yq = model_of(sets)
    settings = AuditSettings(k=15, network_rows=0, space="raw")
    labeled = query, torch.from_numpy(yq)
    found = audit(net, train, labeled, settings=settings)
    assert (
        "4 of them the model's: energy of the logits; DkNN; distances in layers 0, output."
        in found.recommendation.why
    )
    assert "The saved head sees embeddings alone" in found.recommendation.why
    assert found.head.standards.familiarity.parts == COMBINED
    far = np.mean(np.array(found.cases.familiarity) <= 0.05)
    assert far < 0.05 + 3 * (0.05 * 0.95 * (1 / 120 + 1 / 240)) ** 0.5
    torch.nn.init.zeros_(net[2].weight)  # logits that are the same for every row
    other = audit(net, train, labeled, settings=settings)
    assert other.cases.distances == found.cases.distances
    assert other.cases.familiarity != found.cases.familiarity


def test_where_the_networks_own_training_rows_rank_its_layers_and_logits_have_no_say(sets):
    net, train, query, _ = model_of(sets)
    found = audit(net, train, query, settings=AuditSettings(k=15, network_rows=0))
    assert "the model's" not in found.recommendation.why


def test_what_layers_and_logits_say_of_foreign_rows_is_what_plain_loops_say(sets):
    (x, y), (query, _), foreign = sets
    kept = lambda z: Activations({"a": torch.from_numpy(z), "output": torch.from_numpy(z[:, :3])})
    support = Activations({"a": torch.from_numpy(x)}, torch.from_numpy(y))
    some = torch.arange(0, 300, 2)
    given = {"query": kept(query), "foreign": kept(foreign)}
    outputs = {name: given[name]["output"] for name in ("query", "foreign")}
    near = layer_neighbors({"support": support, **given}, ("a",), some)
    found = model_scores(near, outputs, torch.from_numpy(y))
    assert list(found.titles) == ["energy", "dknn", "layer:a"]
    embeddings = model_scores(near, outputs, torch.from_numpy(y), logits=False)
    assert list(embeddings.titles) == ["dknn", "layer:a"]
    assert list(found.rows) == ["query", "foreign"]
    unit = x[::2] / np.linalg.norm(x[::2], axis=1, keepdims=True)
    for z, row in zip(foreign[:20], found.rows["foreign"][:20].numpy(), strict=True):
        far = 1 - unit @ (z / np.linalg.norm(z))
        near = np.argsort(far, kind="stable")[:25]
        assert row[0] == pytest.approx(-np.log(np.exp(z[:3].astype(float)).sum()), abs=1e-5)
        assert row[1] == 25 - np.bincount(y[::2][near]).max()
        assert row[2] == pytest.approx(np.sort(far)[4], abs=1e-5)


def test_outputs_that_are_not_the_classes_are_no_logits():
    labels = torch.tensor([0, 4, 2])
    assert outputs_are_logits(5, labels, None)
    assert outputs_are_logits(5, labels, list("abcde"))
    assert outputs_are_logits(9, labels, {0: "a"})  # of more classes than are seen
    assert not outputs_are_logits(4, labels, None)
    assert not outputs_are_logits(384, labels, list("abcde"))  # an embedding
