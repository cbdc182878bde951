from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from similarity.zoo import ZOO, make, per_sample_gradients
from vicinal.checks import InputError
from vicinal.similarity import GradientKernel, places
from vicinal.similarity.engine import Engine
from vicinal.similarity.factors import (
    dot,
    matrix_gram,
    self_gram,
    together,
    trace_gram,
)
from vicinal.similarity.places import Places, rooms_of
from vicinal.similarity.rescale import rescaled
from vicinal.similarity.rules import conv, recurrence
from vicinal.similarity.rules.recurrence import gates, suffixes, unrolled


def gradients(captured):
    """(n, d, p) in the order of the model's parameters."""
    return torch.cat([part.factor.dense() for part in captured.parts], 2)


def in_order(model, captured, plain):
    """The columns of plain gradients in the order of the captured parts."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    starts = dict(
        zip(sizes, [0, *torch.tensor(list(sizes.values())).cumsum(0).tolist()], strict=False)
    )
    names = [name for part in captured.parts for name in part.parameters]
    return torch.cat([plain[..., starts[n] : starts[n] + sizes[n]] for n in names], -1)


@pytest.mark.parametrize("name", ZOO)
def test_factors_are_the_gradients_of_plain_autograd(name):
    model, x = make(name)
    captured = Engine(model).capture(x)
    plain = in_order(model, captured, per_sample_gradients(model, x))
    torch.testing.assert_close(gradients(captured), plain, rtol=1e-9, atol=1e-12)


def test_nothing_that_has_a_rule_inside_runs_sample_by_sample():
    for name in ("inside", "lstm_projected_packed", "gru_packed"):
        model, x = make(name)
        again = [p.parameters for p in Engine(model).capture(x).parts if "vjp" in p.rule]
        assert again in ([], [("head.weight",)]), name  # OwnScale uses its weight twice


@pytest.mark.parametrize("name", ["lstm", "lstm_packed", "gru", "inside", "weight_normed"])
def test_a_sample_alone_has_the_gradients_it_has_in_a_batch(name):
    model, x = make(name)
    engine = Engine(model)
    together = gradients(engine.capture(x))
    torch.testing.assert_close(gradients(engine.capture(x[2:3])), together[2:3])


class Unmapped(torch.autograd.Function):
    """Twice its input, by a derivative that ``vmap`` has no rule for."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return torch.from_numpy(2 * grad.numpy())


class Sequences(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 5, 2, batch_first=True), nn.Linear(5, 4)
        self.last = last

    def forward(self, x):
        return self.head(self.last(self.cell(x)[0]).mean(1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("last", ["tanh", "attention", "unmapped"])
def test_outputs_go_back_through_a_recurrence_side_by_side_where_vmap_can(last, monkeypatch):
    attention = nn.TransformerEncoderLayer(5, 1, 8, batch_first=True)
    lasts = {"tanh": torch.tanh, "attention": attention, "unmapped": Unmapped.apply}
    model = Sequences(lasts[last]).double().eval()
    x = torch.randn(6, 7, 3, dtype=torch.float64)
    engine, seen, back = Engine(model), [], recurrence._back
    engine.capture(x)
    monkeypatch.setattr(recurrence, "_back", lambda c, d, *g: seen.append(d) or back(c, d, *g))
    captured = engine.capture(x)
    assert seen == [4, 4] if last == "tanh" else set(seen) <= {1, 4}
    plain = in_order(model, captured, per_sample_gradients(model, x))
    torch.testing.assert_close(gradients(captured), plain, rtol=1e-9, atol=1e-12)


def test_an_lstm_of_many_rows_in_float32_is_that_of_float64():
    model = nn.LSTM(64, 128, 2, batch_first=True)
    net = Sequences(torch.tanh)
    net.cell, net.head = model, nn.Linear(128, 4)
    x = torch.randn(32, 6, 64)
    exact = GradientKernel(copy.deepcopy(net).double()).gram(x.double())
    torch.testing.assert_close(GradientKernel(net).gram(x).double(), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["lstm", "encoder", "gru"])
def test_gradients_on_large_pages_are_the_same(name, monkeypatch):
    model, x = make(name)
    before = gradients(Engine(model).capture(x))
    monkeypatch.setattr(places, "LARGE_BYTES", 1)
    torch.testing.assert_close(gradients(Engine(model).capture(x)), before, rtol=0, atol=0)


def test_batches_after_the_first_sum_the_uses_of_a_tied_table_alike():
    model, x = make("language_model")
    engine = Engine(model)
    first, again = engine.capture(x), engine.capture(x)
    assert [part.rule for part in first.parts] == [part.rule for part in again.parts]
    plain = in_order(model, again, per_sample_gradients(model, x))
    torch.testing.assert_close(gradients(again), plain, rtol=1e-9, atol=1e-12)


def test_uses_of_one_weight_are_kept_as_places():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    twice = Engine(nn.Sequential(model, model)).capture(torch.randn(3, 8)).parts
    assert [part.rule for part in twice] == ["ghost, shared", "dense, shared"]


@pytest.mark.parametrize("name", ZOO)
def test_every_question_to_the_factors_is_answered_as_by_the_gradients(name, rng):
    model, x = make(name)
    captured = Engine(model).capture(x)
    g = gradients(captured)
    factors, weights = captured.factors, torch.rand(len(x), generator=rng, dtype=torch.float64)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    close(self_gram(factors), torch.einsum("nip,njp->nij", g, g))
    close(trace_gram(factors, factors), torch.einsum("nip,mip->nm", g, g))
    close(matrix_gram(factors, factors), torch.einsum("nip,mjp->nmij", g, g))
    close(
        dot(factors, [f.total(weights) for f in factors]),
        torch.einsum("nip,m,mip->n", g, weights, g),
    )
    accumulated = [f.total(None, f.total()) for f in factors]
    close(dot(factors, accumulated), 2 * torch.einsum("nip,mip->n", g, g))


@pytest.mark.parametrize(
    "name",
    ["perceptron", "residual", "called_twice", "language_model", "gru", "experts", "decoder"],
)
def test_the_factors_can_be_differentiated(name):
    """d/dθ of ‖∇f‖² in a direction, against finite differences of the plain gradients."""
    model, x = make(name, n=3)
    if name == "language_model":
        x = x.clamp_min(
            1
        )  # autograd treats the padding word as constant, finite differences do not
    captured = Engine(model).capture(x, create_graph=True)
    value = torch.einsum("nii->", self_gram(captured.factors))
    params = list(model.parameters())
    grads = torch.autograd.grad(value, params, allow_unused=True, materialize_grads=True)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        direction = [torch.randn_like(p) for p in params]
    slope = sum((g * v).sum() for g, v in zip(grads, direction, strict=True))

    def moved(step):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for p, v in zip(other.parameters(), direction, strict=True):
                p += step * v
        return per_sample_gradients(other, x).square().sum()

    step = 1e-5
    numeric = (moved(step) - moved(-step)) / (2 * step)
    torch.testing.assert_close(slope, numeric, rtol=1e-5, atol=1e-6)


def test_the_rule_is_chosen_by_flops():
    found = {}
    for name in ("wide_channels", "residual", "sequences"):
        model, x = make(name)
        found[name] = {p.layer: p.rule for p in Engine(model).capture(x).parts}
    assert found["wide_channels"] == {"0": "ghost", "2": "ghost", "4": "kronecker"}
    assert set(found["residual"].values()) == {"dense", "kronecker"}
    assert found["sequences"]["0"] == "dense"


RECURRENT = ["lstm", "gru", "rnn", "lstm_started", "gru_started", "rnn_started"]


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_run_unrolled_say_what_they_say_themselves(name):
    model, x = make(name)
    inside = gates(model)
    with unrolled(inside):
        found = model(x)
    torch.testing.assert_close(found, model(x), rtol=1e-12, atol=1e-12)
    assert len(inside) == 2 * len(suffixes(model.cell))


@pytest.mark.parametrize(
    "name", ["encoder", "encoder_time_first", "decoder", "gpt", "vision", *RECURRENT]
)
def test_transformers_and_recurrent_layers_have_exact_rules(name):
    model, x = make(name)
    captured = Engine(model).capture(x)
    assert not any("vjp" in part.rule for part in captured.parts)
    for module in model.modules():
        assert "forward" not in vars(module)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_weight_that_is_computed_is_its_layers_and_not_run_again():
    model, x = make("weight_normed")
    rules = {name: part.rule for part in Engine(model).capture(x).parts for name in part.parameters}
    assert {name for name, rule in rules.items() if "vjp" in rule} == {"11.weight"}


def test_one_layer_of_an_encoder_is_watched_though_nothing_before_it_is_differentiated():
    """torch would take its fused path up to there, and nested tensors from there on."""
    model, x = make("encoder")
    captured = Engine(model, params=["layers.layers.1", "head"]).capture(x)
    plain = per_sample_gradients(
        model, x, names={n for part in captured.parts for n in part.parameters}
    )
    torch.testing.assert_close(
        gradients(captured).square().sum((1, 2)), plain.square().sum((1, 2)), rtol=1e-9, atol=1e-12
    )
    assert not any("vjp" in part.rule for part in captured.parts)


@pytest.mark.parametrize(("stride", "rule"), [(4, "ghost"), (3, "dense")])
def test_patches_that_do_not_overlap_are_kept_as_the_places_of_a_linear_layer(stride, rule):
    """d = 6: summed over its places a gradient is twice as large as they are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 4, stride), nn.Tanh(), nn.Flatten(), nn.LazyLinear(6))
    x = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    model.double()(x)
    captured = Engine(model.eval()).capture(x)
    assert captured.parts[0].rule == rule
    plain = in_order(model, captured, per_sample_gradients(model, x))
    torch.testing.assert_close(gradients(captured), plain, rtol=1e-9, atol=1e-12)


def test_rooms_of_one_kind_lie_side_by_side_and_never_overlap():
    like = [torch.empty(3, 5), torch.empty(2, 7, 1)]
    for found in (rooms_of(like, 4), rooms_of([like[0], like[1].double()], 4)):
        for i, (one, g) in enumerate(zip(found, like, strict=True)):
            assert one.shape == (4, *g.shape)
            assert one.fill_(i).is_contiguous()
        assert [set(one.flatten().tolist()) for one in found] == [{0.0}, {1.0}]
    assert len({one.untyped_storage().data_ptr() for one in rooms_of(like, 4)}) == 1


class Keyed(nn.Module):
    """Attention to keys of another width, and to one that is learned."""

    def __init__(self):
        super().__init__()
        self.read, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.mix = nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True, batch_first=True)

    def forward(self, x):
        return self.head(self.mix(self.read(x), x, x)[0].mean(1))


def test_attention_that_cannot_be_opened_is_exact_by_running_the_model_again():
    model = Keyed().double().eval()
    x = torch.randn(5, 3, 3, dtype=torch.float64)
    captured = Engine(model).capture(x)
    plain = in_order(model, captured, per_sample_gradients(model, x))
    torch.testing.assert_close(gradients(captured), plain, rtol=1e-9, atol=1e-12)
    again = {name for part in captured.parts if "vjp" in part.rule for name in part.parameters}
    assert again == {name for name, _ in model.named_parameters() if name.startswith("mix.")}


def test_rescaled_gradients_lie_together_with_others():
    one = Places(torch.randn(2, 3, 4), torch.randn(2, 3, 1, 5), bias=True)
    (other,), size = rescaled([one])
    found = (both := together([one, other])).trace_gram(both)
    torch.testing.assert_close(found[:2, 2:] * size, one.trace_gram(one))
    torch.testing.assert_close(both.total()[..., -1], one.b.sum((0, 1)) + other.total()[..., -1])


def test_the_model_comes_back_as_it_was():
    model, x = make("residual")
    model.train()
    model.norm.eval()
    model.stem.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(3, dtype=torch.float64)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flags = [m.training for m in model.modules()]
    Engine(model).capture(x)
    assert [m.training for m in model.modules()] == flags
    assert not model.stem.weight.requires_grad
    assert model.head.bias.requires_grad
    assert torch.equal(model.head.bias.grad, torch.ones(3, dtype=torch.float64))
    assert all(p.grad is None for n, p in model.named_parameters() if n != "head.bias")
    assert not any(m._forward_hooks for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_model_comes_back_as_it_was_after_an_error():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            self.layer(x)
            raise RuntimeError("inside")

    model = Fails()
    with pytest.raises(RuntimeError, match="inside"):
        Engine(model).capture(torch.ones(2, 2))
    assert model.training
    assert not model.layer._forward_hooks


def test_a_subset_of_the_parameters_is_all_that_is_differentiated():
    model, x = make("residual")
    for params, names in (
        ("head", {"head.weight", "head.bias"}),
        (["stem.bias", "act"], {"stem.bias", "act.weight"}),
        (r"weight$", {n for n, _ in model.named_parameters() if n.endswith("weight")}),
    ):
        captured = Engine(model, params=params).capture(x)
        plain = per_sample_gradients(model, x, names=names)
        assert {n for part in captured.parts for n in part.parameters} == names
        expected = torch.einsum("nip,mip->nm", plain, plain)
        found = trace_gram(captured.factors, captured.factors)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_frozen_layer_counts_only_when_it_is_named():
    model, x = make("perceptron")
    model[0].requires_grad_(False)
    assert {p.layer for p in Engine(model).capture(x).parts} == {"2", "4"}
    assert {p.layer for p in Engine(model, params="0").capture(x).parts} == {"0"}
    assert not model[0].weight.requires_grad


def test_a_layer_that_sees_time_first_is_told_from_one_that_sees_the_batch_even_at_equal_length():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.each = nn.Linear(3, 3)

        def forward(self, x):
            return self.each(x.transpose(0, 1)).tanh().sum(0)

    model = TimeFirst().double()
    x = torch.randn(5, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    captured = Engine(model, strict=False).capture(x)
    torch.testing.assert_close(gradients(captured), per_sample_gradients(model, x))


def test_a_wrong_rule_is_an_error_that_names_the_layer():
    class Mixing(nn.Module):
        """Each sample's output depends on the whole batch."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x - x.mean(0))

    with pytest.raises(InputError, match=r"`layer`.*differs from plain autograd"):
        Engine(Mixing()).capture(torch.randn(4, 3))


def test_dropout_that_stays_random_in_eval_is_noticed():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(30, 2)

        def forward(self, x):
            return self.layer(F.dropout(x, 0.5, training=True))

    with pytest.raises(InputError, match="random in eval"):
        Engine(Random()).capture(torch.ones(4, 30))


def test_an_input_overwritten_after_use_is_an_error():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            h = self.first(x)
            out = self.second(h)
            h.mul_(2)
            return out

    with pytest.raises(InputError, match="`second` was changed in place"):
        Engine(Overwrites(), strict=False).capture(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Linear(3, 2).requires_grad_(False), "no trainable parameter"),
        (nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 2)), r"must be \(n, d\)"),
        (
            nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 1)),
            "no running",
        ),
    ],
)
def test_bad_models_get_a_sentence_with_the_way_out(model, match):
    with pytest.raises(InputError, match=match):
        Engine(model).capture(torch.ones(2, 3))


def test_a_parameter_name_that_matches_nothing_gets_the_closest():
    with pytest.raises(InputError, match=r"Closest: 0\.weight"):
        Engine(nn.Sequential(nn.Linear(2, 2)), params="0.wieght")


@pytest.mark.parametrize("name", ["residual", "signals", "volumes"])
def test_convolutions_of_a_few_samples_at_a_time_are_those_of_all(name, monkeypatch):
    model, x = make(name)
    whole = gradients(Engine(model).capture(x))
    monkeypatch.setattr(conv, "CACHE_BYTES", 1)  # one sample at a time
    torch.testing.assert_close(gradients(Engine(model).capture(x)), whole)


def test_maps_whose_answers_are_added_are_multiplied_as_one(tmp_path):
    model, x = make("lstm")
    captured = (kernel := GradientKernel(model)).engine.capture(x)
    expected = trace_gram(captured.factors, captured.factors) / captured.outputs.shape[1]
    torch.testing.assert_close(kernel.gram(x, kind="inner"), expected)
    block = next(iter(kernel.blocks(x, "raw")))
    assert len(block.factors) == len(captured.parts) - 4  # two layers, both ways
    for _ in range(2):  # written, then read: no longer one tensor
        cached = GradientKernel(model, cache=tmp_path)
        torch.testing.assert_close(cached.gram(x, kind="inner"), expected)
