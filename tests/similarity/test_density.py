from __future__ import annotations

import pytest
import torch
from torch import nn

from similarity.zoo import ZOO, make
from vicinal.capture import samples
from vicinal.similarity import GradientKernel
from vicinal.similarity.blocks import Blocks
from vicinal.similarity.density import soft_counts
from vicinal.similarity.outputs import Contrast

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SMALL = 1 << 19  # bytes: data are then cut in blocks, and not all are kept


def kernel_and_inputs(name="perceptron", n=40, **options):
    model, x = make(name, n=n)
    return GradientKernel(model, **options), x


@pytest.mark.parametrize("name", ["perceptron", "residual", "language_model", "called_twice"])
@pytest.mark.parametrize("budget", [SMALL, 2 << 30])
def test_the_soft_count_in_linear_time_is_the_sum_over_all_pairs(name, budget):
    kernel, x = kernel_and_inputs(name, n=24, memory_budget=budget)
    rows = GradientKernel(kernel.engine.model).gram(x).sum(1)
    torch.testing.assert_close(kernel.neighbors(x), rows, **CLOSE)
    torch.testing.assert_close(kernel.neighbors(x, include_self=False), rows - 1, **CLOSE)


@pytest.mark.parametrize("name", ZOO)
def test_a_stream_that_keeps_nothing_counts_the_same(name):
    kernel, x = kernel_and_inputs(name, n=11)
    stream = Blocks(kernel, x, "sum", budget=0)
    stream.rows = 4
    torch.testing.assert_close(soft_counts(kernel, stream, stream), kernel.gram(x).sum(1), **CLOSE)
    assert list(stream._kept) == [2]  # the last block is still in hand


def test_a_stream_within_classes_counts_the_same():
    model, x = make("residual", n=11)
    data = (x, torch.arange(11) % 2)
    kernel = GradientKernel(model, outputs=Contrast())
    stream = Blocks(kernel, data, "sum", budget=0)
    stream.rows = 4
    expected = kernel.gram(data).sum(1)
    torch.testing.assert_close(soft_counts(kernel, stream, stream), expected, **CLOSE)


@pytest.mark.parametrize("name", ["residual", "experts"])
def test_gradients_written_over_are_those_mixed_anew(name):
    """A block that is used up is mixed where it lies; nothing else may have lain there."""
    kernel, x = kernel_and_inputs(name, n=7)
    block = next(iter(kernel.blocks(x, "raw")))
    anew = block.formed("unit")
    before = [factor.dense().clone() for factor in anew.factors]
    over = block.formed("unit", spent=True)
    assert any(factor.kind == "dense" for factor in over.factors)
    for one, expected in zip(over.factors, before, strict=True):
        torch.testing.assert_close(one.dense(), expected, **CLOSE)


def test_the_soft_count_of_queries_is_over_the_data():
    kernel, x = kernel_and_inputs()
    found = kernel.neighbors(x[:30], queries=x[25:])
    torch.testing.assert_close(found, kernel.gram(x[25:], x[:30]).sum(1), **CLOSE)


@pytest.mark.parametrize("budget", [SMALL, 2 << 30])
def test_hard_and_positive_counts_are_sums_over_all_pairs(budget):
    kernel, x = kernel_and_inputs(memory_budget=budget)
    k = kernel.gram(x)
    hard = kernel.neighbors(x, estimator=("hard", 0.6))
    assert hard.tolist() == (k >= 0.6).sum(1).tolist()
    positive = kernel.neighbors(x, estimator=("positive", 3.0), include_self=False)
    torch.testing.assert_close(positive, k.clamp_min(0).pow(3).sum(1) - 1, **CLOSE)


def test_the_threshold_is_reached_from_at_least():
    """N_τ counts k ≥ τ: of two orthogonal inputs, τ = 0 counts both and any more counts one."""
    model = nn.Linear(2, 1, bias=False).double()
    kernel = GradientKernel(model)
    x = torch.eye(2, dtype=torch.float64)
    assert kernel.neighbors(x, estimator=("hard", 0.0)).tolist() == [2, 2]
    assert kernel.neighbors(x, estimator=("hard", 1e-9)).tolist() == [1, 1]


def test_the_hard_count_averaged_over_thresholds_is_the_positive_count():
    """∫₀¹ N_τ dτ = N⁺_1 (section 4.1), by the midpoint rule."""
    kernel, x = kernel_and_inputs(n=12)
    steps = 400
    thresholds = [(i + 0.5) / steps for i in range(steps)]
    k = kernel.gram(x)
    mean = sum((k >= tau).sum(1) for tau in thresholds) / steps
    at_some = kernel.neighbors(x, estimator=("hard", thresholds[170]))
    assert at_some.tolist() == (k >= thresholds[170]).sum(1).tolist()
    positive = kernel.neighbors(x, estimator=("positive", 1.0))
    assert (mean - positive).abs().max() <= len(x) / steps


def test_gradients_kept_on_disk_are_used_again(tmp_path):
    kernel, x = kernel_and_inputs("residual", memory_budget=SMALL, cache=tmp_path)
    plain = GradientKernel(kernel.engine.model)
    torch.testing.assert_close(kernel.neighbors(x), plain.neighbors(x), **CLOSE)
    torch.testing.assert_close(kernel.gram(x), plain.gram(x), **CLOSE)
    files = sorted(tmp_path.glob("*.safetensors"))
    made = kernel._store.made
    assert made == len(files) > 1
    again = GradientKernel(kernel.engine.model, memory_budget=SMALL, cache=tmp_path)
    torch.testing.assert_close(again.neighbors(x), plain.neighbors(x), **CLOSE)
    assert again._store.made == 0


def test_a_damaged_or_missing_cache_file_is_made_anew(tmp_path):
    kernel, x = kernel_and_inputs(memory_budget=1 << 17, cache=tmp_path)
    expected = kernel.neighbors(x)
    files = sorted(tmp_path.glob("*.safetensors"))
    content = bytearray(files[0].read_bytes())
    content[-3] ^= 255
    files[0].write_bytes(content)
    files[1].write_bytes(files[1].read_bytes()[:100])
    again = GradientKernel(kernel.engine.model, memory_budget=1 << 17, cache=tmp_path)
    torch.testing.assert_close(again.neighbors(x), expected, **CLOSE)
    assert again._store.made == 2
    assert not list(tmp_path.glob("*.partial"))


def test_other_weights_never_meet_old_gradients(tmp_path):
    kernel, x = kernel_and_inputs(cache=tmp_path)
    kernel.neighbors(x)
    model = kernel.engine.model
    with torch.no_grad():
        model[0].weight += 1
    fresh = GradientKernel(model).neighbors(x)
    torch.testing.assert_close(GradientKernel(model, cache=tmp_path).neighbors(x), fresh, **CLOSE)


def test_single_precision_counts_are_exact_to_a_hundred_thousandth():
    model, x = make("residual", n=60)
    exact = GradientKernel(model).neighbors(x)
    single = GradientKernel(model.float()).neighbors(x.float())
    assert ((single.double() - exact) / exact).abs().max() < 1e-5


def test_counts_of_a_convolution_s_bias_alone_need_no_weight():
    model, x = make("residual")
    names = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    whole = GradientKernel(model, params=names)
    streamed = GradientKernel(model, params=names, memory_budget=whole.bytes_each(first(x)) * 2)
    torch.testing.assert_close(streamed.neighbors(x), whole.neighbors(x), **CLOSE)


def first(x):
    return next(samples(x, 1))
