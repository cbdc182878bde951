"""Labels that are wrong on purpose, and labels that only look wrong because classes overlap."""

import math

import pytest
import torch

import reference
from vicinal.checks import InputError
from vicinal.confidence.label_noise import (
    classes_alike,
    confident_joint,
    label_halves,
    label_noise,
    noise_matrix,
)


def drawn(rows, classes, sharp, seed=0):
    """Calibrated probabilities, and true labels drawn from them."""
    rng = torch.Generator().manual_seed(seed)
    home = torch.arange(rows) % classes
    logits = torch.randn(rows, classes, generator=rng, dtype=torch.float64)
    logits[torch.arange(rows), home] += sharp
    p = logits.softmax(1)
    return p, torch.multinomial(p, 1, generator=rng)[:, 0]


def planted(true, classes, rate, kind, seed=1):
    """Labels of which a share is wrong: any other class, or always the next."""
    rng = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(true), generator=rng) < rate
    step = torch.randint(1, classes, (len(true),), generator=rng) if kind == "even" else 1
    return torch.where(wrong, (true + step) % classes, true), wrong


def seen_through(p, classes, rate, kind):
    """What an honest head, itself fitted on the wrong labels, says."""
    off = torch.full((classes, classes), rate / (classes - 1), dtype=p.dtype)
    if kind == "next":
        off = rate * torch.eye(classes, dtype=p.dtype).roll(1, 0)
    matrix = off.fill_diagonal_(1 - rate)
    return p @ matrix.T


def average_precision(scores, wrong):
    hits = wrong[torch.argsort(scores, descending=True, stable=True)].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / hits.sum())


def f1(flagged, wrong):
    return 2 * int(wrong[flagged].sum()) / (len(flagged) + int(wrong.sum()))


def own(p, given):
    return p.gather(1, given[:, None])[:, 0]


def test_scores_are_those_of_plain_loops(rng):
    p, true = drawn(90, 4, 2.0)
    given, _ = planted(true, 4, 0.2, "next")
    p[5], p[6] = p[7], torch.tensor([0.0, 1.0, 0.0, 0.0])  # a tie, and zeros
    found = label_noise(p.log(), given)
    want = reference.label_scores(p.tolist(), given.tolist())
    torch.testing.assert_close(found.scores, torch.tensor(want, dtype=torch.float64))


def test_the_confident_joint_and_the_halves_are_those_of_plain_loops():
    p, true = drawn(80, 4, 1.5)
    given, _ = planted(true, 4, 0.2, "even")
    p = (p * 8).round() / 8 + 0.01  # many ties
    p = p / p.sum(1, keepdim=True)
    joint = reference.confident_joint(p.tolist(), given.tolist())
    assert confident_joint(p.log(), given).tolist() == joint
    logs = p.log()
    lower, upper, named = reference.label_halves(logs.tolist(), given.tolist())
    found = label_halves(logs, given)
    assert found.named.tolist() == named
    torch.testing.assert_close(found.lower, torch.tensor(lower, dtype=torch.float64))
    torch.testing.assert_close(found.upper, torch.tensor(upper, dtype=torch.float64))


@pytest.mark.parametrize(
    ("classes", "sharp", "kind"),
    [(4, 4.0, "next"), (4, 3.0, "even"), (12, 1.0, "even"), (2, 3.0, "even")],
)
def test_how_many_are_wrong_is_what_plain_loops_say(classes, sharp, kind):
    p, true = drawn(240, classes, sharp)
    given, _ = planted(true, classes, 0.2, kind)
    p[200:] = p[:40]  # ties
    found = label_noise(p.log(), given).wrong
    want = reference.labels_wrong(p.tolist(), given.tolist())
    assert want[0] > 10
    assert (found.total, found.low, found.high) == pytest.approx(want)
    assert float(found.pairs[:, :, 0].sum()) == pytest.approx(found.total)


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_labels_that_go_astray_in_one_direction_are_ranked_better_than_by_p_given(rate):
    p, true = drawn(2000, 8, 8.0)
    given, wrong = planted(true, 8, rate, "next")
    p = seen_through(p, 8, rate, "next")
    found = label_noise(p.log(), given)
    assert average_precision(found.scores, wrong) > average_precision(-own(p, given), wrong) + 0.01
    right = found.suggested[found.flagged] == true[found.flagged]
    assert right[wrong[found.flagged]].double().mean() > 0.95


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_labels_that_go_astray_evenly_are_ranked_as_well_as_by_p_given(rate):
    p, true = drawn(2000, 8, 8.0)
    given, wrong = planted(true, 8, rate, "even")
    p = seen_through(p, 8, rate, "even")
    found = label_noise(p.log(), given)
    assert average_precision(found.scores, wrong) > average_precision(-own(p, given), wrong) - 0.02
    assert f1(found.flagged, wrong) > 0.85
    assert found.wrong.low <= int(wrong.sum()) <= found.wrong.high
    assert found.wrong.total == pytest.approx(int(wrong.sum()), rel=0.4)


def test_classes_that_overlap_are_not_taken_for_labels_that_are_wrong():
    """Every label was drawn from the head's own probabilities: it is as right as it can be."""
    p, given = drawn(3000, 5, 3.0)
    joint = confident_joint(p.log(), given)
    most = float(joint.sum() - joint.diagonal().sum())
    found = label_noise(p.log(), given)
    assert most > 150
    assert found.wrong.low < 0.1 * most
    assert found.wrong.total < 0.9 * most
    assert len(found.flagged) == round(found.wrong.total)


def test_where_nothing_contradicts_nothing_is_flagged_and_rows_are_ranked_still():
    p, _ = drawn(400, 4, 9.0)
    given = p.argmax(1)
    found = label_noise(p.log(), given)
    assert len(found.flagged) == 0
    assert (found.wrong.low, round(found.wrong.total)) == (0, 0)
    assert len(found.scores.unique()) > 390


def test_the_noise_matrix_has_distributions_as_columns_and_no_zero():
    p, true = drawn(300, 5, 3.0)
    matrix = noise_matrix(label_halves(p.log(), true))
    torch.testing.assert_close(matrix.sum(0), torch.ones(5, dtype=torch.float64))
    assert bool((matrix > 0).all())
    alone = noise_matrix(label_halves(p.log(), p.argmax(1)))  # no contradiction at all
    assert bool((alone > 0).all())
    assert float(alone.diagonal().min()) > 0.99


def test_scores_follow_their_rows_whatever_the_order(rng):
    p, true = drawn(200, 4, 2.0)
    given, _ = planted(true, 4, 0.1, "even")
    order = torch.randperm(200, generator=rng)
    found, other = label_noise(p.log(), given), label_noise(p.log()[order], given[order])
    torch.testing.assert_close(found.scores[order], other.scores)
    assert set(order[other.flagged].tolist()) == set(found.flagged.tolist())


def test_flags_are_the_most_suspect_rows_and_the_head_prefers_the_suggestion():
    p, true = drawn(600, 4, 3.0)
    given, _ = planted(true, 4, 0.2, "even")
    found = label_noise(p.log(), given)
    scores = found.scores[found.flagged]
    assert bool((scores[:-1] >= scores[1:]).all())
    assert bool((found.suggested != given).all())
    preferred = own(p, found.suggested) > own(p, given)
    assert bool(preferred[found.flagged].all())
    rest = preferred.clone()
    rest[found.flagged] = False
    assert float(found.scores[rest].max()) <= float(scores.min())


def test_a_label_that_is_alone_in_its_class_cannot_be_checked():
    p, _ = drawn(100, 3, 6.0)
    given = p[:, :2].argmax(1)
    given[0] = 2
    p[0] = torch.tensor([1.0, 0.0, 0.0])
    found = label_noise(p.log(), given)
    assert found.scores[0] == 0
    assert 0 not in found.flagged.tolist()
    assert not found.ambiguous[0]


def test_a_class_that_was_split_by_chance_may_be_one_class_and_others_may_not():
    p, true = drawn(900, 3, 8.0)
    rng = torch.Generator().manual_seed(3)
    given = torch.where((true == 2) & (torch.rand(900, generator=rng) < 0.4), 3, true)
    split = torch.cat([p[:, :2], 0.6 * p[:, 2:], 0.4 * p[:, 2:]], 1)
    ((a, b, apart),) = label_noise(split.log(), given).alike
    assert (a, b) == (2, 3)
    assert abs(apart) < 0.05
    swapped = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    assert classes_alike(swapped.double()[true].log(), true) == []


def test_a_row_is_ambiguous_when_two_labels_are_plausible():
    p, true = drawn(800, 4, 6.0)
    given, _ = planted(true, 4, 0.2, "even")
    found = label_noise(p.log(), given)
    posterior = p.double() * found.matrix[given]
    second, first = (posterior / posterior.sum(1, keepdim=True)).sort(1).values[:, -2:].T
    want = first / second < 3
    assert 0 < int(want.sum()) < 400
    assert int((want != found.ambiguous).sum()) <= 4  # the head's 1/n is added before


def test_zeros_are_answered_and_what_is_no_probability_earns_a_sentence():
    p = torch.eye(2, dtype=torch.float64).repeat(20, 1)
    given = torch.tensor([0, 1] * 20)
    given[0] = 1
    found = label_noise(p.log(), given)
    assert found.flagged.tolist() == [0]
    assert bool(found.scores.isfinite().all())
    with pytest.raises(InputError, match="one code per row"):
        label_noise(p.log(), given[:3])
    with pytest.raises(InputError, match="holds NaN"):
        label_noise(torch.full((4, 2), math.nan), given[:4])


def test_rates_of_classes_that_differ_by_chance_alone_are_one_rate():
    rng = torch.Generator().manual_seed(0)
    true = torch.arange(2000) % 20
    wrong = torch.rand(2000, generator=rng) < 0.1
    given = torch.where(wrong, (true + torch.randint(1, 20, true.shape, generator=rng)) % 20, true)
    p = (torch.full((2000, 20), 0.01) + 0.8 * torch.eye(20)[true]).double()
    rate = 1 - label_noise(p.log(), given).matrix.diagonal()
    assert float(rate.max() - rate.min()) < 0.02
    given = torch.where((true == 3) & (torch.rand(2000, generator=rng) < 0.5), 7, given)
    rate = 1 - label_noise(p.log(), given).matrix.diagonal()
    assert int(rate.argmax()) == 3
    assert float(rate[3]) > 0.3


def test_two_classes_with_the_same_noise_seldom_get_two_rates():
    unlike = 0
    for seed in range(60):
        p, true = drawn(400, 2, 6.0, seed)
        given, _ = planted(true, 2, 0.1, "even", seed + 100)
        p = seen_through(p, 2, 0.1, "even")
        rate = 1 - label_noise(p.log(), given).matrix.diagonal()
        unlike += abs(float(rate[0] - rate[1])) > 1e-9
    assert unlike < 12  # 24 where one degree of freedom is compared with its mean


def test_a_hundred_overlapping_classes_of_twenty_rows_give_even_noise_no_direction():
    rng, classes = torch.Generator().manual_seed(0), torch.arange(100)
    true = torch.arange(2000) % 100
    logits = torch.randn(2000, 100, generator=rng, dtype=torch.float64)
    logits += 2.5 * (true[:, None] // 5 == classes // 5) + 4.0 * (true[:, None] == classes)
    true = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]
    blurred = logits + torch.randn(2000, 100, generator=rng, dtype=torch.float64)
    given, wrong = planted(true, 100, 0.05, "even")
    p = (0.8 * blurred).softmax(1)
    found = label_noise(p.log(), given)
    astray = found.matrix.clone().fill_diagonal_(0)
    assert float((99 * astray / astray.sum(0)).max()) < 1.3  # an even spread is 1; it was 1.86
    by_p = average_precision(-own(p, given), wrong)
    assert average_precision(found.scores, wrong) > by_p - 0.003


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2])
def test_a_weak_head_of_many_classes_does_not_call_its_own_errors_wrong_labels(rate):
    p, true = drawn(2000, 100, 5.0)
    given, wrong = planted(true, 100, rate, "even")
    p = seen_through(p, 100, max(rate, 1e-6), "even")
    found = label_noise(p.log(), given).wrong
    joint = confident_joint(p.log(), given)
    most = float(joint.sum() - joint.diagonal().sum())
    assert most > 700  # "confident" contradictions
    assert found.low <= int(wrong.sum()) <= found.high
    assert found.total < int(wrong.sum()) + 0.35 * most


def test_where_less_than_half_of_the_labels_are_named_none_may_be_wrong():
    p, given = drawn(1000, 10, 1.5)
    assert float((p.argmax(1) == given).double().mean()) < 0.5
    found = label_noise(p.log(), given).wrong
    assert found.low == 0 < found.high
    assert float(found.pairs[:, :, 1].max()) == 0  # of no pair of classes, either
