"""What does one step of the graph smoothness loss cost, complete and with k nearest neighbors?

n = 16 to 4096, d = 128, 10 classes, k = 10, forward and backward. Rivals: the complete graph from
``torch.cdist`` by autograd; and from n = 1024 on the k-nearest graph in the style of the authors'
group: the full similarity matrix, sorted row by row, a mask filled in one vertex at a time, made
symmetric by union, then the Laplacian and its quadratic form class by class.
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


def steps(loss: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.autograd.grad(loss(x, y), x)


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)  # CPU time of two threads also counts how they wait for each other
    results: dict[str, dict[str, object]] = {}
    complete = {
        "complete: cdist": complete_by_cdist,
        "complete: vicinal": lambda x, y: graph_smoothness_loss(x, y, alpha=ALPHA),
    }
    nearest = {
        "nearest: vertex by vertex": nearest_vertex_by_vertex,
        "nearest: vicinal": lambda x, y: graph_smoothness_loss(x, y, alpha=ALPHA, k=K),
    }
    for n in (512,) if quick else (16, 64, 128, 512, 1024, 4096):
        x = torch.randn(n, D, generator=torch.Generator().manual_seed(n)).requires_grad_()
        y = torch.arange(n) % CLASSES
        few = n < 1024 and not quick
        calls, times = complete if few else complete | nearest, max(1, 1024 // n) if few else 1
        rows = measure(
            {name: partial(steps, f, x, y, times) for name, f in calls.items()},
            repeats=7 if few else 3,
        )
        values = {name: float(f(x.detach(), y)) for name, f in calls.items()}
        print_table(f"graph smoothness, n={n}", rows, against="complete: cdist")
        facts: dict[str, object] = {
            "steps": times,
            "complete_faster": rows["complete: cdist"].cpu / rows["complete: vicinal"].cpu,
            "values": values,
        }
        if not few:
            slow, quicker = rows["nearest: vertex by vertex"], rows["nearest: vicinal"]
            facts["nearest_faster"] = slow.cpu / quicker.cpu
        print(facts)
        results[f"n={n}"] = {**rows, **facts}
    if not quick:
        save("what_does_graph_smoothness_cost", results, d=D, classes=CLASSES, k=K)


if __name__ == "__main__":
    main()
