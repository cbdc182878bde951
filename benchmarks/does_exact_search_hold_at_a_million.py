"""Does exact search hold at a million rows? One pass, one thread, against faiss and scikit-learn.

Clustered rows of 128 dimensions, 512 queries, k = 100. The bound is the blocked matrix product with
a reused output: the arithmetic no exact search by products can avoid.
"""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.neighbors import NearestNeighbors

from benchmarks.runner import Measured, measure, print_table, save
from vicinal.neighbors import ExactSearch
from vicinal.neighbors.search.faiss import FaissSearch

D, K, QUERIES, BLOCK = 128, 100, 512, 8192


def clustered(n: int, generator: torch.Generator) -> torch.Tensor:
    centers = torch.randn(1000, D, generator=torch.Generator().manual_seed(0))
    which = torch.randint(0, 1000, (n,), generator=generator)
    return centers[which] + 0.7 * torch.randn(n, D, generator=generator)


def main(quick: bool = False, data: Path | None = None) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    import faiss

    faiss.omp_set_num_threads(1)
    n = 50_000 if quick else 1_000_000
    generator = torch.Generator().manual_seed(1)
    support, queries = clustered(n, generator), clustered(QUERIES, generator)
    product = torch.empty(QUERIES, BLOCK)
    exact = ExactSearch().build(support)
    flat = FaissSearch(kind="flat").build(support)
    brute = NearestNeighbors(n_neighbors=K, algorithm="brute", n_jobs=1).fit(support.numpy())

    def bound() -> None:
        for block in support.split(BLOCK):
            torch.mm(
                queries, block.T, out=product[:, : len(block)] if len(block) == BLOCK else None
            )

    rivals = {
        "blocked product (bound)": bound,
        "vicinal, torch": lambda: exact.query(queries, K),
        "vicinal, faiss": lambda: flat.query(queries, K),
        "scikit-learn brute": lambda: brute.kneighbors(queries.numpy()),
    }
    rows: dict[str, Measured] = measure(rivals, repeats=2, warmup=0)
    print_table(f"{n:,} x {D}, {QUERIES} queries, k={K}", rows, against="scikit-learn brute")
    base = rows["blocked product (bound)"].cpu
    shares = {f"{name}: share of bound": base / row.cpu for name, row in rows.items()}
    ours, theirs = exact.query(queries, K), flat.query(queries, K)
    agree = float((ours.indices == theirs.indices).double().mean())
    print({key: round(value, 3) for key, value in shares.items()}, "same neighbors:", agree)
    if not quick:
        facts = {**rows, **shares, "same_neighbors": agree}
        save("does_exact_search_hold_at_a_million", {f"{n} rows": facts}, k=K, queries=QUERIES)
    torch.set_num_threads(threads)  # the record above is of the one thread


if __name__ == "__main__":
    main()
