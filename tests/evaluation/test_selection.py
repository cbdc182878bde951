import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

import reference
from vicinal.checks import InputError
from vicinal.evaluation import (
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    class_table,
    risk_coverage,
    wilson_interval,
)


def predictions(seed, ties):
    rng = np.random.default_rng(seed)
    c = rng.random(120)
    c = np.round(c, 1) if ties else c
    return c, rng.random(120) < c


@pytest.mark.parametrize("ties", [False, True])
def test_aurc_is_the_mean_expected_risk_over_coverages(ties):
    c, correct = predictions(0, ties)
    want = reference.area_under_risk_coverage(c.tolist(), correct.tolist())
    assert area_under_risk_coverage(c, correct) == pytest.approx(want, rel=1e-12)


def test_aurc_with_ties_is_the_mean_over_orders_that_break_them():
    c, correct = predictions(1, ties=True)
    rng = np.random.default_rng(0)
    broken = [area_under_risk_coverage(c + 1e-6 * rng.random(120), correct) for _ in range(400)]
    error = np.std(broken) / 20
    assert abs(area_under_risk_coverage(c, correct) - np.mean(broken)) < 4 * error


@pytest.mark.parametrize("ties", [False, True])
def test_augrc_follows_from_accuracy_and_the_auroc_of_the_confidence(ties):
    # Traub et al. 2024, their closed form, with scikit-learn's AUROC of right against wrong
    c, correct = predictions(2, ties)
    acc = correct.mean()
    want = acc * (1 - acc) * (1 - roc_auc_score(correct, c)) + (1 - acc) ** 2 / 2
    assert area_under_generalized_risk_coverage(c, correct) == pytest.approx(want, rel=1e-12)


def test_the_curve_ends_at_all_rows_and_a_perfect_ranking_has_no_excess():
    c, correct = predictions(3, ties=True)
    curve = risk_coverage(c, correct)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - correct.mean())
    assert curve.at_coverage(1.0) == pytest.approx(1 - correct.mean())
    assert len(curve.threshold) == len(set(c))
    for t, rows, errors in zip(curve.threshold, curve.accepted, curve.errors, strict=True):
        assert ((c >= t).sum(), (~correct[c >= t]).sum()) == (rows, errors)
    assert curve.excess_aurc > 0
    assert risk_coverage(correct.astype(float), correct).excess_aurc == pytest.approx(0, abs=1e-15)


def test_one_tie_group_all_right_and_all_wrong_have_plain_areas():
    assert area_under_risk_coverage([0.5] * 4, [True, False] * 2) == 0.5
    assert area_under_risk_coverage([0.1, 0.9], [True, True]) == 0
    assert area_under_risk_coverage([0.1, 0.9], [False, False]) == 1
    assert risk_coverage([0.1, 0.9], [False, False]).excess_aurc == 0


def test_the_class_table_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    y, guess = rng.integers(0, 4, 100), rng.integers(0, 3, 100)
    c = rng.random(100)
    table = class_table(y, guess, c, threshold=0.5)
    precision, recall, _, support = precision_recall_fscore_support(y, guess, zero_division=np.nan)
    np.testing.assert_allclose(table.precision, precision)
    np.testing.assert_allclose(table.recall, recall)
    assert table.rows.tolist() == support.tolist()
    assert np.isnan(table.precision[3])  # never predicted: no rate, not a zero
    assert table.confidence[1] == pytest.approx(c[guess == 1].mean())
    kept = (guess == 1) & (c >= 0.5)
    assert table.accepted_precision[1] == pytest.approx((y[kept] == 1).mean())
    assert len(str(table).splitlines()) == 5


def test_the_wilson_interval_is_where_the_score_test_does_not_reject():
    low, high = wilson_interval(np.array([7]), np.array([20]), 0.95)
    for edge in (low[0], high[0]):
        assert (7 / 20 - edge) ** 2 == pytest.approx(1.959964**2 * edge * (1 - edge) / 20, rel=1e-5)
    assert wilson_interval(np.array([0]), np.array([5]))[0][0] == 0
    assert wilson_interval(np.array([5]), np.array([5]))[1][0] == 1


@pytest.mark.parametrize(
    ("c", "correct", "says"),
    [([], [], "empty"), ([np.nan, 1], [1, 1], "rows 0"), ([0.5], [1, 1], "same number of rows")],
)
def test_wrong_input_is_named(c, correct, says):
    with pytest.raises(InputError, match=says):
        risk_coverage(np.array(c), np.array(correct))


def test_labels_of_another_length_are_refused():
    with pytest.raises(InputError, match="predicted"):
        class_table([0, 1], [0], [0.5, 0.5])
