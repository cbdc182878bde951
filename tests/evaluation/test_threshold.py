"""The promise of ``threshold_for_accuracy`` over many draws, friendly and hostile."""

import math

import numpy as np
import pytest
from scipy import stats

import reference
from vicinal.checks import InputError
from vicinal.evaluation import (
    clopper_pearson_interval,
    reachable_target,
    threshold_for_accuracy,
)
from vicinal.evaluation.threshold import TARGETS

TARGET, DELTA, DRAWS = 0.9, 0.1, 400
GRID = np.linspace(1, 0, 20_001)

# Chance that a row of confidence c is right. c is uniform on [0, 1].
SHAPES = {
    "just too low everywhere": lambda c: np.full_like(c, 0.899),
    "calibrated": lambda c: c,
    "overconfident": lambda c: c**1.2,
    "underconfident": lambda c: c**0.6,
    "mostly right": lambda c: c**0.2,
    "bad at the very top": lambda c: np.where(c > 0.95, 0.895, np.where(c > 0.85, 0.93, 0.86)),
    "up and down": lambda c: np.select(
        [c > 0.875, c > 0.8, c > 0.7, c > 0.5], [0.895, 0.93, 0.87, 0.93], 0.85
    ),
    "few errors far up": lambda c: np.where(c > 0.995, 0, np.where(c > 0.6, 0.91, 0.85)),
}


def true_accuracy(right, threshold):
    """Accuracy of rows with confidence >= threshold in the population."""
    mass = right(GRID)
    accepted = np.cumsum(mass) / np.arange(1, len(GRID) + 1)
    return accepted[np.searchsorted(-GRID, -threshold, side="right") - 1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("votes", [None, 20])
def test_the_promised_accuracy_is_broken_in_at_most_delta_of_draws(shape, votes):
    right = SHAPES[shape]
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(DRAWS):
        c = rng.random(300)
        correct = rng.random(300) < right(c)
        # with votes, confidences come in steps and rows in large tie groups
        shown = c if votes is None else np.floor(c * votes) / votes
        found = threshold_for_accuracy(shown, correct, TARGET, DELTA)
        broken += found.reachable and true_accuracy(right, found.threshold) < TARGET
    # at most DELTA; the limit is where a true rate of DELTA would land once in a thousand
    assert broken <= stats.binom.ppf(0.999, DRAWS, DELTA)


def test_a_flat_accuracy_just_below_the_target_is_let_through_in_at_most_delta_of_draws():
    # the worst there is: every threshold breaks the promise, and by next to nothing
    rng = np.random.default_rng(1)
    draws = 2000
    broken = sum(
        threshold_for_accuracy(rng.random(300), rng.random(300) < 0.899, TARGET, 0.05).reachable
        for _ in range(draws)
    )
    assert broken <= stats.binom.ppf(0.999, draws, 0.05)


def beta_draw(rng, rows):
    """Calibrated confidences, few of them high: 0.9 is hard to promise."""
    c = 0.2 + 0.8 * rng.beta(2.2, 1.0, rows)
    return c, rng.random(rows) < c


@pytest.mark.parametrize("rows", [300, 800])
def test_confidences_that_are_true_accept_more_rows_than_their_order_alone(rows):
    rng = np.random.default_rng(2)
    gain = []
    for _ in range(150):
        c, correct = beta_draw(rng, rows)
        # a score outside [0, 1] only ranks: the walk starts at n, n/2, n/4, … rows
        ranked = threshold_for_accuracy(c + 1, correct, 0.9)
        gain.append(threshold_for_accuracy(c, correct, 0.9).coverage - ranked.coverage)
    assert np.mean(gain) > 3.1 * np.std(gain) / math.sqrt(len(gain))


@pytest.mark.parametrize("votes", [None, 8])
def test_a_score_that_only_ranks_is_walked_as_the_plain_loop_does(votes):
    rng = np.random.default_rng(3)
    for _ in range(12):
        c, correct = beta_draw(rng, 150)
        c = 1 + (c if votes is None else np.floor(c * votes))
        correct |= rng.random(150) < 0.6
        want = reference.walked_threshold(c, correct, 0.85, reference.halves(150, 0.85, 0.1))
        assert threshold_for_accuracy(c, correct, 0.85, 0.1).threshold == want


def foreseen_start(c, target, level):
    """The count whose foreseen number right is the most deviations above the number that passes."""
    best, start = -math.inf, 0
    for rows in range(1, len(c) + 1):
        top = sorted(c, reverse=True)[:rows]
        passing = [s for s in range(rows + 1) if reference.right_at_least(s, rows, target) <= level]
        z = (sum(top) - min(passing, default=math.inf)) / math.sqrt(sum(v * (1 - v) for v in top))
        if z > best:
            best, start = z, rows
    return start


def test_most_of_delta_goes_to_the_start_that_the_confidences_foresee():
    rng = np.random.default_rng(4)
    for _ in range(8):
        c, correct = beta_draw(rng, 90)
        correct |= rng.random(90) < 0.6
        shares = reference.halves(90, 0.8, 0.03)
        start = foreseen_start(c, 0.8, 0.07)
        shares[start] = shares.get(start, 0) + 0.07
        want = reference.walked_threshold(c, correct, 0.8, shares)
        assert threshold_for_accuracy(c, correct, 0.8, 0.1).threshold == want


def test_the_threshold_does_not_depend_on_the_order_of_the_rows():
    rng = np.random.default_rng(5)
    c, correct = beta_draw(rng, 500)
    c = c.round(2).astype(np.float32)
    order = rng.permutation(500)
    found = threshold_for_accuracy(c, correct, 0.85)
    assert found.reachable
    assert threshold_for_accuracy(c[order], correct[order], 0.85) == found


def test_picking_the_best_threshold_without_an_order_breaks_the_promise():
    # what the walk guards against: every threshold tested at delta, the lowest that passes taken
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(DRAWS):
        correct = rng.random(300) < 0.899
        rows = np.arange(1, 301)
        lower = stats.beta.ppf(DELTA, correct.cumsum(), rows - correct.cumsum() + 1)
        broken += bool((lower >= TARGET).any())
    assert broken > 2 * DELTA * DRAWS


def test_an_easy_promise_accepts_nearly_everything_and_its_record_adds_up():
    rng = np.random.default_rng(0)
    c = rng.random(2000)
    correct = rng.random(2000) < 0.97
    found = threshold_for_accuracy(c, correct, 0.9)
    assert found.reachable
    assert found.coverage > 0.99
    taken = c >= found.threshold
    assert (taken.sum(), correct[taken].mean()) == (found.accepted, found.accuracy)
    assert found.target <= found.lower_bound <= found.accuracy
    assert f"{found.accepted} of 2000" in str(found)


def test_more_rows_bring_the_coverage_near_the_best_possible():
    rng = np.random.default_rng(0)
    c = rng.random(40_000)
    found = threshold_for_accuracy(c, rng.random(40_000) < c, 0.9)  # q(t) = (1 + t) / 2: t = 0.8
    assert 0.8 <= found.threshold < 0.83


@pytest.mark.parametrize(("correct", "rows"), [(False, 500), (True, 20)])
def test_what_cannot_be_promised_is_said(correct, rows):
    found = threshold_for_accuracy(np.linspace(0, 1, rows), np.full(rows, correct), 0.95)
    assert not found.reachable
    assert found.threshold == math.inf
    assert (found.accepted, found.coverage, found.lower_bound) == (0, 0.0, None)
    assert "No threshold promises" in str(found)


def test_errors_only_at_the_very_top_do_not_end_the_search():
    correct = np.ones(1000, bool)
    correct[-3:] = False  # the three most confident rows
    found = threshold_for_accuracy(np.linspace(0, 1, 1000), correct, 0.95)
    assert found.coverage == 1


def test_all_confidences_equal_is_one_plain_binomial_test():
    correct = np.arange(200) >= 4
    found = threshold_for_accuracy(np.full(200, 0.7), correct, 0.9)
    assert (found.threshold, found.coverage, found.accuracy) == (0.7, 1.0, 0.98)


def test_the_exact_interval_inverts_scipys_binomial_test():
    low, high = clopper_pearson_interval(np.array([3, 0, 8]), np.array([8, 8, 8]), 0.9)
    for s, a, b in zip([3, 0, 8], low, high, strict=True):
        want = stats.binomtest(s, 8).proportion_ci(0.9, method="exact")
        assert (a, b) == (pytest.approx(want.low), pytest.approx(want.high))


@pytest.mark.parametrize(("target", "delta"), [(0, 0.1), (1, 0.1), (0.9, 0), (0.9, 1.5)])
def test_fractions_lie_between_zero_and_one(target, delta):
    with pytest.raises(InputError, match="between 0 and 1"):
        threshold_for_accuracy([0.5], [True], target, delta)


def _world(rng, n, low, power=1.0, shift=0.0):
    """Confidences from ``low`` to 1, and outcomes that come true as often, less ``shift``."""
    c = 1 - (1 - low) * rng.random(n) ** power
    return c, rng.random(n) < np.clip(c - shift, 0, 1)


@pytest.mark.parametrize(
    ("low", "power", "target"), [(0.5, 6.0, 0.99), (0.93, 1.0, 0.97), (0.3, 1.0, 0.65)]
)
def test_the_target_is_the_highest_that_half_of_the_rows_meet_else_the_accuracy(low, power, target):
    c, right = _world(np.random.default_rng(0), 2000, low, power)
    chosen = reachable_target(c, right)
    assert chosen.target == (pytest.approx(right.mean(), abs=0.01) if target < 0.9 else target)
    assert threshold_for_accuracy(c, right, chosen.target).coverage >= 0.5
    for higher in (t for t in TARGETS if t > chosen.target):
        assert threshold_for_accuracy(c, right, higher).coverage < 0.5


def test_a_target_chosen_from_the_data_keeps_the_promise_of_its_threshold():
    rng, broken = np.random.default_rng(1), 0
    for _ in range(150):
        c, right = _world(rng, 300, 0.8)
        chosen = reachable_target(c, right)
        at = threshold_for_accuracy(c, right, chosen.target).threshold
        # accuracy above a threshold t of calibrated, evenly spread confidences is (1 + t) / 2
        broken += math.isfinite(at) and (1 + max(at, 0.8)) / 2 < chosen.target
    assert broken <= 14  # 7.5 expected at most; 15 or more by chance in 1 of 100


def test_confidences_that_do_not_come_true_are_held_to_less_than_the_accuracy():
    c, right = _world(np.random.default_rng(0), 300, 0.97, shift=0.2)
    chosen = reachable_target(c, right)
    assert 0.7 <= chosen.target < math.floor(100 * right.mean()) / 100
    assert "confidences are too high" in chosen.reason
    assert threshold_for_accuracy(c, right, chosen.target).coverage >= 0.5


def test_without_outcomes_the_confidences_choose_the_target():
    c = np.linspace(0.94, 1, 1000)
    assert reachable_target(c).target == 0.97
    assert "no label could test it" in reachable_target(c).reason


def test_few_rows_promise_no_more_than_they_can_show():
    chosen = reachable_target(np.full(12, 0.99), np.ones(12, bool))
    assert chosen.target == 0.90
    assert "cannot be shown to meet" in chosen.reason
