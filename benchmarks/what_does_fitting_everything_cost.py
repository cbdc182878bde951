"""What does it cost to fit everything, in leave-one-out graphs of the same rows?

Overlapping classes, 10,000 rows of 128 dimensions, 10 or 100 classes, k = 100, one thread. Beside
building the graph: choosing the space, the linear view, and the whole of ``NEDLinear`` with NED's
space, temperature, sharpness, background and class bandwidths fitted, its graph included.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from benchmarks.runner import measure, print_table, save
from vicinal.confidence import LinearClassifier, NEDClassifier, NEDLinear
from vicinal.confidence.ned.space import fit_space
from vicinal.labels import labels_of
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import ExactSearch

K, DIMENSIONS = 100, 128
GRAPH, WHOLE = "building the graph", "NEDLinear, everything fitted"


def embeddings(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Class means in 24 dimensions of 128, and noise that is not alike in all."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(classes, 24, generator=rng) @ torch.randn(24, DIMENSIONS, generator=rng)
    y = torch.randint(0, classes, (n,), generator=rng)
    noise = torch.randn(n, DIMENSIONS, generator=rng) * torch.linspace(0.3, 2, DIMENSIONS)
    return centers[y] * 0.1 + noise, y


def everything() -> NEDLinear:
    ned = NEDClassifier(K, sharpness="fit", background="fit", bandwidth="class", space="fit")
    return NEDLinear(ned)


def main(quick: bool = False, data: Path | None = None) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    n, results = 1_000 if quick else 10_000, {}
    for classes in (10, 100):
        x, y = embeddings(n, classes)
        search, labels = ExactSearch().build(x), labels_of(y, n)
        rows = measure(
            {
                GRAPH: lambda s=search: NeighborGraph.build(s, K),
                "choosing the space": lambda x=x, labels=labels: fit_space(
                    "fit", x, labels, k=K, metric="sqeuclidean", temperature=None
                ),
                "the linear view": lambda x=x, y=y: LinearClassifier().fit(x, y),
                WHOLE: lambda x=x, y=y: everything().fit(x, y),
            },
            repeats=1 if quick else 2,
            warmup=0,
        )
        print_table(f"{n:,} x {DIMENSIONS}, {classes} classes", rows, against=GRAPH)
        graphs = {name: round(m.cpu / rows[GRAPH].cpu, 2) for name, m in rows.items()}
        results[f"{n} rows, {classes} classes"] = {**rows, "in graphs": graphs}
    if not quick:
        save("what_does_fitting_everything_cost", results)
