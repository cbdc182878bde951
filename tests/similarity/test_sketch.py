"""Sketched gradients on disk against the exact kernel."""

from __future__ import annotations

import pytest
import torch

from similarity.zoo import make
from vicinal.checks import InputError
from vicinal.similarity import Contrast, GradientKernel, SketchedIndex
from vicinal.similarity.factors import Dense
from vicinal.similarity.places import Places
from vicinal.similarity.sketch import sketch

BUDGET = 1 << 16  # bytes: the data come in several files


def index_of(name="perceptron", n=30, folder=None, dim=8, seed=0, **options):
    model, x = make(name, n=n)
    kernel = GradientKernel(model, memory_budget=BUDGET, **options)
    rng = torch.Generator().manual_seed(seed)
    return SketchedIndex(kernel, dim=dim, generator=rng).build(x, folder), kernel, x


@pytest.mark.parametrize("name", ["perceptron", "language_model", "residual", "wide_channels"])
def test_a_sketch_as_wide_as_the_layers_is_exact(name, tmp_path):
    index, kernel, x = index_of(name, n=8, folder=tmp_path, dim=200)
    assert index.error.largest < 1e-9
    found, exact = index.topk(x, 3), kernel.topk(x, x, 3)
    torch.testing.assert_close(found.similarities, exact.similarities)


def kinds():
    rng = torch.Generator().manual_seed(1)

    def randn(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    return {
        "one place": Places(randn(4, 1, 12), randn(4, 1, 2, 9), bias=True),
        "three places": Places(randn(4, 3, 12), randn(4, 3, 1, 9)),
        "words": Places(torch.arange(12).view(4, 3) % 7, randn(4, 3, 1, 5), vocabulary=7),
        "dense": Dense(randn(4, 2, 41)),
    }


@pytest.mark.parametrize("kind", ["one place", "three places", "words", "dense"])
def test_products_of_sketches_are_those_of_gradients_on_average_over_projections(kind):
    factor = kinds()[kind]
    g = factor.dense().flatten(1)
    draws = torch.stack([(s := sketch(factor, 4, seed)) @ s.T for seed in range(600)])
    spread = draws.std(0) / draws.shape[0] ** 0.5
    assert ((draws.mean(0) - g @ g.T).abs() < 5 * spread).all()
    assert spread.max() > 0


def test_the_reported_error_is_the_error_and_falls_with_the_dimension(tmp_path):
    errors = []
    for dim in (2, 5):
        index, kernel, x = index_of(folder=tmp_path / str(dim), dim=dim)
        found = index.topk(x, len(x))
        sketched = torch.zeros(len(x), len(x), dtype=torch.float64)
        sketched.scatter_(1, found.indices, found.similarities)
        off = (sketched - kernel.gram(x))[~torch.eye(len(x), dtype=torch.bool)]
        assert index.error.rms == pytest.approx(float(off.square().mean().sqrt()))
        assert index.error.largest == pytest.approx(float(off.abs().max()))
        assert index.error.pairs == 30 * 29 // 2
        errors.append(index.error.rms)
    assert 0 < errors[1] < errors[0]


def test_a_sample_is_its_own_nearest(tmp_path):
    index, _, x = index_of(folder=tmp_path, dim=3)
    near = index.topk(x[5:9], 1)
    assert near.indices[:, 0].tolist() == [5, 6, 7, 8]
    torch.testing.assert_close(near.similarities, torch.ones(4, 1, dtype=torch.float64))


def test_a_stopped_build_goes_on_and_a_cut_off_file_is_made_anew(tmp_path, monkeypatch):
    index, kernel, x = index_of(folder=tmp_path)
    before = index.topk(x, 4)
    files = sorted(tmp_path.glob("rows-*.safetensors"))
    assert len(files) > 2
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-9])
    made = []
    original = SketchedIndex._rows
    monkeypatch.setattr(
        SketchedIndex, "_rows", lambda self, block: made.append(1) or original(self, block)
    )
    again = SketchedIndex(kernel, dim=8, generator=torch.Generator().manual_seed(0))
    again.build(x, tmp_path)
    assert len(made) == 2
    assert torch.equal(again.topk(x, 4).indices, before.indices)
    assert not list(tmp_path.glob("*.partial"))


def test_an_index_is_opened_again_for_the_same_weights_only(tmp_path):
    index, kernel, x = index_of(folder=tmp_path)
    opened = SketchedIndex.open(kernel, tmp_path)
    assert len(opened) == len(x)
    assert opened.error == index.error
    assert torch.equal(opened.topk(x, 3).indices, index.topk(x, 3).indices)
    with torch.no_grad():
        kernel.engine.model[0].weight.add_(1.0)
    with pytest.raises(InputError, match="other weights"):
        SketchedIndex.open(kernel, tmp_path)
    with pytest.raises(InputError, match="no finished index"):
        SketchedIndex.open(kernel, tmp_path / "elsewhere")


def test_classes_are_not_compared_where_the_kernel_does_not(tmp_path):
    model, x = make("perceptron", n=12)
    y = torch.arange(12) % 3
    kernel = GradientKernel(model, outputs="contrast")
    index = SketchedIndex(kernel, dim=100).build((x, y), tmp_path)
    assert index.error.largest < 1e-9
    found = index.topk((x, y), 12)
    exact = kernel.topk((x, y), (x, y), 12)
    torch.testing.assert_close(found.similarities, exact.similarities)


def test_a_wrong_input_earns_its_sentence(tmp_path):
    model, x = make("perceptron")
    with pytest.raises(InputError, match="sampled adversaries"):
        SketchedIndex(GradientKernel(model, outputs=Contrast("sampled")))
    with pytest.raises(InputError, match="`dim` must be at least 1"):
        SketchedIndex(GradientKernel(model), dim=0)
    index = SketchedIndex(GradientKernel(model)).build(x, tmp_path)
    with pytest.raises(InputError, match="has only 5 rows"):
        index.topk(x, 6)
