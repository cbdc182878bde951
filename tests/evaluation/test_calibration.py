import itertools

import numpy as np
import pytest
import torch
from netcal.metrics import ECE as NetcalECE
from torchmetrics.functional.classification import multiclass_calibration_error

import reference
from vicinal.checks import InputError
from vicinal.evaluation import (
    bootstrap_interval,
    expected_calibration_error,
    maximum_calibration_error,
    noise_floor,
    reliability,
    wilson_interval,
)
from vicinal.evaluation.poisson_binomial import distributions, mean_absolute_deviations


def votes(seed, n=300, k=10):
    """Confidences of a kNN head: k + 1 values, many ties, many exactly 1."""
    rng = np.random.default_rng(seed)
    c = rng.binomial(k, rng.beta(5, 1, n)) / k
    return c, rng.random(n) < 0.2 + 0.7 * c


def smooth(seed, n=300):
    rng = np.random.default_rng(seed)
    c = rng.random(n)
    return c, rng.random(n) < c**2


@pytest.mark.parametrize("make", [votes, smooth])
@pytest.mark.parametrize("scheme", ["width", "mass"])
@pytest.mark.parametrize("bins", [1, 7, 10, 15])
def test_ece_is_the_mean_gap_over_right_closed_bins(make, scheme, bins):
    c, correct = make(bins)
    want = reference.calibration_error(c.tolist(), correct.tolist(), bins, scheme)
    assert expected_calibration_error(c, correct, bins=bins, scheme=scheme) == pytest.approx(want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [3, 5, 10, 15, 20])
def test_a_vote_of_j_in_k_falls_into_bin_j_whatever_the_float_kind(dtype, k):
    # c * M and np.linspace both misplace some of these
    c = (np.arange(1, k + 1) / k).astype(dtype)
    assert reliability(c, np.ones(k, bool), bins=k).count.tolist() == [1] * k


def test_confidence_one_belongs_to_the_last_bin_and_zero_to_the_first():
    table = reliability([0.0, 1.0, 1.0], [False, True, True], bins=15)
    assert table.count[0] == 1
    assert table.count[-1] == 2
    assert table.ece == 0


def test_torchmetrics_and_netcal_agree_where_no_confidence_sits_on_an_edge():
    # On edges they are left-closed, and torchmetrics gives confidence 1 a bin of its own.
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4) * 0.5, 500)
    y = np.array([rng.choice(4, p=row) for row in p])
    ours = expected_calibration_error(p, y, bins=15)
    theirs = multiclass_calibration_error(
        torch.tensor(p), torch.tensor(y), num_classes=4, n_bins=15, norm="l1"
    )
    assert ours == pytest.approx(float(theirs), abs=1e-6)
    assert ours == pytest.approx(NetcalECE(15).measure(p, y), abs=1e-9)


def test_equal_mass_bins_never_split_equal_confidences_and_hold_equal_counts_without_ties():
    c, correct = votes(5)
    table = reliability(c, correct, bins=8, scheme="mass")
    held = [set(c[(c > lo) & (c <= hi)]) for lo, hi in zip(table.lower, table.upper, strict=True)]
    assert sum(map(len, held)) == len(set(c) - {0.0})
    c, correct = smooth(5, n=160)
    assert reliability(c, correct, bins=8, scheme="mass").count.tolist() == [20] * 8


def test_classwise_is_the_mean_over_columns_and_positive_is_column_one():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 200)
    y = rng.integers(0, 3, 200)
    columns = [
        reference.calibration_error(p[:, j].tolist(), (y == j).tolist(), 10) for j in range(3)
    ]
    got = expected_calibration_error(p, y, bins=10, mode="classwise")
    assert got == pytest.approx(sum(columns) / 3)
    two = p[:, :2] / p[:, :2].sum(1, keepdims=True)
    y = rng.integers(0, 2, 200)
    got = expected_calibration_error(two, y, bins=10, mode="positive")
    want = reference.calibration_error(two[:, 1].tolist(), (y == 1).tolist(), 10)
    assert got == pytest.approx(want)
    assert got == expected_calibration_error(two[:, 1], y, bins=10, mode="positive")


def test_the_table_adds_up_and_its_intervals_hold_the_accuracy():
    c, correct = smooth(1)
    table = reliability(c, correct, bins=10)
    full = table.count > 0
    assert table.count.sum() == len(c)
    assert table.correct.sum() == correct.sum()
    assert np.nansum(table.share * np.abs(table.gap)) == pytest.approx(table.ece)
    assert ((table.low <= table.accuracy) & (table.accuracy <= table.high))[full].all()
    assert "right-closed" in str(table)
    exact = reliability(c, correct, bins=10, interval="clopper-pearson")
    assert (exact.low <= table.accuracy).all()
    assert (exact.high >= table.accuracy).all()


def test_an_empty_bin_is_nan_not_zero():
    table = reliability([0.9], [True], bins=10)
    assert np.isnan(table.accuracy[0])
    assert table.count.tolist() == [0] * 8 + [1, 0]


def test_the_worst_bin_needs_enough_rows_and_says_which_it_is():
    c = np.array([0.05] + [0.55] * 20 + [0.95] * 20)
    correct = np.array([True] + [True] * 15 + [False] * 5 + [True] * 19 + [False])
    assert maximum_calibration_error(c, correct, bins=10, min_count=1).bin == 0
    worst = maximum_calibration_error(c, correct, bins=10, min_count=10)
    assert (worst.bin, worst.rows) == (5, 20)
    assert worst.gap == pytest.approx(0.2)
    assert maximum_calibration_error(c, correct, bins=10, min_count=50).gap is None


@pytest.mark.parametrize("n", [1, 2, 7, 11])
def test_the_spread_of_unequal_coins_equals_the_sum_over_all_outcomes(n):
    p = np.random.default_rng(n).random(n)
    p[0] = 1.0
    found = mean_absolute_deviations([p, p[:0], np.tile(p, 30)])  # groups have no say in another
    assert found[0] == pytest.approx(reference.expected_absolute_deviation(p))
    assert found[1:] == [0.0, mean_absolute_deviations([np.tile(p, 30)])[0]]


def test_the_law_of_many_coins_has_their_mean_and_variance():
    # crosses the block size, the cutting of tails
    p = np.random.default_rng(0).random(30_000) ** 3
    ((first, mass),) = distributions([p])
    at = first + np.arange(len(mass)) - p.sum()
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    assert (mass * at).sum() == pytest.approx(0, abs=1e-8)
    assert (mass * at**2).sum() == pytest.approx((p * (1 - p)).sum(), rel=1e-9)
    assert len(mass) < 20 * np.sqrt((p * (1 - p)).sum())


@pytest.mark.parametrize(
    ("make", "scheme"), list(itertools.product([votes, smooth], ["width", "mass"]))
)
def test_the_noise_floor_is_the_mean_ece_of_a_calibrated_predictor(make, scheme):
    c, _ = make(2, n=200)
    rng = np.random.default_rng(0)
    draws = [
        expected_calibration_error(c, rng.random(len(c)) < c, scheme=scheme) for _ in range(600)
    ]
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(noise_floor(c, scheme=scheme) - np.mean(draws)) < 4 * error


def test_the_noise_floor_vanishes_only_for_certainty_and_falls_like_one_over_root_n():
    assert noise_floor([1.0, 0.0, 1.0]) == 0
    c = np.full(400, 0.7)
    assert noise_floor(c) / noise_floor(np.tile(c, 16)) == pytest.approx(4, rel=0.01)


def test_the_noise_floor_of_classes_is_the_mean_of_their_columns():
    p = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    got = noise_floor(p, mode="classwise")
    assert got == pytest.approx(np.mean([noise_floor(p[:, j]) for j in range(3)]))
    assert noise_floor(p) == noise_floor(p.max(1))


def test_the_bootstrap_interval_holds_the_ece_of_the_population():
    rng = np.random.default_rng(0)
    levels = np.array([0.3, 0.5, 0.7, 0.9])
    truth = np.mean(np.abs(levels**2 - levels))  # P(correct) = c^2, each level in its own bin
    inside = 0
    for _ in range(100):
        c = rng.choice(levels, 800)
        low, high = bootstrap_interval(c, rng.random(800) < c**2, resamples=100)
        inside += low <= truth <= high
    assert inside >= 86  # 95 expected; fewer than 86 has chance below 0.001 even at 93 %


def test_degenerate_predictions_have_plain_answers():
    assert expected_calibration_error([1.0] * 5, [True] * 5) == 0
    assert expected_calibration_error([1.0] * 5, [False] * 5) == 1
    assert expected_calibration_error([0.5] * 4, [True, False] * 2, scheme="mass") == 0
    assert expected_calibration_error(torch.tensor([1.0000001, 1.0]), [True, True]) == 0
    one_class = np.ones((3, 1))
    assert expected_calibration_error(one_class, [0, 0, 0], mode="classwise") == 0


@pytest.mark.parametrize(
    ("confidence", "correct", "says"),
    [
        ([], [], "empty"),
        ([0.5, float("nan")], [True, True], "rows 1"),
        ([0.5, 1.5], [True, True], "row 1 is 1.5"),
        ([0.5, -0.1], [True, True], "row 1"),
        ([0.5], [True, False], "same number of rows"),
        ([0.5, 0.5], [0.5, 1], "row 0 is 0.5"),
        ([[0.5, 0.6]], [0], "sum to 1"),
        ([[0.5, 0.5]], [2], "row 0 is 2"),
        ([[0.5, 0.5]], [0.0], "integer"),
    ],
)
def test_wrong_input_is_named(confidence, correct, says):
    with pytest.raises(InputError, match=says):
        expected_calibration_error(np.array(confidence), np.array(correct))


@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bins_are_whole_numbers(bins):
    with pytest.raises(InputError, match="bins"):
        expected_calibration_error([0.5], [True], bins=bins)


def test_positive_mode_refuses_three_classes():
    with pytest.raises(InputError, match="two classes"):
        expected_calibration_error([[0.2, 0.3, 0.5]], [1], mode="positive")


def test_a_bootstrap_of_nothing_is_refused_and_no_trials_leave_every_rate_open():
    with pytest.raises(InputError, match="resamples"):
        bootstrap_interval([0.5, 0.7], [True, False], resamples=0)
    with pytest.raises(InputError, match="empty"):
        bootstrap_interval([], [])
    assert wilson_interval(0, 0) == (0.0, 1.0)
