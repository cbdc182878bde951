"""What does Ray cost beyond start-up: the same search in one process, and in one and two workers?

CPU time, since other work on the machine does not change it: of the process that asks, and of the
workers (from ``/proc``). Efficiency is the CPU time of one process over that of all processes; on
as many idle cores as workers it is what is left of their speed. Neighbors are checked to be equal.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from benchmarks.runner import save
from vicinal.neighbors.search import ExactSearch, RaySearch

DIMS, K = 64, 50


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)
    n, m = (5_000, 1_000) if quick else (100_000, 8_192)
    generator = torch.Generator().manual_seed(0)
    x, q = torch.randn(n, DIMS, generator=generator), torch.randn(m, DIMS, generator=generator)
    whole = ExactSearch().build(x)
    start = time.process_time()
    truth = whole.query(q, K)
    alone = time.process_time() - start
    results = {"one process": {"cpu_s": alone}}
    for workers in (1, 2):
        search = RaySearch(workers=workers).build(x)
        pids = search.ray.get([actor.ready.remote() for actor in search.actors])
        search.query(q[:64], K)  # what is loaded once
        before, start = sum(map(cpu_of, pids)), time.process_time()
        found = search.query(q, K)
        asking = time.process_time() - start
        total = sum(map(cpu_of, pids)) - before + asking
        assert torch.equal(found.indices, truth.indices)
        results[f"{workers} workers"] = {
            "cpu_s": total,
            "asking_cpu_s": asking,
            "efficiency": alone / total,
        }
        print(f"{workers} workers: {total:.2f} s against {alone:.2f} s, {alone / total:.2f}")
        del search
    if not quick:
        save("what_does_ray_cost", results, rows=n, queries=m, dims=DIMS, k=K)
