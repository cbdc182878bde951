"""What one process of a gloo group does when another one is wrong, dies or hangs."""

import datetime
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from vicinal import losses, processes
from vicinal.losses import distributed, ring
from vicinal.similarity import GradientKernel
from vicinal.similarity.distributed import distributed_gram, distributed_neighbors

SECONDS = 6  # the timeout of a group in which one hangs: who waits needs all of it
LONG = 120  # of any other group, where it decides nothing, however busy the machine is
BAD = 1  # the process that is wrong, dies or hangs


def batch(rank):
    rng = torch.Generator().manual_seed(rank)
    return torch.randn(4 + rank, 3, generator=rng, requires_grad=True), torch.arange(4 + rank) % 2


def snnl(mode):
    return losses.DistributedLoss(losses.SoftNearestNeighborLoss(), mode=mode)


# ------------------------------------------------------------------ wrong on one process

WRONG = {  # what the bad process passes instead of x, labels
    "columns": lambda x, y: (x[:, :2], y),
    "dtype": lambda x, y: (x.double(), y),
    "a flat batch": lambda x, y: (x[:, 0], y),
    "no tensor": lambda x, y: ("rows", y),
    "complex rows": lambda x, y: (x.to(torch.complex64), y),
    "counts": lambda x, y: (x, y[:-1]),
    "soft labels": lambda x, y: (x, torch.eye(2)[y]),
    "labels of no sum": lambda x, y: (x, torch.eye(2)[y] * 3),
    "float labels": lambda x, y: (x, y.float()),
    "mixed labels": lambda x, y: (x, losses.MixedTargets(y, y, torch.ones(len(y)), 0.0, 2)),
    "no gradient": lambda x, y: (x.detach(), y),
}


def wrong(rank, mode):
    """The sentence of each wrong input on this process, and a loss after all of them."""
    said = {}
    for name, change in WRONG.items():
        x, y = batch(rank)
        try:
            snnl(mode)(*(change(x, y) if rank == BAD else (x, y)))
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    other = "gather" if mode == "ring" else "ring"
    try:
        snnl(other if rank == BAD else mode)(*batch(rank))
    except Exception as error:
        said["modes"] = f"{type(error).__name__}: {error}"
    said["after"] = float(snnl(mode)(*batch(rank)).detach())
    return said


# ------------------------------------------------------------------ gone


def never(*_, **__):
    time.sleep(1000)


def gone(*_, **__):
    os._exit(7)


def last(rank, how):
    """What a bad process does instead of the exchange named by ``how``; others do nothing."""
    place, end = how.split(": ")
    if rank != BAD:
        return
    act = gone if end == "dies" else never
    if place == "before":
        act()
    elif place == "ring":
        ring.passed_on = act
    elif place == "backward":
        kept = distributed.all_added
        distributed.all_added = lambda x, *rest: act() if x.ndim == 2 else kept(x, *rest)


def survive(rank, how, mode):
    """The error that ends this process when another one is gone, and after how long."""
    snnl(mode)(*batch(rank)).backward()  # all is well once
    last(rank, how)
    start = time.monotonic()
    try:
        snnl(mode)(*batch(rank)).backward()
    except processes.ProcessLost as error:
        return {"said": str(error), "seconds": time.monotonic() - start}
    return {"said": "nothing"}


def survive_kernel(rank, call):
    kernel = GradientKernel(nn.Linear(3, 2).double())
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    call(kernel, x)
    if rank == BAD:
        os._exit(7)
    start = time.monotonic()
    try:
        call(kernel, x)
    except processes.ProcessLost as error:
        return {"said": str(error), "seconds": time.monotonic() - start}
    return {"said": "nothing"}


def main(rank, world, folder, case):
    torch.set_num_threads(1)
    store = Path(folder, "store").as_uri()
    timeout = datetime.timedelta(seconds=SECONDS if "hangs" in str(case) else LONG)
    dist.init_process_group("gloo", store, rank=rank, world_size=world, timeout=timeout)
    kind, *what = case
    if kind == "wrong":
        out = wrong(rank, *what)
    elif kind == "kernel":
        calls = {"gram": distributed_gram, "neighbors": distributed_neighbors}
        out = survive_kernel(rank, calls[what[0]])
    else:
        out = survive(rank, *what)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(out))
    os._exit(0)  # a group that lost a process is not wound up
