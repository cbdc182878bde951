"""What does fitting the temperature cost, beside building the leave-one-out graph it reads?

Clustered unit rows of 128 dimensions, k = 100, one thread: 10,000 and 100,000 rows. Against Brent's
method on the same cached distances in float64 (scipy), each evaluation a pass over them.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from benchmarks.how_fast_is_exact_search import clustered
from benchmarks.runner import Measured, measure, print_table, save
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch
from vicinal.neighbors.temperature import fit_temperature

GRAPH, OURS, BRENT = "building the graph", "vicinal fit_temperature", "Brent, float64"


def brent(distances: Tensor, same: Tensor) -> float:
    d = distances.double()
    peer = same.any(1)
    d, other = d[peer], ~same[peer]

    def loss(log_t: float) -> float:
        w = d / -math.exp(log_t)
        return float((w.logsumexp(1) - w.masked_fill(other, -torch.inf).logsumexp(1)).mean())

    center = math.log(float(d[:, -1].mean()))
    return math.exp(minimize_scalar(loss, bracket=(center - 3, center)).x)


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    results: dict[str, dict[str, object]] = {}
    for n in (2_000, 5_000) if quick else (10_000, 100_000):
        labels = torch.randint(0, 100, (n,), generator=generator)
        x = clustered(n, generator, labels=labels)
        start = time.process_time()
        graph = NeighborGraph.build(ExactSearch().build(x), 100)
        built = Measured(time.process_time() - start, 0.0)
        d, same = graph.distances, labels[graph.indices] == labels[:, None]
        fits = measure(
            {
                OURS: lambda d=d, s=same: fit_temperature(d, s),
                BRENT: lambda d=d, s=same: brent(d, s),
            },
            repeats=3 if n <= 10_000 else 1,
            warmup=1 if n <= 10_000 else 0,
        )
        measured = {GRAPH: built, **fits}
        print_table(f"{n} rows, k=100", measured, against=GRAPH)
        shares = {name: round(m.cpu / built.cpu, 4) for name, m in fits.items()}
        fit = fit_temperature(d, same)
        print(
            f"share of the graph: {shares}; T = {fit.temperature:.6f} (Brent {brent(d, same):.6f})"
        )
        results[f"{n} rows, k=100"] = {
            **measured,
            "share of the graph": shares,
            "fit": fit._asdict(),
        }
    if not quick:
        save("what_does_the_temperature_fit_cost", results)
