"""What does a whole audit cost, against the one exact search of its query that it cannot avoid?

Embeddings of 512 dimensions, 10 classes; the audit also searches the support itself leave-one-out
(for the labels), fits and compares eight heads, and makes the record. The page is timed apart. CPU
time of the process and peak memory above the inputs.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from benchmarks.runner import measure, print_table, save
from vicinal.neighbors import ExactSearch
from vicinal.studies import Audit, audit

DIMS, CLASSES, K = 512, 10, 100


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    centers = np.random.default_rng(0).normal(size=(CLASSES, DIMS)) * 0.12
    return (centers[y] + rng.normal(size=(n, DIMS))).astype(np.float32), y


def one(n: int, m: int) -> dict[str, object]:
    """The table of one size, and the ratios that matter."""
    (z, y), (zq, yq) = rows(n, 1), rows(m, 2)
    query, support = torch.from_numpy(zq), torch.from_numpy(z)
    search, everyone = ExactSearch().build(support), torch.arange(n)
    page = Path(tempfile.mkdtemp()) / "page.html"
    found: list[Audit] = []

    def both() -> None:
        search.query(query, K)
        search.query(support, K, exclude=everyone)

    rivals = {
        "one search of the query": lambda: search.query(query, K),
        "search and leave-one-out graph": both,
        "audit": lambda: found.append(audit(support=(z, y), query=(zq, yq))),
        "page": lambda: found[-1].save(page),
    }
    table = measure(rivals, repeats=1, warmup=0)
    base = "one search of the query"
    print_table(f"support {n:,} x {DIMS}, query {m:,}", table, against=base)
    facts = {
        "audit_to_one_search": table["audit"].cpu / table[base].cpu,
        "audit_to_both_searches": table["audit"].cpu / table["search and leave-one-out graph"].cpu,
        "page_mb": page.stat().st_size / 1e6,
    }
    print({key: round(value, 2) for key, value in facts.items()})
    return {**table, **facts}


def main(quick: bool = False, data: Path | None = None) -> None:
    warnings.simplefilter("ignore")
    sizes = ((1000, 500),) if quick else ((10_000, 5_000), (50_000, 10_000))
    results = {f"{n}x{m}": one(n, m) for n, m in sizes}
    if not quick:
        save("what_does_an_audit_cost", results, dims=DIMS, k=K)


if __name__ == "__main__":
    main()
