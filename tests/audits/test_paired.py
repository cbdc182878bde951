"""Two audits of the same rows: every head is paired, and the interval is that of paired rows."""

import dataclasses

import numpy as np
import pytest

from vicinal import audit
from vicinal.audits import compare_audits
from vicinal.audits.head_rows import HeadRows
from vicinal.audits.record import Audit
from vicinal.checks import InputError


@pytest.fixture(scope="module")
def runs():
    """The same query by two supports' embeddings: the second adds noise to the first's."""
    rng = np.random.default_rng(0)
    y = np.arange(360) % 3
    z = rng.normal(size=(360, 4)) + 1.2 * np.eye(4)[y]
    later = z + 0.8 * rng.normal(size=z.shape)
    return [audit(support=(x[:200], y[:200]), query=(x[200:], y[200:])) for x in (z, later)]


@pytest.fixture(scope="module")
def compared(runs):
    return compare_audits(*runs, runs[0].provenance)


def test_every_head_of_both_runs_has_a_paired_interval(runs, compared):
    found = {delta.name: delta for delta in compared.deltas}
    for head in runs[0].heads:
        for field in ("accuracy", "ece", "nll"):
            delta = found[f"{field}_{head.name}"]
            assert delta.paired
            assert (delta.low is None) == (delta.delta is None)
            assert delta.a == getattr(head, field)


def test_a_head_is_named_by_what_both_runs_call_it(runs):
    a, b = runs
    ours = next(head for head in a.heads if head.name == "knn")
    other = dataclasses.replace(ours, title="kNN, k=77, raw votes")
    heads = tuple(other if head is ours else head for head in a.heads)
    found = compare_audits(dataclasses.replace(a, heads=heads), b, a.provenance)
    titles = {delta.name: delta.title for delta in found.deltas}
    assert titles["accuracy_knn"] == "accuracy of kNN, raw votes"


def test_the_interval_of_a_head_is_that_of_resampling_the_same_rows_by_a_plain_loop(runs, compared):
    n = len(runs[0].cases.id)
    p, q = (next(h for h in r.head_rows if h.name == "ned").loss(n) for r in runs)
    rng = np.random.default_rng(1)
    changes = []
    for _ in range(2000):
        rows = rng.integers(n, size=n)
        changes.append(q[rows].mean() - p[rows].mean())
    low, high = np.quantile(changes, [0.025, 0.975])
    delta = next(d for d in compared.deltas if d.name == "nll_ned")
    assert abs(delta.low - low) < 0.1 * (high - low)
    assert abs(delta.high - high) < 0.1 * (high - low)


def test_kept_answers_are_the_heads_numbers_to_the_last_digit_shown(runs):
    n = len(runs[0].cases.id)
    heads = {head.name: head for head in runs[0].heads}
    for kept in runs[0].head_rows:
        head = heads[kept.name]
        assert kept.right(n).mean() == pytest.approx(head.accuracy, abs=1e-12)
        gap = kept.confidence(n).mean() - kept.right(n).mean()
        assert gap == pytest.approx(head.overconfidence, abs=1e-5)
        if head.nll is not None:
            assert kept.loss(n).mean() == pytest.approx(head.nll, rel=5e-4)


def test_a_record_read_back_pairs_as_the_one_that_was_written(runs, compared):
    again = [Audit.from_json(run.to_json()) for run in runs]
    assert compare_audits(*again, runs[0].provenance) == compared


def test_heads_of_other_rows_are_not_paired_and_it_is_said(runs):
    a, b = runs
    renamed = dataclasses.replace(b.cases, id=("elsewhere", *b.cases.id[1:]))
    found = compare_audits(a, dataclasses.replace(b, cases=renamed), a.provenance)
    heads = [delta for delta in found.deltas if delta.head is not None]
    assert heads
    assert not any(delta.paired for delta in heads)
    assert "2 rows are in only one of the runs" in found.not_checked["heads, paired"]


def test_runs_that_kept_no_answers_are_compared_unpaired(runs):
    a, b = runs
    found = compare_audits(a, dataclasses.replace(b, head_rows=()), a.provenance)
    assert "audit it again" in found.not_checked["heads, paired"]


@pytest.mark.parametrize("bits", ["", "no base64!", "AAAA" * 400])
def test_answers_that_do_not_fit_the_rows_are_refused(runs, bits):
    kept = dataclasses.replace(runs[0].head_rows[0], bits=bits)
    with pytest.raises(InputError, match="every query row"):
        dataclasses.replace(runs[0], head_rows=(kept,))


def test_an_infinite_loss_stays_infinite_and_a_huge_one_finite():
    kept = HeadRows.of("x", [False] * 2, [1.0] * 2, [np.inf, 1e9])
    assert np.isinf(kept.loss(2)).tolist() == [True, False]


def test_rows_of_one_id_are_not_paired(runs):
    first = runs[0]
    ids = (first.cases.id[1], *first.cases.id[1:])
    twice = dataclasses.replace(first, cases=dataclasses.replace(first.cases, id=ids))
    with pytest.raises(InputError, match="several query rows of b have the id '1'"):
        compare_audits(first, twice, first.provenance, names=("a", "b"))
