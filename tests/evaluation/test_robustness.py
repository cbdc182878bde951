"""Mean corruption error: a ratio of sums against a given model, and words where there is none."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from vicinal.checks import InputError
from vicinal.evaluation import corruption_errors, mean_corruption_error

rates = st.lists(st.floats(0.01, 1), min_size=5, max_size=5)
OURS = {"fog": [0.2, 0.3, 0.4], "snow": [0.5, 0.6, 0.9], "clean": 0.1}
THEIRS = {"fog": [0.3, 0.5, 0.6], "snow": [0.4, 0.6, 0.8], "clean": 0.2}


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(rates, rates), min_size=1))
def test_it_is_the_plain_loop_over_corruptions_and_severities(table):
    ours = {name: pair[0] for name, pair in table.items()}
    theirs = {name: pair[1] for name, pair in table.items()}
    expected = reference.mean_corruption_error(ours, theirs)
    assert mean_corruption_error(ours, theirs) == pytest.approx(expected)


def test_the_relative_form_takes_each_models_clean_error_off_both_sums():
    ours = {k: v for k, v in OURS.items() if k != "clean"}
    theirs = {k: v for k, v in THEIRS.items() if k != "clean"}
    expected = reference.mean_corruption_error(ours, theirs, 0.1, 0.2)
    assert mean_corruption_error(OURS, THEIRS, relative=True) == pytest.approx(expected)
    apart = mean_corruption_error(ours, theirs, relative=True, clean=0.1, baseline_clean=0.2)
    assert apart == pytest.approx(expected)
    assert mean_corruption_error(OURS, THEIRS) != pytest.approx(expected)


def test_a_model_against_itself_is_one_in_both_forms():
    assert mean_corruption_error(THEIRS, THEIRS) == 1
    assert mean_corruption_error(THEIRS, THEIRS, relative=True) == pytest.approx(1)


def test_it_is_a_ratio_of_sums_not_a_mean_of_ratios():
    ours, theirs = {"fog": [0.1, 0.1]}, {"fog": [0.1, 0.9]}
    assert mean_corruption_error(ours, theirs) == pytest.approx(0.2)


def test_matrices_and_severity_tables_say_the_same_as_sequences():
    fog, snow = OURS["fog"], OURS["snow"]
    matrix, baseline = np.array([fog, snow]), torch.tensor([THEIRS["fog"], THEIRS["snow"]])
    expected = mean_corruption_error(OURS, THEIRS)
    assert mean_corruption_error(matrix, baseline) == pytest.approx(expected)
    nested = {"fog": dict(enumerate(fog, 1)), "snow": dict(enumerate(snow, 1))}
    assert mean_corruption_error(nested, THEIRS) == pytest.approx(expected)


def test_each_corruption_has_its_own_ratio():
    ratios = corruption_errors(OURS, THEIRS)
    assert ratios == pytest.approx({"fog": 0.9 / 1.4, "snow": 2.0 / 1.8})


def test_a_baseline_without_errors_is_said_in_words():
    with pytest.raises(InputError, match="makes no error under 'fog'.*another baseline"):
        mean_corruption_error({"fog": [0.1]}, {"fog": [0.0]})


@pytest.mark.parametrize("row", [[0.2, 0.2], [0.1, 0.2]])
def test_a_baseline_that_loses_nothing_is_said_in_words_in_the_relative_form(row):
    with pytest.raises(InputError, match=r"loses nothing under 'fog'.*without relative=True"):
        mean_corruption_error(
            {"fog": [0.3, 0.4], "clean": 0.1}, {"fog": row, "clean": 0.2}, relative=True
        )


@pytest.mark.parametrize(
    ("errors", "baseline", "relative", "words"),
    [
        ({"fog": [0.1]}, {"snow": [0.1]}, False, "the same corruptions; only one of them has fog"),
        ({"fog": [0.1]}, {"fog": [0.1, 0.2]}, False, "has 1 severities of 'fog'"),
        ({"fog": [0.1]}, {"fog": [0.2]}, True, r"`errors` has none. Add it as errors\['clean'\]"),
        ({"fog": [-0.1]}, {"fog": [0.2]}, False, "error rates ≥ 0"),
        ({"fog": [float("nan")]}, {"fog": [0.2]}, False, "error rates ≥ 0"),
        ({"clean": 0.1}, {"clean": 0.2}, False, "holds no corruption"),
        ([0.1, 0.2], [0.1, 0.2], False, "a matrix"),
    ],
)
def test_wrong_tables_are_answered_in_words(errors, baseline, relative, words):
    with pytest.raises(InputError, match=words):
        mean_corruption_error(errors, baseline, relative)
