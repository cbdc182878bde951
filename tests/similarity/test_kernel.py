from __future__ import annotations

import math
import shutil
import tempfile
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reference import gradient_kernel, inverse_root
from similarity.zoo import Named, make, per_sample_gradients
from vicinal.checks import InputError
from vicinal.similarity import Contrast, GradientKernel, denoising, fit_diagnosis
from vicinal.similarity.blocks import pairs
from vicinal.similarity.whitening import rotation_match, summarize, whiten

CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def network(d=3, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, d)).double()


def inputs(n=6, seed=1):
    return torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["inner", "influence", "correlation"])
@pytest.mark.parametrize("summary", ["trace", "matrix"])
@pytest.mark.parametrize("d", [1, 3])
def test_every_kernel_is_the_papers_formula_pair_by_pair(kind, summary, d):
    model, a, b = network(d), inputs(4), inputs(3, seed=2)
    found = GradientKernel(model).gram(a, b, kind=kind, summary=summary)
    ga, gb = per_sample_gradients(model, a), per_sample_gradients(model, b)
    for i in range(4):
        for j in range(3):
            matrix = torch.tensor(
                gradient_kernel(ga[i].tolist(), gb[j].tolist(), kind), dtype=torch.float64
            )
            expected = matrix if summary == "matrix" else matrix.diagonal().mean()
            torch.testing.assert_close(found[i, j], expected, **CLOSE)


def test_one_set_against_itself_is_two_sets_that_are_equal():
    model, x = make("residual", n=7)
    kernel = GradientKernel(model, memory_budget=1 << 20)
    for kind in ("inner", "influence", "correlation"):
        for summary in ("trace", "matrix"):
            one = kernel.gram(x, kind=kind, summary=summary)
            torch.testing.assert_close(one, kernel.gram(x, x, kind=kind, summary=summary), **CLOSE)


def test_the_correlation_has_the_properties_of_section_3():
    """Coefficients in [-1, 1], trace ≤ d, norm ≤ √d, identity at itself, symmetric."""
    model, x = network(), inputs(9)
    kernel = GradientKernel(model)
    matrix = kernel.gram(x, summary="matrix")
    assert matrix.abs().max() <= 1 + 1e-12
    assert matrix.diagonal(dim1=2, dim2=3).sum(-1).abs().max() <= 3 + 1e-12
    assert matrix.flatten(2).norm(dim=2).max() <= math.sqrt(3) + 1e-12
    own = matrix[range(9), range(9)]
    torch.testing.assert_close(own, torch.eye(3, dtype=torch.float64).expand(9, 3, 3), **CLOSE)
    torch.testing.assert_close(matrix, matrix.transpose(0, 1).mT, **CLOSE)
    trace = kernel.gram(x)
    torch.testing.assert_close(trace, trace.T, **CLOSE)
    torch.testing.assert_close(trace.diagonal(), torch.ones(9, dtype=torch.float64), **CLOSE)


def test_the_influence_operator_predicts_what_a_step_at_x_does_elsewhere():
    """Theorem 3: move f(x) by ε v with the smallest change of θ; f(x') moves by ε K(x',x) K(x,x)⁻¹
    v.
    """
    model, x = network(), inputs(4)
    operator = GradientKernel(model).gram(x, kind="influence", summary="matrix")
    gradients = per_sample_gradients(model, x)
    v, step = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 1e-5
    jacobian = gradients[0]
    change = step * jacobian.T @ torch.linalg.solve(jacobian @ jacobian.T, v)
    before = model(x)
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(flat + change, model.parameters())
    moved = (model(x) - before) / step
    torch.testing.assert_close(moved, operator[0] @ v, rtol=1e-3, atol=1e-4)


def test_equal_gradients_mean_equal_outputs():
    """Theorem 1 and its corollary: k^C = 1 only where the outputs agree."""
    model, x = network(1), inputs(30)
    x[7] = x[3]
    k = GradientKernel(model).gram(x)
    same = k >= 1 - 1e-12
    assert same.sum() == 32
    outputs = model(x)
    assert all(outputs[i] == outputs[j] for i, j in same.nonzero().tolist())


def test_the_summaries_are_what_appendix_c_says():
    kernel, x = GradientKernel(network()), inputs(5)
    matrix = kernel.gram(x, summary="matrix")
    identity = torch.eye(3, dtype=torch.float64)
    distance = (matrix - identity).flatten(2).norm(dim=2)
    squared = matrix.flatten(2).square().sum(2)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    close(kernel.gram(x, summary="distance"), 1 - distance / math.sqrt(3))
    close(kernel.gram(x, summary="distance2"), kernel.gram(x) + (1 - squared / 3) / 2)
    close(kernel.gram(x, summary="subspace"), squared / 3)
    assert (kernel.gram(x, summary="rotation") >= kernel.gram(x) - 1e-12).all()


def test_the_rotation_match_is_the_best_of_all_rotations(rng):
    two = torch.randn(20, 1, 2, 2, generator=rng, dtype=torch.float64)
    angles = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    best = torch.einsum("nij,aji->na", two[:, 0], turns).amax(1)
    torch.testing.assert_close(rotation_match(two)[:, 0], best, rtol=1e-6, atol=1e-6)
    determinant = torch.linalg.det(two)
    closed = (two.square().sum((-2, -1)) + 2 * determinant).sqrt()
    torch.testing.assert_close(rotation_match(two), closed)
    values = torch.linalg.svdvals(two)
    signed = values[..., 0] + determinant.sign() * values[..., 1]
    torch.testing.assert_close(rotation_match(two), signed)
    turned = torch.linalg.qr(torch.randn(5, 1, 4, 4, generator=rng, dtype=torch.float64))[0]
    turned[torch.linalg.det(turned) < 0] *= torch.tensor([-1.0, 1, 1, 1])[:, None]
    torch.testing.assert_close(rotation_match(turned), torch.full((5, 1), 4.0, dtype=torch.float64))


def test_log_probabilities_have_rank_one_less_and_still_are_alike_to_themselves():
    model, x = network(4), inputs(8)
    log_prob = GradientKernel(model, outputs="log_prob").gram(x)
    torch.testing.assert_close(log_prob.diagonal(), torch.ones(8, dtype=torch.float64), **CLOSE)
    assert log_prob.abs().max() <= 1 + 1e-9
    gradients = per_sample_gradients(model, x, lambda y, t: -y.log_softmax(1))
    k = torch.einsum("nip,mjp->nmij", gradients, gradients)
    roots = torch.stack(
        [
            torch.tensor(inverse_root(k[i, i].tolist(), rank=3), dtype=torch.float64)
            for i in range(8)
        ]
    )
    expected = torch.einsum("nij,nmjk,mki->nm", roots, k, roots) / 3
    torch.testing.assert_close(log_prob, expected, rtol=1e-6, atol=1e-6)
    for summary in ("distance", "distance2", "rotation", "subspace"):
        own = GradientKernel(model, outputs="log_prob").gram(x, summary=summary).diagonal()
        torch.testing.assert_close(own, torch.ones_like(own), rtol=0, atol=1e-6)


def test_a_sample_without_gradient_is_like_nothing_and_nothing_is_nan():
    model = nn.Sequential(
        nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False)
    ).double()
    x = inputs(6)
    x[2] = 0
    kernel = GradientKernel(model)
    for kind in ("inner", "influence", "correlation"):
        k = kernel.gram(x, kind=kind)
        assert torch.isfinite(k).all()
        assert not k[2].any()
        assert not k[:, 2].any()
    for summary in ("distance", "distance2", "rotation", "subspace", "matrix"):
        assert torch.isfinite(kernel.gram(x, summary=summary)).all()
        assert not kernel.gram(x, summary=summary)[2].any()
    for estimator in ("soft", ("hard", 0.5), ("positive", 2.0)):
        counts = kernel.neighbors(x, estimator=estimator)
        assert torch.isfinite(counts).all()
        assert counts[2] == 0


def test_whitening_keeps_to_the_range_of_a_singular_matrix(rng):
    half = torch.randn(4, 5, 2, generator=rng, dtype=torch.float64)
    found = whiten(half @ half.mT, precision=torch.float64)
    assert found.rank.tolist() == [2, 2, 2, 2]
    projector = found.root @ (half @ half.mT) @ found.root
    torch.testing.assert_close(projector @ projector, projector)
    torch.testing.assert_close(projector @ half, half)


def test_contrasts_compare_within_a_class():
    model, x = network(4), inputs(8)
    labels = torch.tensor([0, 1, 0, 1, 2, 2, 0, 3])
    odds = lambda y, t: (y.softmax(1)[range(len(t)), t].logit())[:, None]
    plain = per_sample_gradients(model, x, odds, labels)[:, 0]
    cosine = torch.nn.functional.cosine_similarity(plain[:, None], plain[None], dim=2)
    same = labels[:, None] == labels[None]
    found = GradientKernel(model, outputs="contrast").gram((x, labels))
    torch.testing.assert_close(found, cosine * same, **CLOSE)
    with pytest.warns(UserWarning, match="across classes"):
        across = GradientKernel(model, outputs=Contrast(within_class=False))
    torch.testing.assert_close(across.gram((x, labels)), cosine, **CLOSE)
    soft = GradientKernel(model, outputs="contrast").neighbors((x, labels))
    torch.testing.assert_close(soft, (cosine * same).sum(1), **CLOSE)


def test_a_sampled_adversary_is_the_same_at_every_pass_and_never_the_right_class():
    model, x = network(4), inputs(30)
    labels = torch.arange(30) % 4
    kernel = GradientKernel(model, outputs=Contrast("sampled"), memory_budget=60_000)
    k = kernel.gram((x, labels))
    torch.testing.assert_close(k.diagonal(), torch.ones(30, dtype=torch.float64), **CLOSE)
    torch.testing.assert_close(kernel.neighbors((x, labels)), k.sum(1), **CLOSE)
    difference = Contrast("sampled")(torch.eye(4)[labels], labels)
    assert (difference == 1).all()


def test_any_callable_can_say_what_f_is():
    model, x = network(4), inputs(5)
    pair = lambda y, t: torch.stack([y.exp().sum(1), y[:, 0]], 1)
    gradients = per_sample_gradients(model, x, pair)
    expected = torch.einsum("nip,mjp->nmij", gradients, gradients)
    kernel = GradientKernel(model, outputs=pair)
    found = kernel.gram(x, kind="inner", summary="matrix")
    torch.testing.assert_close(found, expected, **CLOSE)


def test_the_vjp_engine_gives_the_same_kernel():
    model, x = make("residual")
    close = torch.testing.assert_close
    close(GradientKernel(model, engine="vjp").gram(x), GradientKernel(model).gram(x), **CLOSE)


def test_data_may_come_in_any_form():
    model, x = network(), inputs(11)
    labels = torch.arange(11) % 3
    kernel = GradientKernel(model)
    whole = kernel.gram(x)
    data = TensorDataset(x, labels)
    forms = [
        (x, labels),
        data,
        DataLoader(data, batch_size=4),
        DataLoader(x, batch_size=3),
        DataLoader(data, batch_size=4, shuffle=True),  # read in order
        x.numpy(),
    ]
    for form in forms:
        torch.testing.assert_close(kernel.gram(form), whole, **CLOSE)


def test_single_precision_is_exact_to_a_millionth():
    for name in ("perceptron", "residual"):
        model, x = make(name, n=20)
        exact = GradientKernel(model).gram(x)
        single = GradientKernel(model.float()).gram(x.float())
        assert single.dtype == torch.float32
        assert (single.double() - exact).abs().max() < 2e-6
        model.double()


def test_topk_is_the_sorted_gram_without_the_gram():
    model, x = network(), inputs(50)
    kernel = GradientKernel(model, memory_budget=100_000)
    gram = kernel.gram(x)
    found = kernel.topk(x[:7], x, 5)
    expected = gram[:7].sort(1, descending=True)
    torch.testing.assert_close(found.similarities, expected.values[:, :5], **CLOSE)
    torch.testing.assert_close(gram[:7].gather(1, found.indices), found.similarities, **CLOSE)
    assert found.indices[:, 0].tolist() == list(range(7))


def test_a_histogram_counts_every_row_where_its_similarity_lies():
    model, x = network(), inputs(50)
    kernel = GradientKernel(model, memory_budget=100_000)
    found = kernel.histogram(x[:3], x, bins=16)
    assert found.counts.sum(1).tolist() == [50, 50, 50]
    gram = kernel.gram(x[:3], x)
    for row in range(3):
        expected = torch.histc(gram[row].clamp(-1, 1), 16, -1, 1)
        assert found.counts[row].tolist() == expected.long().tolist()


class Branching(nn.Module):
    """Without a rule, and no ``vmap`` can trace it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        return x @ self.table.mT.cumsum(0) * (2.0 if float(x.sum()) > 1e9 else 1.0)


def test_explain_names_the_rule_the_flops_and_the_bytes_of_each_layer():
    model, x = make("language_model")
    kernel = GradientKernel(model)
    promised = kernel.explain()
    assert {layer.flops for layer in promised} == {None}
    kernel.gram(x)
    found = {layer.layer: layer for layer in kernel.explain()}
    assert found["attention.in_proj"].rule == "ghost"
    assert found["words"].rule == "dense, shared"
    assert found["mix"].flops > 0
    assert found["mix"].bytes > 0
    assert "attention.out_proj" in str(kernel.explain())
    kernel = GradientKernel(Branching())
    kernel.gram(torch.randn(4, 3))
    assert "sample by sample" in str(kernel.explain())


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda k, x: k.gram(x, kind="cosine"), "kind"),
        (lambda k, x: k.gram(x, kind="inner", summary="rotation"), "correlation"),
        (lambda k, x: k.gram(x * float("nan")), "NaN"),
        (lambda k, x: k.gram(x[:0]), "empty"),
        (lambda k, x: k.gram((x, torch.zeros(2))), "targets"),
        (lambda k, x: k.gram(GradientKernel(network()).held(x)), "of another kernel"),
        (lambda k, x: k.topk(x, x, 7), "only 6 rows"),
        (lambda k, x: k.neighbors(x, estimator="hard"), "needs its parameter"),
        (lambda k, x: k.neighbors(x, estimator=("positive", 0)), "above 0"),
        (lambda k, x: GradientKernel(k.engine.model, outputs="contrast").gram(x), "needs labels"),
        (lambda k, x: GradientKernel(k.engine.model, outputs="logit"), "Did you mean 'logits'"),
        (lambda k, x: GradientKernel(k.engine.model, memory_budget=100).gram(x), "memory_budget"),
        (
            lambda k, x: GradientKernel(k.engine.model, memory_budget=9000).gram(
                x, summary="matrix"
            ),
            "topk",
        ),
    ],
)
def test_a_wrong_call_gets_a_sentence(call, match):
    x = inputs()
    if match == "topk":
        x = inputs(40)
    with pytest.raises(InputError, match=match):
        call(GradientKernel(network()), x)


def test_a_batch_norm_in_train_mode_is_read_in_eval_mode_and_said_so():
    model, x = make("residual")
    model.train()
    with pytest.warns(UserWarning, match="batch norm `norm` is in train mode"):
        kernel = GradientKernel(model)
    found = kernel.gram(x)
    torch.testing.assert_close(found, GradientKernel(model.eval()).gram(x), **CLOSE)


def test_summaries_of_one_output_are_the_cosine():
    for summary in ("trace", "rotation"):
        one = torch.tensor([[[[-0.3]]]])
        assert summarize(one, summary, torch.ones(1, 1)).item() == pytest.approx(-0.3)


@pytest.mark.parametrize("name", ["language_model", "lstm", "perceptron"])
def test_a_kernel_keeps_no_graph(name):
    """Whatever rule a layer took, what is kept are numbers: a graph would hold the whole batch."""
    model, x = make(name, n=3)
    assert not GradientKernel(model).gram(x).requires_grad


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (1e25, torch.float32),
        (1e-30, torch.float32),
        (1e170, torch.float64),
        (1e-170, torch.float64),
    ],
)
def test_gradients_whose_squares_leave_the_numbers_are_as_alike_as_any(size, kind, d):
    """Scaling the last layer's input scales every gradient of the layer alike."""

    class Scaled(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.net, self.size = network(d), size

        def forward(self, x):
            return self.net(x) * self.size

    x = inputs(7)
    expected = GradientKernel(Scaled(1.0), strict=False).gram(x).to(kind)
    kernel = GradientKernel(Scaled(size).to(kind), strict=False)
    x = x.to(kind)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(kernel.gram(x), expected, **close)
    torch.testing.assert_close(kernel.neighbors(x), expected.sum(1), **close)
    torch.testing.assert_close(
        kernel.gram(x, summary="rotation").diagonal(), torch.ones(7).to(kind)
    )
    influence = GradientKernel(Scaled(1.0), strict=False).gram(x.double(), kind="influence")
    torch.testing.assert_close(kernel.gram(x, kind="influence"), influence.to(kind), **close)
    mixed = torch.cat([x, x * 0]) if size > 1 else x  # blocks of either kind meet
    small = GradientKernel(Scaled(size).to(kind), strict=False, memory_budget=20_000)
    torch.testing.assert_close(small.gram(mixed)[:7, :7], expected, **close)


def test_a_gradient_that_is_no_number_is_refused_with_its_rows():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.layer(x).square().sqrt()

    x = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    with pytest.raises(InputError, match=r"not finite \(rows 1\)"):
        GradientKernel(Root(), strict=False).gram(x)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("budget", [2 << 30, 20_000])
def test_half_precision_models_have_every_count(kind, budget):
    model, x = network(), inputs(12)
    exact = GradientKernel(model)
    kernel = GradientKernel(network().to(kind), memory_budget=budget)
    half = x.to(kind)
    for estimator in ("soft", ("hard", 0.5), ("positive", 1.0)):
        found = kernel.neighbors(half, estimator=estimator)
        assert found.dtype == torch.float32
        if estimator != ("hard", 0.5):
            expected = exact.neighbors(x, estimator=estimator).float()
            torch.testing.assert_close(found, expected, rtol=0.1, atol=0.3)
    assert torch.isfinite(kernel.neighbors(half, queries=half[:3])).all()
    torch.testing.assert_close(kernel.gram(half).diagonal(), torch.ones(12), rtol=0, atol=1e-4)


def counted(model, x, budget, ask):
    """How often a sample is captured on average while a kernel is asked, and the kernel."""
    kernel = GradientKernel(model, memory_budget=budget)
    kernel.gram(x[:2])
    rows, capture = [], kernel.engine.capture

    def noted(x, *args, **kwargs):
        rows.append(len(x))
        return capture(x, *args, **kwargs)

    kernel.engine.capture = noted
    ask(kernel)
    return sum(rows) / len(x), kernel


@pytest.mark.parametrize("held", [40, 20, 10, 2])
def test_pairs_capture_each_sample_once_whatever_memory_holds(held):
    model, x = network(), inputs(40)
    each = sum(layer.bytes for layer in counted(model, x, 2 << 30, lambda k: 0)[1].explain())
    found, _ = counted(model, x, 2 * held * each, lambda k: k.neighbors(x, estimator=("hard", 0)))
    assert found == 1


def questions(kernel, rows, asked):
    """Everything that is asked of a data set, alone and with some queries."""
    fit = fit_diagnosis(kernel, rows, torch.arange(30) % 3)
    return [
        *(kernel.gram(asked, rows, kind=kind) for kind in ("inner", "influence", "correlation")),
        kernel.gram(rows, summary="matrix"),
        *(kernel.neighbors(rows, estimator=e) for e in ("soft", ("hard", 0.2), ("positive", 2.0))),
        kernel.neighbors(rows, queries=asked),
        *kernel.topk(asked, rows, 4),
        *kernel.histogram(asked, rows, bins=9),
        denoising(kernel, rows).factor,
        fit.count,
        fit.variance,
    ]


@pytest.mark.parametrize("budget", [2 << 30, 200_000])
def test_what_is_held_is_captured_once_and_answers_as_the_data_do(budget):
    model, x, answers, done = network(), inputs(36), [], []

    def ask(kernel):
        rows = kernel.held(x[6:], progress=lambda *how_far: done.append(how_far))
        few = kernel.held(x[:6])
        answers.extend(questions(kernel, rows, few))

    captured, _ = counted(model, x, budget, ask)
    assert captured <= 1 + 3 / 36 * 2  # the first rows of each, once more, to know their size
    assert done[-1] == (30, 30)
    expected = questions(GradientKernel(model), x[6:], x[:6])
    for found, one in zip(answers, expected, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("budget", [3000, 20_000])
def test_no_budget_captures_a_sample_more_than_twice(budget, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, x = network(), inputs(30)
    expected = GradientKernel(model).gram(x)
    asked = (
        lambda k: k.gram(x),
        lambda k: k.gram(x, x),
        lambda k: k.neighbors(x),
        lambda k: k.neighbors(x, estimator=("positive", 1.0)),
        lambda k: k.topk(x, x, 3),
    )
    for ask in asked:
        if budget < 20_000 and ask in asked[:2]:
            continue  # the matrix itself would not fit
        found, _ = counted(model, x, budget, ask)
        sides = 2 if ask in (asked[1], asked[4]) else 1
        assert found <= 2 * sides
    small = GradientKernel(model, memory_budget=10_000)
    torch.testing.assert_close(small.gram(x), expected, **CLOSE)
    assert list(tmp_path.iterdir()) == []


def test_pairs_that_take_many_steps_are_told_before(monkeypatch):
    model, x = network(), inputs(60)
    kernel = GradientKernel(model)
    kernel.gram(x[:8])
    estimate = kernel.explain().gram(60)
    assert estimate.seconds > 60 * kernel.engine.seconds
    assert "s of CPU time" in str(kernel.explain())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel.gram(x)
    monkeypatch.setattr("vicinal.similarity.blocks.LONG", 0.0)
    kernel.engine.seconds = 1e-12  # as if a step cost next to nothing
    with pytest.warns(UserWarning, match="times the forward and backward passes"):
        next(pairs(*[kernel.blocks(x, "unit")] * 2))


def test_many_captures_for_want_of_memory_and_disk_are_told_before(monkeypatch):
    model, x = network(), inputs(60)
    exact = GradientKernel(model).neighbors(x, estimator=("positive", 1.0))
    full = shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.warns(UserWarning, match=r"captured about .* times. Raise memory_budget"):
        found = GradientKernel(model, memory_budget=1312).neighbors(x, estimator=("positive", 1.0))
    torch.testing.assert_close(found, exact, **CLOSE)


@pytest.mark.parametrize("budget", [2 << 30, 20_000])
def test_inputs_by_name_and_logits_of_a_record(budget):
    torch.manual_seed(0)
    model = Named().double()
    ids = torch.randint(0, 7, (9, 5))
    mask = (torch.arange(5) < torch.randint(1, 6, (9, 1))).double()

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, both):
            return self.inner(both[:, :5].long(), both[:, 5:]).logits

    data = {"input_ids": ids, "attention_mask": mask}
    kernel = GradientKernel(model, memory_budget=budget)
    expected = GradientKernel(Alone()).gram(torch.cat([ids, mask], 1))
    torch.testing.assert_close(kernel.gram(data), expected, **CLOSE)
    torch.testing.assert_close(kernel.neighbors(data), expected.sum(1), **CLOSE)
    labeled = {**data, "labels": torch.arange(9) % 3}
    whole = GradientKernel(model, outputs="contrast", memory_budget=budget).gram(labeled)
    loader = DataLoader([{k: v[i] for k, v in labeled.items()} for i in range(9)], batch_size=4)
    torch.testing.assert_close(
        GradientKernel(model, outputs="contrast").gram(loader), whole, **CLOSE
    )
    with pytest.raises(InputError, match="same number of rows"):
        kernel.gram({"input_ids": ids, "attention_mask": mask[:4]})
