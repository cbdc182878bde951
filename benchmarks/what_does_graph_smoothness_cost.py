"""What does one step of the graph smoothness loss cost, complete and with k nearest neighbors?

n = 4096 and 1024, d = 128, 10 classes, k = 10, forward and backward. Rivals: the complete graph
from ``torch.cdist`` by autograd; and the k-nearest graph in the style of the authors' group: the
full similarity matrix, sorted row by row, a mask filled in one vertex at a time, made symmetric by
union, then the Laplacian and its quadratic form class by class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.runner import measure, print_table, save
from vicinal.losses import graph_smoothness_loss

D, CLASSES, K, ALPHA = 128, 10, 10, 2.0


def complete_by_cdist(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = F.normalize(x)
    w = torch.exp(-ALPHA * torch.cdist(u, u))
    return (w * (y[:, None] != y)).sum()


def nearest_vertex_by_vertex(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    u = F.normalize(x)
    w = torch.exp(-ALPHA * torch.cdist(u, u))
    order = w.detach().clone().fill_diagonal_(torch.inf).sort(1, descending=True).indices
    mask = torch.zeros_like(w)
    for vertex in range(len(x)):  # the vertex itself comes first
        mask[vertex, order[vertex, 1 : K + 1]] = 1
    w = w * (mask + mask.T).clamp_max(1)
    laplacian = w.sum(1).diag() - w
    signals = F.one_hot(y, CLASSES).to(w.dtype)
    return torch.stack([s @ laplacian @ s for s in signals.T]).sum()


def step(loss: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> object:
    return torch.autograd.grad(loss(x, y), x)


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)  # CPU time of two threads also counts how they wait for each other
    results: dict[str, dict[str, object]] = {}
    for n in (512,) if quick else (1024, 4096):
        x = torch.randn(n, D, generator=torch.Generator().manual_seed(n)).requires_grad_()
        y = torch.arange(n) % CLASSES
        calls = {
            "complete: cdist": complete_by_cdist,
            "complete: vicinal": lambda x, y: graph_smoothness_loss(x, y, alpha=ALPHA),
            "nearest: vertex by vertex": nearest_vertex_by_vertex,
            "nearest: vicinal": lambda x, y: graph_smoothness_loss(x, y, alpha=ALPHA, k=K),
        }
        steps = {name: partial(step, f, x, y) for name, f in calls.items()}
        rows = measure(steps, repeats=3)
        values = {name: float(f(x, y)) for name, f in calls.items()}
        print_table(f"graph smoothness, n={n}", rows, against="nearest: vertex by vertex")
        facts = {
            "complete_faster": rows["complete: cdist"].cpu / rows["complete: vicinal"].cpu,
            "nearest_faster": rows["nearest: vertex by vertex"].cpu / rows["nearest: vicinal"].cpu,
            "values": values,
        }
        print({k: v for k, v in facts.items() if k != "values"}, values)
        results[f"n={n}"] = {**rows, **facts}
    if not quick:
        save("what_does_graph_smoothness_cost", results, d=D, classes=CLASSES, k=K)


if __name__ == "__main__":
    main()
