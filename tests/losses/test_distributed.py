"""Two and three gloo processes with uneven shards against one process, in float64."""

import multiprocessing

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from losses import distributed_worker as worker
from vicinal import losses
from vicinal.checks import InputError


@pytest.fixture(scope="module", params=[2, 3])
def processes(request, tmp_path_factory):
    world = request.param
    folder = tmp_path_factory.mktemp("gloo")
    context = multiprocessing.get_context("forkserver")  # torch is imported once for all of them
    context.set_forkserver_preload(["vicinal.losses", "torch.nn.parallel", "safetensors.torch"])
    running = [
        context.Process(target=worker.main, args=(rank, world, str(folder)))
        for rank in range(world)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(timeout=120)
    assert [process.exitcode for process in running] == [0] * world
    rows = slice(0, sum(worker.SHARDS[world]))
    return rows, [load_file(folder / f"rank{rank}.safetensors") for rank in range(world)]


@pytest.mark.parametrize("name", worker.modules())
def test_value_and_gradient_are_those_of_one_process(name, processes):
    rows, results = processes
    loss, _ = worker.modules()[name]
    net = worker.model()
    value, own = worker.step(net, loss, name, rows, loss)
    for result in results:
        assert_close(result[f"{name}/value"], value, rtol=1e-12, atol=1e-12)
        assert_close(result[f"{name}/weight"], net.weight.grad, rtol=1e-12, atol=1e-12)
        for grad in own:
            tolerance = 1e-12 if grad.dtype == torch.float64 else 1e-6
            assert_close(result[f"{name}/temperature"], grad, rtol=tolerance, atol=tolerance)


def test_a_gradient_penalty_is_that_of_one_process(processes):
    rows, results = processes
    expected = worker.penalty(losses.NTXentLoss(), rows)
    # Before DDP takes the mean, a gradient is W times its share: twice, so W².
    world = len(results)
    assert_close(torch.cat([r["penalty"] for r in results]) / world**2, expected)


def test_labels_that_do_not_match_the_rows_are_refused_on_every_process(processes):
    _, results = processes
    for result in results:
        assert result["gather refused"]
        assert result["ring refused"]


def test_without_a_group_it_is_the_loss_itself():
    x, labels = worker.batch()
    loss = losses.TripletLoss()
    assert losses.DistributedLoss(loss)(x, labels) == loss(x, labels)


def test_a_loss_that_is_no_sum_over_pairs_has_no_ring():
    with pytest.raises(InputError, match="SoftNearestNeighborLoss, SupervisedContrastiveLoss"):
        losses.DistributedLoss(losses.TripletLoss(), mode="ring")
    with pytest.raises(InputError, match="`mode` must be one of"):
        losses.DistributedLoss(losses.TripletLoss(), mode="rings")
