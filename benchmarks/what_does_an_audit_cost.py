"""What does a whole audit cost, against the searches that it cannot avoid, and how does it grow?

The audit searches the query in the support and the support in itself (leave-one-out, for the
labels); around that it fits and compares heads, judges every row and makes the record. Saving the
page is timed apart. CPU time of the process and peak memory above the inputs.

Two tables: wide embeddings (512 dimensions), where the searches are most of the cost; and narrow
ones (32), where what is done with the rows is, as queries or support rows double. Growth is
``(t(4n) - t(2n)) / (t(2n) - t(n))``: 2 is linear.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.runner import Measured, measure, print_table, save
from vicinal.neighbors import ExactSearch
from vicinal.studies import Audit, audit

WIDE, NARROW, CLASSES, K = 512, 32, 10, 100
SEARCHES, AUDIT, PAGE = "search and leave-one-out graph", "audit", "page"


def rows(n: int, seed: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    spread = 0.12 if dims == WIDE else 0.5
    centers = np.random.default_rng(0).normal(size=(CLASSES, dims)) * spread
    return (centers[y] + rng.normal(size=(n, dims))).astype(np.float32), y


def one(n: int, m: int, dims: int) -> dict[str, object]:
    """The table of one size, and the ratios that matter."""
    (z, y), (zq, yq) = rows(n, 1, dims), rows(m, 2, dims)
    query, support = torch.from_numpy(zq), torch.from_numpy(z)
    search, everyone = ExactSearch().build(support), torch.arange(n)
    page = Path(tempfile.mkdtemp()) / "page.html"
    found: list[Audit] = []

    def both() -> None:
        search.query(query, K)
        search.query(support, K, exclude=everyone)

    rivals = {
        "one search of the query": lambda: search.query(query, K),
        SEARCHES: both,
        AUDIT: lambda: found.append(audit(support=(z, y), query=(zq, yq))),
        PAGE: lambda: found[-1].save(page),
    }
    table = measure(rivals, repeats=1, warmup=0)
    print_table(f"support {n:,} x {dims}, query {m:,}", table, against=SEARCHES)
    facts = {
        "audit_to_one_search": table[AUDIT].cpu / table["one search of the query"].cpu,
        "audit_to_both_searches": table[AUDIT].cpu / table[SEARCHES].cpu,
        "audit_above_searches_s": table[AUDIT].cpu - table[SEARCHES].cpu,
        "page_to_both_searches": table[PAGE].cpu / table[SEARCHES].cpu,
        "page_mb": page.stat().st_size / 1e6,
    }
    print({key: round(value, 2) for key, value in facts.items()})
    return {**table, **facts}


def growth(of: str, sizes: Sequence[tuple[int, int]]) -> dict[str, dict[str, object]]:
    """One table per size, each twice the last, and the growth of the audit and of its page."""
    tables = {f"{n}x{m}x{NARROW}": one(n, m, NARROW) for n, m in sizes}
    ratios: dict[str, object] = {}
    for what in (AUDIT, PAGE):
        cpu = [cell.cpu for table in tables.values() if isinstance(cell := table[what], Measured)]
        ratios[f"{what}_growth"] = (cpu[2] - cpu[1]) / (cpu[1] - cpu[0])
    print(ratios)
    return {**tables, f"growth in {of}": ratios}


def main(quick: bool = False, data: Path | None = None) -> None:
    warnings.simplefilter("ignore")
    one(400, 300, NARROW)  # what is loaded and compiled once is not part of any size
    if quick:
        growth("queries", [(500, 500), (500, 1_000), (500, 2_000)])
        return
    wide = ((10_000, 5_000), (50_000, 10_000))
    results = {
        **{f"{n}x{m}x{WIDE}": one(n, m, WIDE) for n, m in wide},
        **growth("queries", [(5_000, 12_500), (5_000, 25_000), (5_000, 50_000)]),
        **growth("support rows", [(12_500, 5_000), (25_000, 5_000), (50_000, 5_000)]),
    }
    save("what_does_an_audit_cost", results, dims=(WIDE, NARROW), k=K)


if __name__ == "__main__":
    main()
