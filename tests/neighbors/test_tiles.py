"""Masses by tiles are the masses of a plain loop, at every scale, in any order, with gradients."""

import weakref

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from reference import masses
from reference import soft_nearest_neighbor_terms as soft_terms_of_loops
from vicinal.checks import InputError
from vicinal.losses import soft_nearest_neighbor_terms
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.mass import log_mass
from vicinal.neighbors.tiles.dense import small_surprise
from vicinal.neighbors.tiles.masses import LogMasses, log_masses, precise_log_masses

HARD = [0, 1, 2, 0, 1, 1, 0, 0, 5, 1]  # 2 and 5 stand alone


def points(rng, n=10, d=3, dtype=torch.float64):
    return torch.randn(n, d, generator=rng, dtype=dtype)


def make_labels(kind, rng, n=10):
    if kind == "hard":
        return torch.tensor((HARD * (n // 10 + 1))[:n])
    soft = torch.rand(n, 4, generator=rng, dtype=torch.float64)
    soft[0], soft[1] = torch.eye(4)[0], torch.eye(4)[2]
    return soft / soft.sum(1, keepdim=True)


def by_tiles(x, labels, temperature=1.0, metric="sqeuclidean", tile=3):
    return among(x, labels, temperature, metric, None, None, tile)


def among(x, labels, temperature, metric, y, others, tile):
    own, other = precise_log_masses(x, labels, temperature, metric, y, others, tile=tile)
    return LogMasses(log_mass(torch.stack([own, other], 1)), own, other)


def finite(out):
    """Everything that has a value, so that a gradient can be asked of it."""
    return torch.cat([m.masked_fill(m == -torch.inf, 0) for m in out])


def loop(*args, **kwargs):
    return LogMasses(*torch.tensor(masses(*args, **kwargs), dtype=torch.float64).T)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("tile", [0, 3, 4, 64])
def test_masses_are_those_of_a_plain_loop(metric, kind, tile, rng):
    x, labels = points(rng), make_labels(kind, rng)
    x[4], x[5] = x[0], 0
    assert_close(by_tiles(x, labels, 1.7, metric, tile), loop(x, labels, 1.7, metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_masses_among_references_leave_nothing_out(metric, kind, rng):
    x, y = points(rng), points(rng, 7)
    labels, others = make_labels(kind, rng), make_labels(kind, rng, 7)
    y[0] = x[0]
    expected = loop(x, labels, 0.8, metric, reference=y, reference_labels=others)
    given = {"temperature": 0.8, "metric": metric, "reference": y, "reference_labels": others}
    assert_close(log_masses(x, labels, **given), expected)
    assert_close(among(x, labels, 0.8, metric, y, others, 4), expected)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("tile", [0, 3])
def test_gradients_in_rows_and_temperature_are_those_of_finite_differences(metric, kind, tile, rng):
    x, labels = points(rng, 8).requires_grad_(), make_labels(kind, rng, 8)
    t = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, t: finite(by_tiles(x, labels, t, metric, tile)), (x, t))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("tile", [0, 3])
def test_gradients_in_references_are_those_of_finite_differences(metric, tile, rng):
    x, y = points(rng, 5).requires_grad_(), points(rng, 4).requires_grad_()
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    labels, others = torch.tensor([0, 1, 1, 2, 0]), torch.tensor([1, 0, 0, 1])

    def out(x, y, t):
        return finite(among(x, labels, t, metric, y, others, tile))

    assert gradcheck(out, (x, y, t))


def test_a_zero_row_under_the_cosine_still_knows_the_temperature(rng):
    x, labels = points(rng, 6), torch.tensor([0, 1, 0, 1, 1, 0])
    x[2], x[3] = 0, 0
    t = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for tile in (0, 3):
        assert gradcheck(lambda t, tile=tile: finite(by_tiles(x, labels, t, "cosine", tile)), (t,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("scale", "temperature"), [(1e3, 1e-3), (1e-3, 1e3), (30.0, 1.0)])
@pytest.mark.parametrize("tile", [0, 16])
def test_no_mass_is_lost_at_any_scale(dtype, scale, temperature, tile, rng):
    x = (points(rng, 40, dtype=torch.float64) * scale).to(dtype).requires_grad_()
    labels = make_labels("hard", rng, 40)
    got = by_tiles(x, labels, temperature, tile=tile)
    exact = loop(x.detach(), labels, temperature)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for mass, expected in zip(got, exact, strict=True):
        assert_close(mass.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.isfinite(torch.autograd.grad(finite(got).sum(), x)[0]).all()


@pytest.mark.parametrize("tile", [0, 16])
def test_outliers_keep_their_masses_and_gradients(tile, rng):
    x = points(rng, 40)
    x[7], x[8], x[20:23] = 500, -300, x[20:23] + 60  # e^(-d²) underflows even in float64
    labels = make_labels("hard", rng, 40)
    exact = loop(x, labels)
    assert exact.all[7] < -1e5
    assert_close(by_tiles(x, labels, tile=tile), exact)
    # The witness of the gradient: plain autograd through the same sums, in float64.
    x.requires_grad_()
    same = labels[:, None] == labels
    d = (x[:, None] - x).square().sum(2).masked_fill(torch.eye(40, dtype=torch.bool), torch.inf)
    plain = torch.logsumexp(-d, 1), torch.logsumexp(-d.masked_fill(same, torch.inf), 1)
    got = by_tiles(x, labels, tile=tile)
    expected = torch.autograd.grad(plain[0].sum() + 2 * plain[1].sum(), x)
    assert_close(torch.autograd.grad(got.all.sum() + 2 * got.other.sum(), x), expected)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("tile", [0, 64])
def test_float32_gradients_agree_with_float64(metric, tile, rng):
    x, labels = points(rng, 200, 16), make_labels("hard", rng, 200)
    temperature = 0.2 if metric == "cosine" else 8.0

    def gradient(x):
        x = x.clone().requires_grad_()
        out = by_tiles(x, labels, temperature, metric, tile)
        valid = out.own > -torch.inf
        return torch.autograd.grad((out.all - out.own)[valid].mean(), x)[0].double()

    exact = gradient(x)
    assert (gradient(x.float()) - exact).norm() / exact.norm() < 3e-6


def test_near_duplicates_among_far_points_are_exact_in_float32(rng):
    x = 30 * points(rng, 40, dtype=torch.float32)
    x[20:] = x[:20] + 1e-3 * points(rng, 20, dtype=torch.float32)
    labels = torch.arange(40) % 20
    for metric, temperature in (("euclidean", 1e-3), ("sqeuclidean", 1e-6)):
        exact = loop(x, labels, temperature, metric)
        for tile in (0, 16):
            got = by_tiles(x, labels, temperature, metric, tile)
            assert_close(got.own.double(), exact.own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [0, 3])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [0]])
def test_empty_masses_are_minus_infinity_with_zero_gradient(tile, labels, rng):
    labels = torch.tensor(labels)
    x = points(rng, len(labels)).requires_grad_()
    out = by_tiles(x, labels, tile=tile)
    for mass in out:
        assert not mass.isnan().any()
    empty = out.other if (labels == 0).all() else out.own
    assert (empty == -torch.inf).all()
    assert torch.equal(torch.autograd.grad(empty.sum(), x)[0], torch.zeros_like(x))


@pytest.mark.parametrize("tile", [0, 4])
def test_one_hot_soft_labels_are_hard_labels(tile, rng):
    x, labels = points(rng), torch.tensor(HARD)
    soft = torch.nn.functional.one_hot(labels).double()
    assert_close(by_tiles(x, soft, tile=tile), by_tiles(x, labels, tile=tile))
    alike = torch.eye(3, dtype=torch.float64)[[1] * 10]
    assert (by_tiles(x, alike, tile=tile).other == -torch.inf).all()


@pytest.mark.parametrize("tile", [0, 4])
def test_nan_rows_give_nan(tile, rng):
    x = points(rng)
    x[3, 1] = torch.nan
    x.requires_grad_()
    out = by_tiles(x, torch.tensor(HARD), tile=tile)
    assert out.all.isnan().all()
    assert torch.autograd.grad(finite(out).sum(), x)[0].isnan().any()


@pytest.mark.parametrize("tile", [0, 16])
def test_half_precision_and_autocast_are_computed_in_float32(tile, rng):
    x, labels = points(rng, 40).bfloat16(), make_labels("hard", rng, 40)
    expected = loop(x, labels)
    got = log_masses(x, labels)
    assert got.all.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wrapped = by_tiles(x.float(), labels, tile=tile)
    for a, b, c in zip(got, wrapped, expected, strict=True):
        assert_close(a.double(), c, rtol=1e-5, atol=1e-5)
        assert_close(b.double(), c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bipartite", [False, True])
def test_compiles_into_one_graph(metric, bipartite, rng):
    x, labels = points(rng).requires_grad_(), torch.tensor(HARD)
    more = {"reference": points(rng), "reference_labels": labels} if bipartite else {}

    def total(x):
        return (log_masses(x, labels, metric=metric, **more).all).sum()

    torch._dynamo.reset()
    assert torch._dynamo.explain(total)(x).graph_break_count == 0
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), total(x))
    expected = torch.autograd.grad(total(x), x)[0]
    assert_close(torch.autograd.grad(compiled(x), x)[0], expected)


def test_the_large_path_is_taken_and_agrees_with_the_small_one(rng):
    x, labels = points(rng, 600, 4), torch.randint(0, 7, (600,), generator=rng)
    assert_close(log_masses(x, labels), by_tiles(x, labels, tile=0))


def test_wrong_inputs_are_named(rng):
    x, labels = points(rng), torch.tensor(HARD)
    for arguments, words in [
        ({"temperature": 0.0}, "`temperature` must be a finite number above 0"),
        ({"temperature": torch.ones(3)}, "must be one number"),
        ({"metric": "manhattan"}, "`metric` must be one of"),
        ({"reference": x}, "pass both or neither"),
        ({"reference": x[:, :2], "reference_labels": labels}, "2 dimensions|3 dimensions"),
        ({"reference": x, "reference_labels": torch.ones(10, 1)}, "of one kind"),
    ]:
        with pytest.raises(InputError, match=words):
            log_masses(x, labels, **arguments)
    with pytest.raises(InputError, match="one label for each of the 10 rows"):
        log_masses(x, labels[:4])
    with pytest.raises(InputError, match="negative entry in row 0"):
        log_masses(x, -torch.ones(10, 2))
    with pytest.raises(InputError, match="must sum to 1"):
        log_masses(x, torch.ones(10, 2))


# ------------------------------------------------------------------ small batches in a few calls


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_the_surprise_of_a_small_batch_is_the_difference_of_its_masses(metric, rng):
    x, labels = points(rng).requires_grad_(), torch.tensor(HARD)
    t = torch.tensor([1.3], dtype=torch.float64, requires_grad=True)
    weight = torch.rand(10, generator=rng, dtype=torch.float64)
    masses = by_tiles(x, labels, t, metric, 0)
    lone = masses.own == -torch.inf
    expected = (masses.all - masses.own).masked_fill(lone, 0)
    loss, valid = small_surprise(x, labels, t, metric)
    assert_close(loss, expected)
    assert torch.equal(valid, ~lone)
    gradients = torch.autograd.grad((expected * weight).sum(), (x, t))
    assert_close(torch.autograd.grad((loss * weight).sum(), (x, t)), gradients)
    assert gradcheck(lambda x, t: small_surprise(x, labels, t, metric).loss, (x, t))
    mean = small_surprise(x, labels, t, metric, mean=True).loss
    expected = small_surprise(x, labels, t, metric).loss[~lone].mean()
    assert_close(mean, expected)
    gradients = torch.autograd.grad(expected, (x, t))
    assert_close(torch.autograd.grad(mean, (x, t)), gradients)


def test_a_small_surprise_keeps_its_digits_where_classes_are_well_apart(rng):
    labels = torch.arange(20) % 2
    x = 0.5 * points(rng, 20, 8, dtype=torch.float32) + 3 * labels[:, None]

    def surprise_and_gradient(x):
        x = x.clone().requires_grad_()
        # the loop's difference, log Σ all - log Σ own, as log(1 + other / own)
        d = (x[:, None] - x).square().sum(2).masked_fill(torch.eye(20, dtype=torch.bool), torch.inf)
        same = labels[:, None] == labels
        own = torch.logsumexp(-d.masked_fill(~same, torch.inf), 1)
        other = torch.logsumexp(-d.masked_fill(same, torch.inf), 1)
        loss = torch.log1p(torch.exp(other - own))
        return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    x.requires_grad_()
    loss = small_surprise(x, labels, 1.0, "sqeuclidean").loss
    exact, slope = surprise_and_gradient(x.detach().double())
    assert exact.max() < 1e-12  # far below float32's eps: 1 - share would be 0
    assert_close(loss.double(), exact, rtol=1e-4, atol=0)
    got = torch.autograd.grad(loss.sum(), x)[0].double()
    assert (got - slope).norm() / slope.norm() < 1e-4


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_rows_too_far_from_their_peers_for_one_softmax_have_their_loss_and_gradient(kind, rng):
    x, labels = points(rng), torch.tensor(HARD)
    given = torch.eye(6, dtype=torch.float64)[labels] if kind == "soft" else labels
    x[:5] += 4  # row 4 away from the others of class 1: one in e^1000 of its weight is theirs
    x.requires_grad_()
    loss, valid = small_surprise(x, given, 0.02, "sqeuclidean")
    terms = soft_terms_of_loops(x.detach().tolist(), HARD, 0.02)
    assert valid.tolist() == [term is not None for term in terms]
    assert loss.max() > 1000
    assert loss[valid].min() < 600  # others are near enough
    assert_close(loss, torch.tensor([term or 0.0 for term in terms], dtype=torch.float64))
    assert gradcheck(lambda x: small_surprise(x, given, 0.02, "sqeuclidean").loss, x)


def test_what_is_not_plain_is_left_to_the_masses(rng):
    x, labels = 2 * points(rng, dtype=torch.float32), torch.arange(10) % 2
    assert small_surprise(x, labels, 1.0, "sqeuclidean") is not None
    twins, far, zero, unknown = (x.clone() for _ in range(4))
    twins[1], far[0], zero[3], unknown[4, 1] = x[0] + 1e-6, 1e4, 0, torch.nan
    soft = torch.eye(2)[labels]
    for given in [
        (twins, labels, 1.0, "sqeuclidean"),
        (far, labels, 1.0, "sqeuclidean"),
        (zero, labels, 1.0, "cosine"),
        (unknown, labels, 1.0, "sqeuclidean"),
        (x, 2 * soft, 1.0, "sqeuclidean"),
        (x, labels, 1.0, "euclidean"),
        (x, labels, 0.0, "sqeuclidean"),
        (x, labels, torch.ones(2), "sqeuclidean"),
        (x, labels[:3], 1.0, "sqeuclidean"),
        (x[:1], labels[:1], 1.0, "sqeuclidean"),
    ]:
        assert small_surprise(*given) is None


def test_a_small_batch_is_let_go_with_its_loss_and_refuses_rows_that_changed(rng):
    x, labels = points(rng).requires_grad_(), torch.arange(10) % 2
    loss = small_surprise(x, labels, 1.0, "sqeuclidean").loss
    slopes = weakref.ref(loss.grad_fn.pairs.slopes)
    del loss
    assert slopes() is None
    loss = small_surprise(x, labels, 1.0, "sqeuclidean").loss
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


def test_a_small_batch_under_autocast_is_computed_in_its_own_precision(rng):
    x, labels = points(rng, dtype=torch.float32).requires_grad_(), torch.arange(10) % 2
    loss = soft_nearest_neighbor_terms(x, labels).loss
    expected = torch.autograd.grad(loss.sum(), x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wrapped = soft_nearest_neighbor_terms(x, labels).loss
        got = torch.autograd.grad(wrapped.sum(), x)[0]
    assert torch.equal(wrapped, loss)
    assert torch.equal(got, expected)
