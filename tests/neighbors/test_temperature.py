"""The fitted temperature is the argmin of a plain-loop loss that never sees a point itself."""

import math

import pytest
import torch
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.neighbors import surprise, temperature
from vicinal.neighbors.distances import METRICS, pairwise_distances
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch
from vicinal.neighbors.surprise import gaps_of, losses, slopes
from vicinal.neighbors.temperature import (
    chance_level,
    fit_temperature,
    optimal_temperature,
    snnl_profile,
)


def blobs(n, rng, spread=1.0, classes=3, d=4):
    centers = 2 * torch.randn(classes, d, generator=rng, dtype=torch.float64)
    y = torch.randint(0, classes, (n,), generator=rng)
    return centers[y] + spread * torch.randn(n, d, generator=rng, dtype=torch.float64), y


def cached(x, y, k, metric="sqeuclidean"):
    graph = NeighborGraph.build(ExactSearch(metric).build(x), k)
    return graph.distances, y[graph.indices] == y[:, None]


def plain_argmin(loss, low, high):
    """Ternary search over log T, on a function with one valley in [low, high]."""
    a, b = math.log(low), math.log(high)
    while b - a > 1e-7:
        c, d = a + (b - a) / 3, b - (b - a) / 3
        a, b = (a, d) if loss(math.exp(c)) < loss(math.exp(d)) else (c, b)
    return math.exp((a + b) / 2)


def test_the_fit_is_the_argmin_of_the_plain_loss(rng):
    x, y = blobs(40, rng)
    d, same = cached(x, y, 12)
    fit = fit_temperature(d, same)
    loss = lambda t: reference.leave_one_out_loss(d.tolist(), same.tolist(), t)
    assert_close(fit.temperature, plain_argmin(loss, 0.1, 100), rtol=1e-4, atol=0)
    assert_close(fit.loss, loss(fit.temperature), rtol=1e-12, atol=0)
    assert not fit.at_bound


def test_float32_distances_of_many_rows_give_a_temperature_stationary_in_float64(rng):
    x, y = blobs(6000, rng)  # more rows than the sample: every stage runs
    d, same = cached(x.float(), y, 15)
    t = fit_temperature(d, same).temperature
    u = torch.tensor(math.log(t), dtype=torch.float64, requires_grad=True)
    w = -d.double() / u.exp()
    peer = same.any(1)
    loss = (w.logsumexp(1) - w.masked_fill(~same, -torch.inf).logsumexp(1))[peer].mean()
    (slope,) = torch.autograd.grad(loss, u, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, u)
    assert curvature > 0
    assert abs(float((slope / curvature).detach())) < 1e-8  # the Newton step left to do, in log T


def two_minima(tight, loose):
    """Rows of two kinds, each with a best temperature of its own, many powers of ten apart.

    Tight rows: the peer is the nearest or, for every fourth, the second nearest; farther, strangers
    dilute. Loose rows: a peer and a stranger tie at 0, which any small T bears equally, and T must
    be large to reach the peers beyond but not the strangers beyond these.
    """
    rows, same = [], []
    for i in range(tight):
        rows.append([0.0, 1e-3, 2e-3, 2e-3, 2e-3, 2e-3])
        same.append([i % 4 != 0, i % 4 == 0, False, False, False, False])
    for _ in range(loose):
        rows.append([0.0, 0.0, 1e3, 1e3, 1e6, 1e6])
        same.append([True, False, True, True, False, False])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    return torch.tensor(rows, dtype=torch.float64)[order], torch.tensor(same)[order]


@pytest.mark.parametrize(("tight", "loose"), [(20, 80), (60, 40), (1500, 8500), (6000, 4000)])
def test_of_two_minima_the_lower_one_is_found(tight, loose):
    d, same = two_minima(tight, loose)
    profile = lambda t: float(
        ((-d / t).logsumexp(1) - (-d / t).masked_fill(~same, -torch.inf).logsumexp(1)).mean()
    )
    grid = [10 ** (e / 8) for e in range(-40, 68)]
    heights = [profile(t) for t in grid]
    valleys = [
        i for i in range(1, len(grid) - 1) if heights[i] < min(heights[i - 1], heights[i + 1])
    ]
    assert len(valleys) == 2  # the case is what it claims to be
    lowest = min(valleys, key=heights.__getitem__)
    fit = fit_temperature(d, same)
    assert grid[lowest - 1] < fit.temperature < grid[lowest + 1]
    assert fit.loss <= min(heights)


def test_weights_count_rows_as_often_as_they_say(rng):
    x, y = blobs(50, rng)
    d, same = cached(x, y, 10)
    weight = torch.randint(0, 4, (50,), generator=rng)
    repeated = fit_temperature(d.repeat_interleave(weight, 0), same.repeat_interleave(weight, 0))
    weighted = fit_temperature(d, same, weight.double())
    assert_close(weighted.temperature, repeated.temperature, rtol=1e-6, atol=0)
    assert_close(weighted.loss, repeated.loss)


def test_rows_without_peers_are_left_out(rng):
    x, y = blobs(50, rng)
    d, same = cached(x, y, 10)
    lonely = torch.zeros(5, 10, dtype=torch.bool)
    more = fit_temperature(torch.cat([d, d[:5] / 7]), torch.cat([same, lonely]))
    assert_close(more.temperature, fit_temperature(d, same).temperature, rtol=1e-6, atol=0)


def test_classes_that_never_mix_drive_the_temperature_to_its_bound(rng):
    d = torch.rand(30, 5, generator=rng).sort(1).values
    same = torch.tensor([True, True, False, False, False]).expand(30, 5)
    assert fit_temperature(d, same).at_bound  # ever smaller T is ever better
    assert fit_temperature(d, torch.ones(30, 5, dtype=torch.bool)).at_bound  # any T is as good
    assert fit_temperature(d, ~same).at_bound  # peers beyond strangers: the larger T the better
    equal = fit_temperature(torch.ones(30, 5), same)
    assert equal.at_bound
    assert_close(equal.loss, math.log(5 / 2))


@pytest.mark.parametrize("metric", METRICS)
def test_the_optimal_temperature_is_the_argmin_of_the_plain_snnl(metric, rng):
    x, y = blobs(24, rng)
    x[3] = x[5]  # a duplicate, across classes or not
    t = optimal_temperature(x.float(), y, metric=metric)
    loss = lambda t: reference.snnl(x.float().tolist(), y.tolist(), t, metric)
    assert_close(t, plain_argmin(loss, t / 30, t * 30), rtol=1e-3, atol=0)


def test_all_others_and_the_n_minus_one_nearest_are_the_same_question(rng):
    x, y = blobs(80, rng)
    assert_close(optimal_temperature(x, y), optimal_temperature(x, y, k=79), rtol=1e-7, atol=0)


def test_the_answer_does_not_depend_on_blocks_or_samples(rng, monkeypatch):
    x, y = blobs(150, rng)
    t, profile = optimal_temperature(x, y), snnl_profile(x, y, [0.5, 2.0])
    monkeypatch.setattr(surprise, "SAMPLE", 20)
    monkeypatch.setattr(surprise, "BLOCK", 300)
    monkeypatch.setattr(temperature, "TILE", 300)
    assert_close(optimal_temperature(x, y), t, rtol=1e-7, atol=0)
    assert_close(snnl_profile(x, y, [0.5, 2.0]), profile)


def test_one_hot_soft_labels_are_hard_labels(rng):
    x, y = blobs(60, rng)
    soft = torch.nn.functional.one_hot(y).double()
    assert_close(optimal_temperature(x, soft), optimal_temperature(x, y), rtol=1e-7, atol=0)
    assert_close(
        optimal_temperature(x, soft, k=9), optimal_temperature(x, y, k=9), rtol=1e-7, atol=0
    )
    assert_close(chance_level(soft), chance_level(y))
    assert_close(snnl_profile(x, soft, [1.0]), snnl_profile(x, y, [1.0]))


def test_the_profile_is_the_plain_snnl_and_ends_at_the_chance_level(rng):
    x, y = blobs(20, rng)
    y[0] = 7  # a row without peers
    temperatures = [1e-3, 0.7, 30.0]
    expected = [reference.snnl(x.tolist(), y.tolist(), t) for t in temperatures]
    profile = snnl_profile(x, y, [*temperatures, math.inf])
    assert_close(profile, torch.tensor([*expected, chance_level(y)], dtype=torch.float64))


def test_far_offsets_and_huge_scales_do_not_reach_the_profile(rng):
    x, y = blobs(30, rng)
    t = torch.tensor([0.5, 5.0], dtype=torch.float64)
    assert_close(snnl_profile(x + 1e6, y, t), snnl_profile(x, y, t), rtol=1e-6, atol=1e-9)
    assert_close(snnl_profile(x * 2.0**100, y, t * 2.0**200), snnl_profile(x, y, t))
    assert_close(optimal_temperature(x * 2.0**100, y) / 2.0**200, optimal_temperature(x, y))


def test_at_its_best_temperature_the_loss_is_never_above_chance(rng):
    for spread in (0.1, 1.0, 100.0):
        x, y = blobs(60, rng, spread)
        t = optimal_temperature(x, y)
        assert float(snnl_profile(x, y, [t])) <= chance_level(y) + 1e-4


def test_chance_is_the_mean_log_share_of_peers():
    y = [0, 0, 0, 1, 1, 2]
    expected = (3 * math.log(5 / 2) + 2 * math.log(5 / 1)) / 5
    assert_close(chance_level(torch.tensor(y)), expected)


def test_a_point_never_predicts_itself(rng):
    x = torch.randn(40, 3, generator=rng)
    y = torch.randint(0, 2, (40,), generator=rng)  # labels that say nothing
    d, same = cached(x, y, 10)
    with_self = fit_temperature(
        torch.cat([torch.zeros(40, 1), d], 1), torch.cat([torch.ones(40, 1).bool(), same], 1)
    )
    assert with_self.loss < 1e-6  # what leaving self in would claim
    assert fit_temperature(d, same).loss > 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_temperature(torch.ones(2, 3), torch.ones(2, 2)), "`same`"),
        (lambda: fit_temperature(torch.ones(2, 3), 2 * torch.ones(2, 3)), "`same`"),
        (lambda: fit_temperature(torch.ones(2, 3), torch.zeros(2, 3).bool()), "no row has"),
        (lambda: fit_temperature(torch.full((2, 3), math.nan), torch.ones(2, 3)), "`distances`"),
        (lambda: fit_temperature(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)), "`weight`"),
        (lambda: fit_temperature(torch.ones(2, 3), torch.ones(2, 3), -torch.ones(2)), "`weight`"),
        (lambda: optimal_temperature(torch.ones(1, 3), torch.zeros(1).long()), "two rows"),
        (lambda: optimal_temperature(torch.ones(3, 3), torch.arange(3)), "no row has"),
        (lambda: optimal_temperature(torch.ones(3, 3), torch.zeros(3).long(), k=3), "Pass k=2"),
        (lambda: optimal_temperature(torch.ones(3, 3), torch.zeros(2).long()), "`labels`"),
        (lambda: snnl_profile(torch.ones(3, 3), torch.zeros(3).long(), [0.0]), "`temperatures`"),
        (lambda: chance_level(torch.arange(3)), "no row has"),
    ],
)
def test_wrong_input_earns_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_the_streamed_distances_are_the_pairwise_ones(rng):
    x, y = blobs(12, rng)
    x[4] = 0
    for metric in METRICS:
        (block,) = temperature.AllOthers(x, y, metric, torch.arange(12))
        others = ~torch.eye(12, dtype=torch.bool)
        expected = pairwise_distances(x, metric=metric)[others].view(12, 11)
        assert_close(block.gaps, expected - expected.amin(1, keepdim=True))


def test_newton_goes_down_the_deeper_of_two_wells():
    def double_well(b):  # in u = log b: (u² - 1)² + u/10, lower on the left
        u = math.log(b)
        f1, f2 = 4 * u * (u * u - 1) + 0.1, 12 * u * u - 4  # in u; now in b
        return surprise.Slope((u * u - 1) ** 2 + 0.1 * u, f1 / b, (f2 - f1) / b**2)

    heights = lambda bs: [double_well(b).value for b in bs]
    at, value, at_bound = surprise.lowest_minimum(heights, [double_well], 0.1, 10)
    assert math.log(at) == pytest.approx(-1.012, abs=5e-4)
    assert value == double_well(at).value
    assert not at_bound


@pytest.mark.parametrize("beta", [0.001, 0.1, 1.0, 50.0])
def test_peers_so_far_that_their_weight_vanishes_keep_their_loss_and_slopes(beta):
    d = torch.tensor([[0.0, 1000.0, 1001.0]]).double()
    rows = [gaps_of(d, torch.tensor([[0.0, 1.0, 1.0]]).double(), torch.ones(1).double())]
    all_, own = math.exp(-1000 * beta), math.exp(-beta)
    value = 1000 * beta + math.log1p(all_ * (1 + own)) - math.log1p(own)
    slope = (1000 + own * 1001) / (1 + own)
    slope -= all_ * (1000 + own * 1001) / (1 + all_ * (1 + own))
    found = slopes(rows, beta)
    assert losses(rows, [beta])[0] == pytest.approx(value, rel=1e-12)
    assert (found.value, found.slope) == pytest.approx((value, slope), rel=1e-10)
