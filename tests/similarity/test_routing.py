from __future__ import annotations

import pytest
import torch
from torch import nn

from similarity.zoo import CalledTwice, EarlyExit, Experts, make, per_sample_gradients
from vicinal.checks import InputError
from vicinal.similarity import GradientKernel, routing
from vicinal.similarity.engine import Engine, Replanned
from vicinal.similarity.routing import tags, whose


def cosines(model, x):
    """k^C of scalar outputs, and of several by the trace of the whitened kernel, pair by pair."""
    g = per_sample_gradients(model, x)
    k = torch.einsum("nip,mjp->nmij", g, g)
    values, vectors = torch.linalg.eigh(k[range(len(x)), range(len(x))])
    kept = values > 1e-12 * values[:, -1:]
    root = (vectors * torch.where(kept, values, 1).rsqrt()[:, None] * kept[:, None]) @ vectors.mT
    rank = kept.sum(1).clamp_min(1).double()
    return torch.einsum("nij,nmjk,mki->nm", root, k, root) / (rank[:, None] * rank[None]).sqrt()


def late_routes(n=40):
    """Inputs whose first rows never meet the last expert nor the exit."""
    x = torch.randn(n, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:20] *= 0.4
    x[25, 2] *= 9
    x[33, 0] *= 9
    return x


@pytest.mark.parametrize("budget", [2 << 30, 600_000])
@pytest.mark.parametrize("strict", [True, False])
def test_an_expert_that_only_later_rows_reach_counts_in_every_kernel(budget, strict):
    torch.manual_seed(3)
    model, x = Experts().double(), late_routes()
    kernel = GradientKernel(model, memory_budget=budget, strict=strict)
    expected = cosines(model, x)
    torch.testing.assert_close(kernel.gram(x), expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(kernel.neighbors(x), expected.sum(1), rtol=1e-7, atol=1e-9)
    best = kernel.topk(x[20:], x, k=3)
    torch.testing.assert_close(
        best.similarities, expected[20:].topk(3).values, rtol=1e-7, atol=1e-9
    )


def test_rows_that_are_held_are_made_again_once_other_rows_go_other_ways():
    torch.manual_seed(3)
    model, x = Experts().double(), late_routes()
    kernel, expected = GradientKernel(model), cosines(model, x)
    first = kernel.held(x[:20])
    torch.testing.assert_close(kernel.gram(first), expected[:20, :20], rtol=1e-7, atol=1e-9)
    both = kernel.gram(x[20:], first)  # another expert is met here
    torch.testing.assert_close(both, expected[20:, :20], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("engine", ["auto", "vjp"])
def test_an_early_exit_is_exact_though_its_scale_is_a_bare_parameter_first_reached_late(engine):
    torch.manual_seed(0)
    model, x = EarlyExit().double(), late_routes()[:, 0].contiguous()
    x[:28, 0], x[28:34, 0] = -1, 2
    kernel = GradientKernel(model, engine=engine, memory_budget=200_000)
    torch.testing.assert_close(kernel.gram(x), cosines(model, x), rtol=1e-7, atol=1e-9)
    names = {name for row in kernel.explain() for name in row.parameters if row.rule != "unreached"}
    assert names == dict(model.named_parameters()).keys()


class Sorted(nn.Module):
    """Rows go through in another order and come back, as packed sequences do."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        order = x[:, 0].argsort()
        h = torch.tanh(self.second(torch.tanh(self.first(x[order]))))
        return self.head(h)[order.argsort()]


class Recursive(nn.Module):
    """Every sample goes through one layer as often as it needs."""

    def __init__(self):
        super().__init__()
        self.step, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        h, todo = x, torch.arange(len(x))
        while len(todo):
            h = h.index_copy(0, todo, 0.6 * h[todo] + 0.3 * torch.tanh(self.step(h[todo])))
            todo = (h.detach().norm(dim=1) > 1.2).nonzero().flatten()
        return self.head(h)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("build", [Sorted, Recursive])
def test_rows_that_change_their_order_or_number_in_later_batches_stay_with_their_samples(
    build, strict
):
    torch.manual_seed(1)
    model, x = build().double(), torch.randn(16, 3).double()
    x[:6] = 0.1 * x[:6]
    x[:6, 0] = torch.arange(6) / 10  # in order, and done after one step: nothing to see yet
    kernel = GradientKernel(model, strict=strict, memory_budget=60_000)
    torch.testing.assert_close(kernel.gram(x), cosines(model, x), rtol=1e-7, atol=1e-9)


def test_what_no_sample_reaches_is_no_error_costs_nothing_and_is_told():
    class Unused(CalledTwice):
        def __init__(self):
            super().__init__()
            self.unused, self.bare = nn.Linear(300, 200), nn.Parameter(torch.ones(3))

    torch.manual_seed(0)
    model, x = Unused().double(), torch.randn(5, 4).double()
    kernel = GradientKernel(model)
    torch.testing.assert_close(kernel.gram(x), cosines(model, x), rtol=1e-7, atol=1e-9)
    rules = {row.layer: (row.rule, row.bytes) for row in kernel.explain()}
    assert rules["unused"] == ("unreached", 0)
    assert rules[""] == ("unreached", 0)


class Reordered(nn.Module):
    """Two layers that see rows in an order of their own, put back by an index at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.turned = False

    def forward(self, x):
        order = torch.arange(len(x))
        order = order.roll(1) if self.turned else order
        return self.second(self.first(x[order]).tanh())[order.argsort()]


def test_only_the_first_layer_behind_an_index_is_asked_whose_rows_it_saw(monkeypatch):
    asked = []
    told = routing.whose
    monkeypatch.setattr(routing, "whose", lambda *a: asked.append(1) or told(*a))
    model, x = Reordered().double(), torch.randn(6, 3, dtype=torch.float64)
    engine = Engine(model)
    engine.capture(x)
    asked.clear()
    engine.capture(x)
    assert len(asked) == 1  # of `second`; where its rows are in order, so are those of `first`
    model.turned = True
    with pytest.raises(Replanned):
        engine.capture(x)
    moved = torch.cat([p.factor.dense() for p in engine.capture(x).parts], 2)
    torch.testing.assert_close(moved, per_sample_gradients(model, x))


def test_experts_are_exact_rules_and_not_run_again():
    model, x = make("experts", n=9)
    rules = {part.layer: part.rule for part in Engine(model).capture(x).parts}
    assert not any("vjp" in rule for rule in rules.values())


def test_gradients_of_another_plan_do_not_mix_with_earlier_ones():
    torch.manual_seed(0)
    model, x = EarlyExit().double(), late_routes()[:, 0].contiguous()
    x[:28, 0], x[28:34, 0] = -1, 2
    engine = Engine(model)
    engine.capture(x[:4])
    with pytest.raises(Replanned, match="ask again"):
        engine.capture(x[30:36])
    found = torch.cat([p.factor.dense() for p in engine.capture(x[30:36]).parts], 2)
    expected = per_sample_gradients(model, x[30:36])
    torch.testing.assert_close(found.square().sum((1, 2)), expected.square().sum((1, 2)))


def test_rows_of_several_samples_are_told_from_rows_of_one(rng):
    base, factors = tags(6, torch.float64)
    g = torch.randn(2, 6, 5, generator=rng, dtype=torch.float64)
    order = torch.tensor([3, 1, 5, 0])
    rows = g[:, order]
    tagged = factors[:, order, None] * rows.sum(0)
    assert whose(rows, tagged, base).tolist() == order.tolist()
    rows[:, 2] = 0
    tagged[:, 2] = 0
    assert whose(rows, tagged, base).tolist() == [3, 1, -1, 0]
    both = g[:, :1] + g[:, 4:5]
    mixed = (factors[:, [0, 4], None] * g.sum(0)[[0, 4]]).sum(1, keepdim=True)
    assert whose(both, mixed, base) is None


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, torch.float32])
def test_samples_are_told_apart_in_every_precision(precision, rng):
    base, factors = tags(700, precision)
    rows = torch.randn(1, 700, 8, generator=rng).to(precision)
    tagged = (factors.to(precision)[:, :, None] * rows[0]).to(precision)
    assert whose(rows, tagged, base).tolist() == list(range(700))


def test_a_batch_norm_never_meets_a_batch_of_one():
    """torch's own backward is wrong there for a gradient that comes transposed."""

    class Transposing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)
            self.scale = nn.Parameter(torch.ones(3))
            self.head = nn.Linear(3 * 20, 2)

        def forward(self, x):
            h = self.norm(self.conv(x)).permute(2, 3, 1, 0) * self.scale[:, None]
            return self.head(h.reshape(60, -1).T)

    torch.manual_seed(0)
    model, x = Transposing().double().eval(), torch.randn(4, 2, 5, 4).double()
    whole = GradientKernel(model).gram(x, kind="inner")
    one_by_one = GradientKernel(model, memory_budget=20_000).gram(x, kind="inner")
    torch.testing.assert_close(one_by_one, whole)
    single = torch.cat([GradientKernel(model).gram(x[i : i + 1], kind="inner") for i in range(4)])
    torch.testing.assert_close(single[:, 0], whole.diagonal())


def test_a_model_that_mixes_samples_is_still_refused_when_its_rows_are_folded():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.each, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.each(x.reshape(-1, 3)).reshape(len(x), -1, 4)
            return self.head(torch.tanh(h + h.mean(0)).mean(1))

    with pytest.raises(InputError, match="influence one another"):
        GradientKernel(Mixing()).gram(torch.randn(5, 2, 3))
