"""The soft nearest neighbor loss: its formula, invariances, limits, temperature, and direction."""

import math

import pytest
import torch
import torch.nn.functional as F
from experiments.data import Source
from experiments.frosst2019snnl import fig01_02_13_toy
from torch.autograd import gradcheck
from torch.testing import assert_close

from reference import soft_nearest_neighbor_terms as plain_terms
from vicinal.checks import InputError
from vicinal.losses import (
    Cosine,
    InversePower,
    Linear,
    Relative,
    SoftNearestNeighborLoss,
    schedules,
    soft_nearest_neighbor_loss,
    soft_nearest_neighbor_terms,
)
from vicinal.losses.schedules import mean_distance
from vicinal.neighbors import chance_level, optimal_temperature, pairwise_distances
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.tiles import dense
from vicinal.neighbors.tiles.dense import small_surprise
from vicinal.neighbors.tiles.masses import precise_log_masses


def batch(rng, n=12, d=3, classes=3):
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    return x, torch.arange(n) % classes


def test_loss_of_lone_anchors_is_left_out_of_the_mean(rng):
    x, y = batch(rng)
    y[3], y[7] = 10, 11
    terms = plain_terms(x, y, 0.7)
    known = [t for t in terms if t is not None]
    assert len(known) == 10
    assert_close(soft_nearest_neighbor_loss(x, y, temperature=0.7).item(), sum(known) / 10)
    loss, valid = soft_nearest_neighbor_terms(x, y, temperature=0.7)
    assert valid.tolist() == [t is not None for t in terms]
    assert_close(loss, torch.tensor([t or 0.0 for t in terms], dtype=torch.float64))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_gradients_are_those_of_finite_differences(metric, reduction, kind, rng):
    x, y = batch(rng, 8)
    y = torch.rand(8, 3, generator=rng, dtype=torch.float64).softmax(1) if kind == "soft" else y
    t = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)

    def loss(x, t):
        return soft_nearest_neighbor_loss(x, y, temperature=t, metric=metric, reduction=reduction)

    assert gradcheck(loss, (x.requires_grad_(), t))


@pytest.mark.parametrize("metric", METRICS)
def test_terms_are_those_of_a_plain_loop_dense_or_tiled(metric, rng):
    x, y = batch(rng)
    expected = torch.tensor(plain_terms(x, y, 0.5, metric), dtype=torch.float64)
    got = soft_nearest_neighbor_loss(x, y, temperature=0.5, metric=metric, reduction="none")
    assert_close(got, expected)
    own, other = precise_log_masses(x, y, 0.5, metric, None, None, tile=5)
    assert_close(torch.logaddexp(own, other) - own, expected)


def test_neither_order_nor_translation_nor_rotation_matters(rng):
    x, y = batch(rng)
    loss = soft_nearest_neighbor_loss(x, y)
    order = torch.randperm(12, generator=rng)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=rng, dtype=torch.float64)).Q
    assert_close(soft_nearest_neighbor_loss(x[order], y[order]), loss)
    assert_close(soft_nearest_neighbor_loss(x @ turn + 7, y), loss)


@pytest.mark.parametrize(("metric", "power"), [("sqeuclidean", 2), ("euclidean", 1), ("cosine", 0)])
def test_scale_is_a_matter_of_temperature(metric, power, rng):
    x, y = batch(rng)
    loss = soft_nearest_neighbor_loss(x, y, temperature=0.7, metric=metric)
    scaled = soft_nearest_neighbor_loss(5 * x, y, temperature=0.7 * 5**power, metric=metric)
    assert_close(scaled, loss)


def test_a_very_high_temperature_sees_only_chance(rng):
    x, y = batch(rng, 13)
    x[:, 0] += y  # some structure, so that a finite temperature is best
    chance = sum(math.log(12 / (int((y == c).sum()) - 1)) for c in y) / 13
    assert_close(
        soft_nearest_neighbor_loss(x, y, temperature=1e9).item(), chance, rtol=0, atol=1e-6
    )
    assert_close(chance_level(y), chance)
    best = optimal_temperature(x, y)
    assert soft_nearest_neighbor_loss(x, y, temperature=best) <= chance


def test_one_hot_soft_labels_are_hard_labels(rng):
    x, y = batch(rng)
    assert_close(
        soft_nearest_neighbor_loss(x, F.one_hot(y).double()), soft_nearest_neighbor_loss(x, y)
    )


def test_references_are_looked_up_instead_of_the_batch(rng):
    x, y = batch(rng)
    bank, bank_labels = batch(rng, 9)
    given = {"reference": bank, "reference_labels": bank_labels, "reduction": "none"}
    terms = soft_nearest_neighbor_loss(x, y, **given)
    for i in (0, 4):
        w = torch.exp(-(bank - x[i]).square().sum(1))
        assert_close(terms[i], -torch.log(w[bank_labels == y[i]].sum() / w.sum()))
    y[0] = 9  # nobody in the bank
    assert soft_nearest_neighbor_loss(x, y, **given)[0] == 0


def test_weights_weigh_anchors_and_divide_the_mean(rng):
    x, y = batch(rng)
    y[2] = 9
    weight = torch.rand(12, generator=rng, dtype=torch.float64)
    terms, valid = soft_nearest_neighbor_terms(x, y)
    expected = (terms * weight).sum() / weight[valid].sum()
    assert_close(soft_nearest_neighbor_loss(x, y, weight=weight), expected)
    assert_close(
        soft_nearest_neighbor_loss(x, y, weight=torch.ones(12)), soft_nearest_neighbor_loss(x, y)
    )


@pytest.mark.parametrize("labels", [[0], [0, 0, 0, 0], [0, 1, 2, 3]])
def test_one_row_one_class_or_only_singletons_give_zero_with_zero_gradient(labels, rng):
    y = torch.tensor(labels)
    x = torch.randn(len(y), 3, generator=rng).requires_grad_()
    for reduction in ("mean", "sum"):
        loss = soft_nearest_neighbor_loss(x, y, reduction=reduction)
        assert loss == 0
        assert torch.equal(torch.autograd.grad(loss, x)[0], torch.zeros_like(x))


def test_duplicates_and_zero_rows_are_exact_with_finite_gradients(rng):
    x, y = batch(rng)
    x[:6] = 0
    x.requires_grad_()
    for metric in METRICS:
        loss = soft_nearest_neighbor_loss(x, y, metric=metric)
        terms = plain_terms(x.detach(), y, 1.0, metric)
        assert_close(loss.item(), sum(terms) / 12)
        assert torch.isfinite(torch.autograd.grad(loss, x)[0]).all()
    alike = soft_nearest_neighbor_loss(torch.zeros(6, 2), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert_close(alike.item(), math.log(5))  # one peer among five equals


def test_far_points_are_not_clamped():
    x = torch.tensor([[0.0], [30.0], [1.0], [31.0]])
    y = torch.tensor([0, 0, 1, 1])
    terms = plain_terms(x, y)  # about 900 each: e^-900 is 0 in any float
    assert_close(soft_nearest_neighbor_loss(x, y).item(), sum(terms) / 4, rtol=1e-6, atol=0)


@pytest.mark.parametrize("offset", [100.0, 1000.0])
def test_an_offset_costs_no_digits(offset, rng):
    x, y = batch(rng, 30)
    moved = (x + offset).float()
    exact = soft_nearest_neighbor_loss(moved.double(), y)
    assert_close(soft_nearest_neighbor_loss(moved, y).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype, rng):
    x, y = batch(rng, 30)
    half = x.to(dtype)
    exact = soft_nearest_neighbor_loss(half.double(), y, temperature=0.1)
    got = soft_nearest_neighbor_loss(half, y, temperature=0.1)
    assert_close(got.double(), exact, rtol=1e-5, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(soft_nearest_neighbor_loss(half, y, temperature=0.1), got)


def test_nan_gives_nan(rng):
    x, y = batch(rng)
    x[5, 0] = torch.nan
    assert soft_nearest_neighbor_loss(x, y).isnan()
    assert SoftNearestNeighborLoss("optimal")(x, y).isnan()


@pytest.mark.parametrize("metric", METRICS)
def test_compiles_into_one_graph(metric, rng):
    x, y = batch(rng)
    x.requires_grad_()
    module = SoftNearestNeighborLoss(2.0, learn_temperature=True, entangle="max", metric=metric)
    torch._dynamo.reset()
    assert torch._dynamo.explain(module)(x, y).graph_break_count == 0
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    parameters = [x, *module.parameters()]
    expected = torch.autograd.grad(module(x, y), parameters)
    assert_close(torch.autograd.grad(compiled(x, y), parameters), expected)


# ------------------------------------------------------------------ the module's temperature


def test_a_learned_temperature_lowers_the_loss_whichever_way_the_points_are_pulled(rng):
    x, y = batch(rng)
    x[:, 0] += y
    for entangle in ("min", "max"):
        module = SoftNearestNeighborLoss(3.0, learn_temperature=True, entangle=entangle)
        sign = 1 if entangle == "min" else -1
        optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
        before = sign * module(x, y)
        for _ in range(150):
            optimizer.zero_grad()
            module(x, y).backward()
            optimizer.step()
        assert sign * module(x, y) < before
        best = soft_nearest_neighbor_loss(x, y, temperature=optimal_temperature(x, y))
        assert_close(sign * module(x, y), best, rtol=1e-3, atol=1e-3)


def test_a_parameter_passed_in_is_reversed_under_maximization_too(rng):
    x, y = batch(rng)
    t = torch.nn.Parameter(torch.tensor(1.5))
    down = torch.autograd.grad(SoftNearestNeighborLoss(t)(x, y), t)
    assert_close(torch.autograd.grad(SoftNearestNeighborLoss(t, entangle="max")(x, y), t), down)


def test_the_optimal_temperature_is_a_constant_of_the_batch(rng):
    x, y = batch(rng)
    x.requires_grad_()
    module = SoftNearestNeighborLoss("optimal")
    t = optimal_temperature(x.detach(), y)
    fixed = soft_nearest_neighbor_loss(x, y, temperature=t)
    assert_close(module(x, y), fixed)
    assert_close(torch.autograd.grad(module(x, y), x), torch.autograd.grad(fixed, x))
    assert module(x[:3], torch.arange(3)) == 0


def test_an_optimal_temperature_is_kept_between_fits(rng, monkeypatch):
    fits, fit = [], schedules.optimal_temperature

    def counted(x, labels, **options):
        fits.append(len(x))
        return fit(x, labels, **options)

    monkeypatch.setattr(schedules, "optimal_temperature", counted)
    x, y = batch(rng)
    module, first = SoftNearestNeighborLoss("optimal", every=3), fit(x, y)
    for scale in (1.0, 2.0, 3.0):
        kept = soft_nearest_neighbor_loss(scale * x, y, temperature=first)
        assert_close(module(scale * x, y), kept)
    assert len(fits) == 1
    fresh = soft_nearest_neighbor_loss(4 * x, y, temperature=fit(4 * x, y))
    assert_close(module(4 * x, y), fresh)
    assert len(fits) == 2


def test_an_optimal_temperature_does_not_run_to_0_where_classes_are_apart(rng):
    y = torch.arange(20) % 2
    x = (torch.randn(20, 3, generator=rng) + 40 * y[:, None]).requires_grad_()
    for metric in ("sqeuclidean", "euclidean", "cosine"):
        spread = float(pairwise_distances(x.detach(), metric=metric).sum()) / (20 * 19)
        assert_close(float(mean_distance(x, metric)), spread, rtol=1e-3, atol=1e-6)
        module = SoftNearestNeighborLoss("optimal", metric=metric, floor=0.5)
        fixed = soft_nearest_neighbor_loss(x, y, temperature=0.5 * spread, metric=metric)
        assert_close(module(x, y), fixed, rtol=1e-3, atol=1e-5)
    bare = SoftNearestNeighborLoss("optimal", floor=0.0)
    assert not torch.autograd.grad(bare(x, y), x)[0].any()
    raised = SoftNearestNeighborLoss("optimal", floor=0.1, entangle="max")
    assert torch.autograd.grad(raised(x, y), x)[0].any()


def test_a_relative_schedule_does_not_depend_on_the_scale_of_the_rows(rng):
    x, y = batch(rng)
    module = SoftNearestNeighborLoss(Relative(Linear(1.0, 0.1, 4)))
    module.set_epoch(2)
    assert_close(module(x, y), module(100 * x, y), rtol=1e-4, atol=1e-5)
    expected = soft_nearest_neighbor_loss(x, y, temperature=0.55 * mean_distance(x, "sqeuclidean"))
    assert_close(module(x, y), expected)


def test_a_schedule_follows_the_epoch_and_is_saved_with_it(rng):
    x, y = batch(rng)
    for schedule, at_three in [
        (InversePower(), 4**-0.55),
        (Cosine(2.0, 1.0, 6), 1.5),
        (Linear(4.0, 1.0, 3), 1.0),
    ]:
        module = SoftNearestNeighborLoss(schedule)
        module.set_epoch(3)
        assert_close(module(x, y), soft_nearest_neighbor_loss(x, y, temperature=at_three))
        again = SoftNearestNeighborLoss(schedule)
        again.load_state_dict(module.state_dict())
        assert_close(again(x, y), module(x, y))


def test_lone_rows_are_warned_of_once(rng, recwarn):
    x, y = batch(rng)
    y[0] = 7
    module = SoftNearestNeighborLoss()
    with pytest.warns(UserWarning, match="1 of 12 rows have no same-class partner"):
        module(x, y)
    recwarn.clear()
    module(x, y)
    assert not recwarn.list


def test_wrong_inputs_are_named(rng):
    x, y = batch(rng)
    for arguments, words in [
        ({"temperature": 0.0}, "`temperature` must be a finite number above 0"),
        ({"temperature": -1.0}, "`temperature`"),
        ({"temperature": "0.5"}, "`temperature` must be a finite number above 0"),
        ({"weight": torch.ones(3)}, "`weight` must hold one number for each of the 12 rows"),
        ({"weight": -torch.ones(12)}, "negative"),
        ({"reduction": "max"}, "`reduction` must be one of"),
        ({"metric": "l1"}, "`metric` must be one of"),
    ]:
        with pytest.raises(InputError, match=words):
            soft_nearest_neighbor_loss(x, y, **arguments)
    for labels, words in [
        (y[:5], "one label for each of the 12 rows"),
        (y.float(), "integer class labels"),
        (torch.full((12, 2), 0.7), "must sum to 1"),
        (torch.tensor([[1.5, -0.5]]).expand(12, 2), "negative"),
    ]:
        with pytest.raises(InputError, match=words):
            soft_nearest_neighbor_loss(x, labels)
    for arguments, words in [
        ({"temperature": 0.0}, "`temperature`"),
        ({"temperature": "optimal", "every": 0}, "`every` must be a whole number"),
        ({"temperature": "optimal", "floor": -1.0}, "`floor` must be 0 or more"),
        ({"temperature": Relative(0.0)}, "temperature"),
        ({"temperature": "best"}, "`temperature` must be one of 'optimal'"),
        ({"entangle": "up"}, "`entangle` must be one of"),
        ({"temperature": InversePower(), "learn_temperature": True}, "needs a number to start"),
    ]:
        with pytest.raises(InputError, match=words):
            SoftNearestNeighborLoss(**arguments)


# ------------------------------------------------------------------ what the paper shows


def test_minimizing_keeps_the_modes_of_a_class_and_maximizing_spreads_the_classes():
    found = fig01_02_13_toy.run(fig01_02_13_toy.PRESETS["quick"], 0, Source())
    assert found["minimized"]["own"] >= 0.99
    assert found["maximized"]["own"] < found["start"]["own"] - 0.2
    assert found["minimized"]["apart"] >= found["start"]["apart"]
    assert found["triplet"]["own"] >= 0.99


def test_a_tiny_loss_keeps_its_digits_in_float32(rng):
    """Classes far apart, more rows than the small-batch path takes: no cancellation."""
    y = torch.arange(600) % 2
    x = torch.randn(600, 4, generator=rng) + 6 * y[:, None]
    exact = soft_nearest_neighbor_loss(x.double(), y)
    assert 0 < float(exact) < 1e-6
    assert float(soft_nearest_neighbor_loss(x, y)) == pytest.approx(float(exact), rel=1e-4)


def test_an_optimal_temperature_compiles_into_one_graph(rng):
    x, y = torch.randn(20, 3, generator=rng).requires_grad_(), torch.arange(20) % 4
    module = SoftNearestNeighborLoss("optimal")
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    values = [module(x, y), compiled(x, y)]
    assert_close(*values)
    assert_close(*(torch.autograd.grad(value, x)[0] for value in values))


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_soft_labels_of_a_small_batch_take_the_short_way_to_the_same_loss(metric, rng):
    x = torch.randn(9, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    soft = torch.rand(9, 4, generator=rng, dtype=torch.float64)
    soft[7:] = torch.eye(4, dtype=torch.float64)[3]
    soft[:7, 3] = 0
    soft[6] = torch.tensor([0.0, 0.0, 0.0, 0.0])
    soft = soft / soft.sum(1, keepdim=True).clamp_min(1e-12)
    soft[6, 2] = 1.0
    short = small_surprise(x, soft, 0.7, metric)
    own, other = precise_log_masses(x, soft, 0.7, metric, None, None)
    surprise = torch.logaddexp(own, other) - own
    torch.testing.assert_close(short.loss, surprise)
    upstream = torch.randn(9, generator=rng, dtype=torch.float64)
    found = torch.autograd.grad(short.loss, x, upstream)
    expected = torch.autograd.grad(surprise, x, upstream)
    torch.testing.assert_close(found, expected)
    lone = torch.eye(4, dtype=torch.float64)[[0, 0, 1]]
    alone = small_surprise(x[:3].detach(), lone, 0.7, metric)
    assert alone.valid.tolist() == [True, True, False]
    assert alone.loss[2] == 0
    assert small_surprise(x, soft * 2, 0.7, metric) is None  # no distribution: the words are there


@pytest.mark.parametrize("offset", [0, 30])
def test_wide_rows_take_half_of_the_products_to_the_same_loss_and_gradient(
    offset, rng, monkeypatch
):
    monkeypatch.setattr(dense, "WIDE", 2)
    monkeypatch.setattr(dense, "STRIPE", 5)  # of 12 rows: two stripes and a rest
    monkeypatch.setattr(dense, "COLUMNS", 2)
    x, y = batch(rng)
    x = (x + offset).requires_grad_()
    rows = x.detach()
    kept = dense._find(rows, y, 1 / 0.7)[1].rows
    assert (kept is rows) == (offset == 0)  # only what is far from the origin is centered
    short = small_surprise(x, y, 0.7, "sqeuclidean")
    terms = torch.tensor(plain_terms(x.detach(), y, 0.7), dtype=torch.float64)
    assert_close(short.loss, terms)
    upstream = torch.randn(12, generator=rng, dtype=torch.float64)
    found = torch.autograd.grad(short.loss, x, upstream)
    monkeypatch.undo()
    expected = torch.autograd.grad(small_surprise(x, y, 0.7, "sqeuclidean").loss, x, upstream)
    assert_close(found, expected)
