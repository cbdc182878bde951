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


def test_heads_are_compared_on_the_rows_that_both_runs_judged(runs):
    a, b = runs
    names = tuple(f"other {i}" if i < 60 else name for i, name in enumerate(b.cases.id))
    found = compare_audits(
        a, dataclasses.replace(b, cases=dataclasses.replace(b.cases, id=names)), a.provenance
    )
    kept, n = {rows.name: rows for rows in a.head_rows}, len(names)
    for delta in (d for d in found.deltas if d.head is not None and d.name.startswith("accuracy")):
        assert delta.paired
        assert delta.a == kept[delta.head].right(n)[60:].mean()
    assert found.warnings == (
        "120 rows are in only one of the runs, and left out: every value is of the 100 rows of "
        "both.",
    )
    shown = {delta.name: (delta.a, delta.b) for delta in found.deltas}
    assert shown["accuracy"] == shown[f"accuracy_{a.recommended}"] or a.recommended != b.recommended


def test_a_run_that_lacks_classes_is_told_of(runs):
    a, b = runs
    more = dataclasses.replace(b, classes=(*b.classes, "owl"), prior_shift=None)
    found = compare_audits(a, more, a.provenance, names=("old", "new"))
    assert found.warnings == ("new knows classes that old does not: owl.",)


def test_neighbors_whose_ids_are_of_two_kinds_are_not_called_different(runs, compared):
    a, b = runs
    assert compared.overlap > 0.1
    named = dataclasses.replace(b.support, id=tuple(f"photo {row}" for row in b.support.row))
    found = compare_audits(a, dataclasses.replace(b, support=named), a.provenance)
    assert found.overlap is None
    assert "no id in common" in found.not_checked["neighbors"]


def test_runs_without_a_row_or_a_name_in_common_are_told_why(runs):
    a, b = runs
    count = len(a.cases.id)
    named = dataclasses.replace(b.cases, id=tuple(f"photo {i}" for i in range(count)))
    with pytest.raises(InputError, match="old has numbers for ids: give both query sets 'ids'"):
        compare_audits(a, dataclasses.replace(b, cases=named), a.provenance, names=("old", "new"))
    words = dataclasses.replace(b, classes=("cat", "dog", "owl"))
    with pytest.raises(InputError, match="'0' and 'cat', .* the same --classes"):
        compare_audits(a, words, a.provenance)
    moved = dataclasses.replace(
        b.cases, id=tuple(b.cases.id[(i + 1) % count] for i in range(count))
    )
    with pytest.raises(InputError, match="or labels were changed"):
        compare_audits(a, dataclasses.replace(b, cases=moved), a.provenance)


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
