"""How near does exact search come to the matrix product that it cannot do without?

100,000 rows of 128 dimensions (clustered, unit length), batches of 256 and 1024 queries, k = 50 and
200, one thread. The bound is the product alone, in blocks, its output thrown away. Ours return
distances computed directly, ties by index; the rivals return what they return.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from usearch.index import search as usearch_exact

from benchmarks.runner import Measured, measure, print_table, save
from vicinal.neighbors.search import ExactSearch
from vicinal.neighbors.search.faiss import FaissSearch

SLOW = "usearch, exact"  # measured once, on a part of the batch


def clustered(
    n: int, generator: torch.Generator, labels: Tensor | None = None, d: int = 128
) -> Tensor:
    """Unit rows around a hundred centers (``labels`` says which), each with a low-rank spread."""
    fixed = torch.Generator().manual_seed(1)
    centers = F.normalize(torch.randn(100, d, generator=fixed), dim=1)
    spread = 0.15 * torch.randn(16, d, generator=fixed) / 4
    if labels is None:
        labels = torch.randint(0, 100, (n,), generator=generator)
    rows = centers[labels]
    rows = rows + 0.11 * torch.randn(n, d, generator=generator)
    return F.normalize(rows + torch.randn(n, 16, generator=generator) @ spread, dim=1)


def rivals(
    x: Tensor, q: Tensor, k: int, ours: ExactSearch, ours_faiss: FaissSearch
) -> dict[str, Callable[[], object]]:
    rows, queries = x.numpy(), q.numpy()
    flat = faiss.IndexFlatL2(x.shape[1])
    flat.add(rows)
    brute = NearestNeighbors(algorithm="brute").fit(rows)
    board = torch.empty(min(len(q), 512), 1024)
    squares = x.square().sum(1)

    def bound() -> None:
        for part in q.split(512):
            for start in range(0, len(x) - 1023, 1024):
                torch.mm(part, x[start : start + 1024].T, out=board[: len(part)])

    def naive() -> object:
        return torch.addmm(squares, q, x.T, alpha=-2).topk(k, largest=False)

    return {
        "the product alone (bound)": bound,
        "vicinal ExactSearch": lambda: ours.query(q, k),
        "vicinal FaissSearch": lambda: ours_faiss.query(q, k),
        "faiss flat, as installed": lambda: flat.search(queries, k),
        "scikit-learn brute": lambda: brute.kneighbors(queries, k),
        "torch, product and topk": naive,
    }


def once(call: Callable[[], object], times: float) -> Measured:
    start = time.process_time()
    call()
    return Measured((time.process_time() - start) * times, 0.0)


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = clustered(20_000 if quick else 100_000, generator)
    ours, ours_faiss = ExactSearch().build(x), FaissSearch().build(x)
    results: dict[str, dict[str, object]] = {}
    for batch in (256, 1024):
        q = clustered(batch, generator)
        for k in (50, 200):
            case = f"{len(x)} rows, {batch} queries, k={k}"
            measured = measure(rivals(x, q, k, ours, ours_faiss), repeats=2 if quick else 4)
            part = np.ascontiguousarray(q[:32].numpy())
            measured[SLOW] = once(
                lambda k=k, part=part: usearch_exact(
                    x.numpy(), part, k, "l2sq", exact=True, threads=1
                ),
                batch / 32,
            )
            print_table(case, measured, against="the product alone (bound)")
            base = measured["the product alone (bound)"].cpu
            shares = {name: round(base / m.cpu, 3) for name, m in measured.items()}
            results[case] = {**measured, "share of the bound": shares}
    if not quick:
        kernel = "matrix product" if ours_faiss._use_blas else "loop"
        save("how_fast_is_exact_search", results, faiss_kernel=kernel, faiss=faiss.__version__)
