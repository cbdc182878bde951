"""A verdict is computed from the seeds' numbers, on constructed cases."""

import math

import pytest
from experiments import board
from experiments.record import Claim, difference, holm, judged, mean_and_error, plain, weakest
from scipy import stats


def verdict(values, **more):
    return judged([Claim("", values, **more)])[0].verdict


def test_a_clear_difference_holds_a_noisy_one_leans_and_a_negative_one_differs():
    assert verdict([1.0, 1.1, 0.9]) == "holds"
    assert verdict([1.0, -0.9, 0.3]) == "leans"
    assert verdict([-1.0, 0.9, -0.3]) == "differs"
    assert verdict([0.0, 0.0, 0.0]) == "differs"


def test_a_reverse_that_is_significant_differs_clearly():
    assert judged([Claim("", [-1.0, -1.1, -0.9])])[0].clearly
    assert not judged([Claim("", [-1.0, 0.9, -0.3])])[0].clearly


def test_the_p_value_is_scipys_one_sided_paired_t_test():
    a, b = [3.0, 2.0, 4.0, 3.5], [1.0, 2.2, 2.5, 3.0]
    told = judged([Claim("", [x - y for x, y in zip(a, b, strict=True)])])[0]
    assert told.p == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue, rel=1e-4)


def test_one_seed_never_holds():
    assert verdict([5.0]) == "leans"
    assert verdict([-5.0]) == "differs"


def test_on_par_needs_both_sides_inside_the_margin():
    assert verdict([0.1, -0.1, 0.05], within=1.0) == "holds"
    assert verdict([0.9, -0.9, 0.5], within=1.0) == "leans"
    assert verdict([1.4, 1.5, 1.6], within=1.0) == "differs"
    assert verdict([-1.4, -1.5, -1.6], within=1.0) == "differs"
    assert judged([Claim("", [-1.4, -1.5, -1.6], within=1.0)])[0].clearly


def test_a_loss_of_less_than_the_margin_is_a_need_below_zero():
    assert verdict([-0.2, -0.1, -0.15], needs=-1.0) == "holds"
    assert verdict([-1.2, -1.1, -1.15], needs=-1.0) == "differs"


def test_a_shape_holds_where_theirs_lies_in_our_interval():
    assert verdict([-1.1, -0.9, -1.05], equals=-1.0) == "holds"
    assert verdict([-0.5, -0.55, -0.45], equals=-1.0) == "differs"


def test_holm_makes_the_same_claim_harder_in_a_longer_file():
    values = [1.0, 0.5, 0.8]
    assert verdict(values) == "holds"
    assert judged([Claim("", values)] * 5)[0].verdict == "leans"
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_claims_of_our_own_do_not_make_the_papers_harder():
    values = [1.0, 0.5, 0.8]
    ours = [Claim("", values, beyond=True)] * 5
    assert judged([Claim("", values), *ours])[0].verdict == "holds"


def test_equal_differences_have_no_error_even_after_rounding():
    assert mean_and_error([0.1 + 0.2, 0.3, 0.3])[1] == 0


def test_a_figure_is_as_good_as_its_weakest_claim():
    assert weakest(["holds", "leans"]) == "leans"
    assert weakest(["differs", "holds"]) == "differs"
    assert weakest([]) == "shown"


def test_differences_reach_into_nested_numbers():
    assert difference([{"a": {"b": 2.0}, "c": 0.5}], "a.b", "c") == [1.5]


def test_a_record_refuses_nan_and_keeps_five_digits():
    assert plain({1: (math.pi,)}) == {"1": [3.1416]}
    with pytest.raises(ValueError, match="nan"):
        plain([math.nan])


def test_a_file_name_says_which_figures_it_holds():
    assert board.items_of("frosst2019snnl/fig18_19_dknn") == ["fig18", "fig19"]
    assert board.items_of("hugger2024infonce/fig03_batch") == ["fig3a", "fig3b"]
    assert board.items_of("hugger2024infonce/table1_2_fig04_06_x") == [
        "table1", "table2", "fig4", "fig6",
    ]  # fmt: skip
    assert board.items_of("frosst2019snnl/fig01_02_13_toy") == ["fig1", "fig2", "fig13"]
