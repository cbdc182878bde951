"""Two gloo processes with uneven shards against one process, in float64."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from safetensors.torch import load_file

from similarity import distributed_worker as worker
from vicinal.checks import InputError
from vicinal.similarity import Contrast, GradientKernel
from vicinal.similarity import distributed as vd

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    context = multiprocessing.get_context("forkserver")  # torch is imported once for both
    context.set_forkserver_preload(["vicinal.similarity", "safetensors.torch"])
    running = [
        context.Process(target=worker.main, args=(rank, 2, str(folder))) for rank in range(2)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(timeout=120)
    assert [process.exitcode for process in running] == [0, 0]
    parts = [load_file(folder / f"rank{rank}.safetensors") for rank in range(2)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("name", worker.CASES)
def test_two_processes_give_the_counts_and_kernel_of_one(name, results):
    kernel, x, labels, _ = worker.case(name)
    alone = GradientKernel(kernel.engine.model, outputs=kernel.outputs)
    data = (x, labels) if kernel.within_class else x
    k = alone.gram(data).detach()
    torch.testing.assert_close(results[f"{name}/gram"], k, **CLOSE)
    torch.testing.assert_close(results[f"{name}/soft"], k.sum(1), **CLOSE)
    torch.testing.assert_close(results[f"{name}/others"], k.sum(1) - 1, **CLOSE)


def test_the_shards_of_the_test_travel_in_several_blocks():
    kernel, x, _, _ = worker.case("perceptron")
    assert len(kernel.blocks(x[: worker.SHARDS[0]], "unit")) > 1


def test_without_a_group_they_are_the_kernels_own():
    kernel, x, _, _ = worker.case("perceptron")
    assert torch.equal(vd.distributed_gram(kernel, x), kernel.gram(x))
    assert torch.equal(vd.distributed_neighbors(kernel, x), kernel.neighbors(x))


def test_adversaries_drawn_by_place_are_refused(monkeypatch):
    monkeypatch.setattr(vd.dist, "is_initialized", lambda: True)
    kernel, x, labels, _ = worker.case("within classes")
    kernel = GradientKernel(kernel.engine.model, outputs=Contrast("sampled"))
    for call in (vd.distributed_gram, vd.distributed_neighbors):
        with pytest.raises(InputError, match="place in the data"):
            call(kernel, (x, labels))
