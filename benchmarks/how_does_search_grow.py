"""How does the leave-one-out graph grow with the rows: exact, chosen by cost, and the rivals?

Rows of 128 columns that vary in 24 dimensions, 100 overlapping classes: hard for lists. One thread,
CPU seconds. Building (training, lists, the exact rows that recall is measured on) is measured
whole; asking is measured on some rows and multiplied up, since rows are asked one by one.
``bare faiss`` is its usual IVF (whole rows in lists, the same centers) read as widely as ours for
its recall; ``cleanlab`` is the neighbor search of its Datalab (scikit-learn, by cosine), if it is
there.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.runner import save
from vicinal.neighbors.search import cost
from vicinal.neighbors.search.faiss import FaissSearch

SIZES, D, K, ASKED = (100_000, 300_000, 1_000_000), 128, 100, 2_000


def rows_of(n: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    centers, plane = torch.randn(100, 24, generator=draw), torch.randn(24, D, generator=draw)
    x = torch.empty(n, D)
    for part in x.split(100_000):
        which = torch.randint(0, 100, (len(part),), generator=draw)
        inner = 0.8 * centers[which] + torch.randn(len(part), 24, generator=draw)
        part.copy_(inner @ plane * 0.4 + 0.15 * torch.randn(len(part), D, generator=draw))
    return x


def seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measured(n: int, asked: int) -> dict[str, float]:
    """CPU seconds of a whole graph of n rows, engine by engine."""
    import faiss

    x = rows_of(n)
    some = torch.randperm(n, generator=torch.Generator().manual_seed(1))[:asked].sort().values
    few, scale = some[:: max(1, asked // 500)], n / asked
    flat = FaissSearch(kind="flat").build(x)
    exact = seconds(lambda: flat.query(x[few], K, exclude=few)) * n / len(few)
    out = {"exact": exact, "exact, predicted": cost.exact_seconds(n, D)}
    search = FaissSearch(kind="ivf")
    build = seconds(lambda: search.build(x))
    asking = seconds(lambda: search.query(x[some], K, exclude=some)) * scale
    out |= {"lists: build": build, "lists: ask": asking, "lists": build + asking}
    out["auto takes lists"] = float(cost.lists_may_pay(n, D))
    out["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if search.recall_ is not None and search._lists is not None:
        lists = search._lists
        out |= {"recall": search.recall_.share, "recall se": search.recall_.error}
        out |= {"lists read": lists.probes, "lists made": lists.count, "depth": lists.depth}
        rows = lists._turned(search._work.numpy())
        plain = faiss.IndexIVFFlat(lists._index.quantizer, rows.shape[1], lists.count)
        filled = seconds(lambda: plain.add(rows))
        plain.nprobe = lists.probes
        few_rows = np.ascontiguousarray(rows[few.numpy()])
        bare = seconds(lambda: plain.search(few_rows, K + 1)) * n / len(few)
        out |= {"bare faiss IVF: ask": bare, "bare faiss IVF: fill": filled}
    return out | cleanlab(x.numpy(), few.numpy())


def cleanlab(x: np.ndarray, few: np.ndarray) -> dict[str, float]:
    try:
        from cleanlab.internal.neighbor.search import construct_knn
    except ImportError:
        return {}
    knn = construct_knn(n_neighbors=K, metric="cosine", n_jobs=1).fit(x)
    return {"cleanlab": seconds(lambda: knn.kneighbors(x[few])) * len(x) / len(few)}


def growth(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """The power of the rows that CPU time grows by, from the fewest to the most."""
    sizes = [int(name[2:]) for name in found]
    first, last = found[f"n={sizes[0]}"], found[f"n={sizes[-1]}"]
    scale = math.log(sizes[-1] / sizes[0])
    powers = {name: math.log(last[name] / first[name]) / scale for name in ("exact", "lists")}
    chosen = [part["lists" if part["auto takes lists"] else "exact"] for part in (first, last)]
    return powers | {"auto": math.log(chosen[1] / chosen[0]) / scale}


def main(quick: bool = False, data: Path | None = None) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    import faiss

    faiss.omp_set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for n in (10_000, 20_000) if quick else SIZES:
        found[f"n={n}"] = measured(n, min(ASKED, n))
        print(f"\n{n:,} x {D}, k={K}")
        for name, value in found[f"n={n}"].items():
            print(f"  {name:<24}{value:>12,.3f}", flush=True)
        if len(found) > 1:
            grown = growth(found)
            print({name: round(power, 2) for name, power in grown.items()}, flush=True)
            if not quick:
                save("how_does_search_grow", {**found, "rows to the power": grown})
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
