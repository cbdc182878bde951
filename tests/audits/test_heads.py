import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

import reference
from vicinal.audits.head_table import TITLES
from vicinal.audits.settings import AuditSettings
from vicinal.checks import InputError
from vicinal.confidence.ned.fit import fit_recipe
from vicinal.neighbors.search import ExactSearch
from vicinal.studies import HeadComparison, audit, compare_heads


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(x))[:700]
    x = x[order] / 16 + 0.45 * rng.normal(size=(700, 64))
    u, _, _ = np.linalg.svd((x - x.mean(0)).T @ (x - x.mean(0)))
    return (x - x.mean(0)) @ u[:, :20], y[order]


@pytest.fixture(scope="module")
def table(digits):
    x, y = digits
    logits = -((x[400:, None] - np.stack([x[:400][y[:400] == c].mean(0) for c in range(10)])) ** 2)
    logits = 3 * logits.sum(-1)
    return compare_heads(
        (x[:400], y[:400]),
        (x[400:], y[400:]),
        logits=logits,
        calib_logits=(logits[:150], y[400:550]),
        k=30,
        target=0.8,
    )


def test_every_head_has_a_line_and_the_record_survives_json(table):
    assert [head.name for head in table.heads] == list(TITLES)
    assert HeadComparison.from_json(table.to_json()) == table
    lines = str(table).splitlines()
    for head in table.heads:
        assert any(line.startswith(head.title) for line in lines)


def nearer_of_ties(knn, row, shares, labels):
    """The class with most votes; among equals the one whose voters are nearer in the mean."""
    distances, indices = (found[0] for found in knn.kneighbors([row]))
    tied = np.flatnonzero(np.isclose(shares, shares.max()))
    return min(tied, key=lambda c: distances[labels[indices] == c].mean())


def test_a_line_is_what_its_metrics_say(table, digits):
    x, y = digits
    knn = KNeighborsClassifier(30, algorithm="brute").fit(x[:400], y[:400])
    p = knn.predict_proba(x[400:])
    predicted = [nearer_of_ties(knn, row, p[i], y[:400]) for i, row in enumerate(x[400:])]
    correct = np.array(predicted) == y[400:]
    line = table["knn"]
    assert line.accuracy == correct.mean()
    assert line.accuracy_se == pytest.approx(np.sqrt(correct.mean() * (1 - correct.mean()) / 300))
    want = reference.calibration_error(p.max(1).tolist(), correct.tolist(), 15)
    assert line.ece == pytest.approx(want)
    nll, infinite = reference.log_loss(p, y[400:])
    assert (line.infinite_rows, line.nll_finite) == (infinite, pytest.approx(nll))
    assert (line.nll is None) == (infinite > 0)


def test_one_nearest_neighbor_is_always_sure_so_its_ece_is_its_error(table):
    line = table["1nn"]
    assert line.mean_confidence == 1
    assert line.ece == pytest.approx(1 - line.accuracy)
    assert line.noise_floor == 0
    assert line.nll is None


def test_ned_is_better_calibrated_than_the_votes_and_its_fits_improve_it(table):
    # Karpusha 2020, Table 1's shape, on noisy digits
    votes = [table[name].ece for name in ("1nn", "knn", "dudani", "gou")]
    assert table["ned"].ece < min(votes)
    assert table["ned_fitted"].nll < table["ned"].nll_finite
    assert table["softmax_scaled"].nll < table["softmax"].nll_finite
    assert table["softmax_scaled"].accuracy == table["softmax"].accuracy


def test_the_neighbor_heads_share_one_search_of_the_queries(digits):
    x, y = digits

    calls = []

    class Counting(ExactSearch):
        def query(self, rows, k, *, exclude=None):
            calls.append((len(rows), exclude is None))
            return super().query(rows, k, exclude=exclude)

    names = ["1nn", "knn", "dudani", "gou", "ned", "ned_fitted"]
    compare_heads((x[:400], y[:400]), (x[400:], y[400:]), k=20, heads=names, search=Counting())
    assert calls.count((300, True)) == 1
    assert calls.count((400, False)) == 1  # and one leave-one-out graph
    assert len(calls) == 2


def test_an_audit_and_a_comparison_have_one_table(digits):
    x, y = digits
    support, calib, query = ((x[a:b], y[a:b]) for a, b in ((0, 300), (300, 500), (500, 700)))
    settings = AuditSettings(k=30, space="raw", target_accuracy=0.8)
    report = audit(support=support, query=query, calib=calib, settings=settings)
    table = compare_heads(support, query, calib=calib, k=30, target=0.8)
    votes = {"knn", "knn_smoothed", "dudani", "gou"}  # an audit fits their k
    told = [line for line in report.heads if line.name not in votes]
    assert {line.name for line in told} == set(TITLES) - votes - {
        "svc",
        "softmax",
        "softmax_scaled",
    }
    for line in told:
        other = table[line.name]
        for name in ("accuracy", "ece", "noise_floor", "nll"):
            assert getattr(line, name) == pytest.approx(getattr(other, name), abs=1e-9)


def test_torch_and_named_classes_give_the_same_table(digits):
    x, y = digits
    names = np.array(list("abcdefghij"))
    some = ["knn", "ned", "logistic"]
    want = compare_heads((x[:200], y[:200]), (x[200:300], y[200:300]), k=9, heads=some)
    got = compare_heads(
        (torch.tensor(x[:200]), names[y[:200]]),
        (torch.tensor(x[200:300]), names[y[200:300]]),
        k=9,
        heads=some,
    )
    assert got == want


def test_a_class_the_support_lacks_is_wrong_for_every_head_and_noted(digits):
    x, y = digits
    known = y[:300] != 7
    table = compare_heads(
        (x[:300][known], y[:300][known]), (x[300:400], y[300:400]), k=9, heads=["knn", "ned"]
    )
    assert table.unknown_rows == (y[300:400] == 7).sum() > 0
    assert table["ned"].infinite_rows >= table.unknown_rows
    assert "the support lacks" in table.notes[0]


def test_the_svc_is_a_fair_rival_its_confidence_ranks_and_two_classes_work(digits):
    x, y = digits
    table = compare_heads(
        (x[:400], y[:400]), (x[400:], y[400:]), k=9, heads=["logistic", "svc"], target=0.8
    )
    assert table["svc"].aurc < table["logistic"].aurc
    assert table["svc"].ece < 3 * table["svc"].noise_floor
    two = compare_heads((x[:100], y[:100] > 4), (x[100:200], y[100:200] > 4), k=9, heads=["svc"])
    assert two["svc"].accuracy > 0.7


def test_a_support_too_large_to_train_on_is_sampled_and_says_so(digits, monkeypatch):
    x, y = digits
    monkeypatch.setattr("vicinal.audits.linear_view.LOGISTIC_ROWS", 150)
    table = compare_heads((x[:400], y[:400]), (x[400:], y[400:]), k=9, heads=["logistic"])
    assert "fitted on 150 of 400 support rows" in table.notes[0]


def test_a_class_of_one_row_leaves_the_svc_out(digits):
    x, y = digits
    labels = np.where(np.arange(100) == 0, 99, y[:100])
    table = compare_heads((x[:100], labels), (x[100:200], y[100:200]), k=9, heads=["knn", "svc"])
    assert [head.name for head in table.heads] == ["knn"]
    assert "two support rows of every class" in table.notes[0]


def test_what_cannot_be_trained_is_left_out_with_a_note():
    x = np.random.default_rng(0).normal(size=(40, 3))
    table = compare_heads((x, np.zeros(40, int)), (x + 0.1, np.zeros(40, int)), k=5)
    assert table["knn"].accuracy == 1
    assert "logistic" not in [head.name for head in table.heads]
    assert any("two classes" in note for note in table.notes)


def test_held_out_rows_set_neds_temperature(digits):
    x, y = digits
    arguments = ((x[:200], y[:200]), (x[200:300], y[200:300]))
    loo = compare_heads(*arguments, k=9, heads=["ned"])
    held_out = compare_heads(*arguments, calib=(x[300:500], y[300:500]), k=9, heads=["ned"])
    assert loo.temperature != held_out.temperature


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"support": np.ones((3, 2))}, "pair"),
        ({"k": 500}, "k"),
        ({"heads": ["kn"]}, "Did you mean"),
        ({"heads": ["softmax"]}, "needs `logits`"),
        ({"query": (np.ones((3, 2)), [0, 0, 0])}, "dimensions"),
        ({"target": 1.0}, "target"),
    ],
)
def test_wrong_input_is_named(digits, change, says):
    x, y = digits
    given = {
        "support": (x[:100], y[:100]),
        "query": (x[100:150], y[100:150]),
        "heads": ["knn"],
        "k": 9,
    }
    given |= change
    with pytest.raises(InputError, match=says):
        compare_heads(given.pop("support"), given.pop("query"), **given)


def test_what_is_fitted_to_the_same_rows_is_fitted_once_for_table_and_kept_head(monkeypatch):
    rng, asked = np.random.default_rng(0), []
    y = np.arange(600) % 3
    z = (np.eye(3, 5)[y] + 0.4 * rng.normal(size=(600, 5))).astype(np.float32)

    def counted(recipe, evidence, *sizes):
        asked.append((recipe, evidence))
        return fit_recipe(recipe, evidence, *sizes)

    for place in ("audits.heads", "confidence.ned.classifier"):
        monkeypatch.setattr(f"vicinal.{place}.fit_recipe", counted)
    report = audit(support=(z[:300], y[:300]), query=(z[300:], y[300:]))
    assert report.data.split.startswith("fitted on 300 support rows")
    assert report.recommendation.kept != "ned"
    everything = [evidence for recipe, evidence in asked if recipe.sharpness is None]
    assert len({id(evidence) for evidence in everything}) == len(everything)
    assert [len(rows) for rows in everything] == [300, 150, 150]  # the support, and who may object
