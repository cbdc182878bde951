"""The graph smoothness loss is the Laplacian's quadratic form in the labels, edge by edge."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.testing import assert_close

from reference import graph_smoothness, nearest
from vicinal.checks import InputError
from vicinal.losses import GraphSmoothnessLoss, graph_smoothness_loss
from vicinal.losses.graph_flow import _plain, _walk
from vicinal.neighbors.distances import unit_rows

SYMMETRIES = ("union", "mutual", "directed")


def batch(rng, n=14, d=3, classes=3):
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    return x, torch.randint(0, classes, (n,), generator=rng)


def soft_labels(rng, n=14, classes=3):
    return torch.rand(n, classes, generator=rng, dtype=torch.float64).softmax(1)


def chosen(x, k, symmetry):
    """Edges by plain search: (n, n) booleans."""
    out = [[False] * len(x) for _ in x]
    for i in range(len(x)):
        for _, j in nearest(x[i], x, k, exclude=i):
            out[i][j] = True
    n = range(len(x))
    if symmetry == "union":
        return [[out[i][j] or out[j][i] for j in n] for i in n]
    if symmetry == "mutual":
        return [[out[i][j] and out[j][i] for j in n] for i in n]
    return out


def test_it_is_the_trace_of_the_laplacian_between_the_labels(rng):
    x, y = batch(rng)
    u = unit_rows(x)
    w = torch.exp(-2 * torch.cdist(u, u)).fill_diagonal_(0)
    one_hot = F.one_hot(y).double()
    laplacian = w.sum(1).diag() - w
    assert_close(graph_smoothness_loss(x, y), (one_hot.T @ laplacian @ one_hot).trace())


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@pytest.mark.parametrize("k", [None, 1, 3, 13, 50])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_it_is_the_sum_of_a_plain_loop_over_the_edges(symmetry, k, kind, rng):
    x, y = batch(rng)
    y = soft_labels(rng) if kind == "soft" else y
    u = unit_rows(x)
    edges = None if k is None or k >= 13 else chosen(u, k, symmetry)
    expected = graph_smoothness(u, y, 1.5, edges)
    got = graph_smoothness_loss(x, y, alpha=1.5, k=k, symmetry=symmetry)
    assert_close(got.item(), expected, rtol=1e-10, atol=1e-12)
    nodes = graph_smoothness_loss(x, y, alpha=1.5, k=k, symmetry=symmetry, reduction="none")
    assert_close(nodes.sum(), got)
    for i in (0, 5):  # a node's value is the sum over its own edges
        only = [[i == m and (edges is None or edges[i][n]) for n in range(14)] for m in range(14)]
        assert_close(nodes[i].item(), graph_smoothness(u, y, 1.5, only), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [None, 4])
def test_the_mean_is_per_ordered_edge_between_classes(k, rng):
    x, y = batch(rng)
    edges = chosen(unit_rows(x), k or 13, "union")
    across = sum(edges[i][j] and bool(y[i] != y[j]) for i in range(14) for j in range(14))
    assert_close(
        graph_smoothness_loss(x, y, k=k, reduction="mean") * across,
        graph_smoothness_loss(x, y, k=k),
    )
    one_hot = F.one_hot(y).double()
    assert_close(
        graph_smoothness_loss(x, one_hot, k=k, reduction="mean"),
        graph_smoothness_loss(x, y, k=k, reduction="mean"),
    )


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_gradients_are_those_of_finite_differences(k, kind, reduction, rng):
    x, y = batch(rng, 7)
    y = soft_labels(rng, 7) if kind == "soft" else y
    loss = GraphSmoothnessLoss(k=k, reduction=reduction)
    assert gradcheck(lambda x: loss(x, y), (x.requires_grad_(),))


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("spread", [1.0, 1e-8])
def test_tiles_are_all_pairs_at_once_with_any_upstream(kind, spread, rng):
    x, y = batch(rng, 40)
    x[:20] = x[0] + spread * x[:20]  # half of them near one another, two the same
    x[7] = x[9]
    y = torch.arange(40) % 3 if kind == "hard" else soft_labels(rng, 40)
    upstream = torch.randn(40, generator=rng, dtype=torch.float64)
    u = unit_rows(x).requires_grad_()
    plain = _plain(u, y, 2.0, False, False)
    (expected,) = torch.autograd.grad(plain @ upstream, u)
    for size in (7, 16, 64):
        flow, steps = _walk(u.detach(), y, 2.0, upstream, True, size)
        assert_close(flow, plain.detach(), rtol=1e-9, atol=1e-12)
        assert_close(steps, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["plain", "zero row", "near", "large", "soft"])
@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_batches_of_every_kind_have_the_gradient_of_the_plain_formula(case, k, reduction, rng):
    n = 40 if case != "large" else 600  # more than one tile
    x, y = batch(rng, n, 5)
    if case == "zero row":
        x[3] = 0
    if case == "near":
        x[1], y[0], y[1] = x[0] + 1e-9, 0, 1
    y = soft_labels(rng, n) if case == "soft" else y
    x.requires_grad_()
    upstream = torch.rand(n if reduction == "none" else 1, generator=rng, dtype=torch.float64)

    def call(x):
        return (graph_smoothness_loss(x, y, k=k, reduction=reduction) * upstream).sum()

    (quick,) = torch.autograd.grad(call(x), x)
    (plain,) = torch.autograd.grad(call(x), x, create_graph=True)  # formed as ordinary operations
    assert_close(quick, plain, rtol=1e-6, atol=1e-7)
    assert_close(call(x.detach()), call(x).detach())


def test_duplicates_across_classes_weigh_one_and_have_no_direction():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    loss = graph_smoothness_loss(x, torch.tensor([0, 1]))
    assert_close(loss, torch.tensor(2.0))
    assert torch.equal(torch.autograd.grad(loss, x)[0], torch.zeros(2, 2))


@pytest.mark.parametrize("gap", [1e-3, 1e-5])
def test_near_duplicates_across_classes_push_apart_with_full_force(gap, rng):
    x = unit_rows(torch.randn(30, 8, generator=rng))
    away = unit_rows(torch.randn(8, generator=rng))
    x[1] = x[0] + gap * away
    y = torch.zeros(30, dtype=torch.long)
    y[1] = 1
    x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = graph_smoothness_loss(
            x, y, normalize=False, k=1, symmetry="directed", reduction="none"
        )
        full = graph_smoothness_loss(x, y, normalize=False, reduction="none")
    for nodes in (loss, full):
        (g,) = torch.autograd.grad(nodes[0], x, retain_graph=True)
        expected = 2 * math.exp(-2 * gap) * unit_rows((x[0] - x[1]).detach())
        assert_close(-g[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0]])
def test_one_class_or_one_row_is_zero_with_zero_gradient(labels, rng):
    y = torch.tensor(labels)
    x = torch.randn(len(y), 3, generator=rng).requires_grad_()
    for reduction in ("sum", "mean"):
        loss = graph_smoothness_loss(x, y, reduction=reduction)
        assert loss == 0
        assert torch.equal(torch.autograd.grad(loss, x)[0], torch.zeros_like(x))


def test_ties_go_to_the_lower_index():
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])  # 1 and 2 are as far from 0
    y = torch.tensor([0, 1, 0])
    nodes = graph_smoothness_loss(x, y, k=1, symmetry="directed", reduction="none")
    assert_close(nodes[0].item(), math.exp(-2 * math.sqrt(2)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("k", [None, 2])
def test_nan_gives_nan_and_halves_are_computed_in_float32(k, rng):
    x, y = batch(rng)
    half = graph_smoothness_loss(x.half(), y, k=k)
    assert half.dtype == torch.float32
    assert_close(half.double(), graph_smoothness_loss(x.half().double(), y, k=k), rtol=1e-5, atol=0)
    x[2, 0] = torch.nan
    assert graph_smoothness_loss(x, y, k=k).isnan()


@pytest.mark.parametrize("k", [None, 2])
def test_compiles_into_one_graph(k, rng):
    x, y = batch(rng)
    x.requires_grad_()

    def loss(x):
        return graph_smoothness_loss(x, y, k=k)

    torch._dynamo.reset()
    assert torch._dynamo.explain(loss)(x).graph_break_count == 0
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), loss(x))
    assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(loss(x), x))


def test_wrong_inputs_are_named_and_raw_outputs_warned_of(rng):
    x, y = batch(rng)
    for arguments, words in [
        ({"alpha": 0.0}, "`alpha`"),
        ({"k": 0}, "`k` must be a whole number"),
        ({"symmetry": "both"}, "`symmetry` must be one of"),
        ({"reduction": "max"}, "`reduction` must be one of"),
    ]:
        with pytest.raises(InputError, match=words):
            graph_smoothness_loss(x, y, **arguments)
    with pytest.raises(InputError, match="one label for each of the 14 rows"):
        graph_smoothness_loss(x, y[:3])
    with pytest.warns(UserWarning, match="scattered to infinity"):
        graph_smoothness_loss(x, y, normalize=False)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_zero_row_is_one_away_from_every_unit_row_in_sums_as_in_rows(reduction):
    x = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, -2.0]], dtype=torch.float64)
    labels, edge = torch.tensor([0, 1, 1]), math.exp(-2.0)
    assert_close(
        graph_smoothness_loss(x, labels, reduction="none"),
        torch.tensor([2 * edge, edge, edge], dtype=torch.float64),
    )
    total = graph_smoothness_loss(x, labels, reduction=reduction)
    assert_close(float(total), 4 * edge if reduction == "sum" else edge)
