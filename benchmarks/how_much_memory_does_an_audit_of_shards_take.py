"""How much memory does an audit of shards take, as rows grow, against the same audit in memory?

Every size runs in a process of its own, on shards of 50,000 rows: streamed under ``--memory 1GB``
(50,000 anchors, every row judged into parts), and in memory. Peak resident memory of the process,
Python and torch included, and CPU time. Flat means: the peak does not follow the rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.runner import save

DIMS, CLASSES, K, SHARD = 8, 10, 10, 50_000
MEMORY = "1GB"
CHILD = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
import vicinal
from vicinal.audits import scale
from vicinal.audits.settings import AuditSettings
support, query, memory, k = sys.argv[1:5]
if memory != "all":
    scale.needed = lambda rows, settings: 1 << 60
limit = "1000GB" if memory == "all" else memory
settings = AuditSettings(k=int(k), space="raw")
audit = vicinal.audit(support=support, query=query, settings=settings, memory=limit)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"peak_mb": peak, "cpu_s": time.process_time(), "suspects": audit.suspect_count}))
"""


def shards(folder: Path, n: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(CLASSES, DIMS)) * 1.5
    for start in range(0, n, SHARD):
        y = rng.integers(0, CLASSES, min(SHARD, n - start))
        z = (centers[y] + rng.normal(size=(len(y), DIMS))).astype(np.float32)
        wrong = rng.random(len(y)) < 0.03
        np.savez(folder / f"{start:09d}.npz", Z=z, y=np.where(wrong, (y + 1) % CLASSES, y))
    return str(folder)


def one(n: int, m: int, memory: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        sets = []
        for name, rows, seed in (("support", n, 1), ("query", m, 2)):
            folder = Path(place) / name
            folder.mkdir()
            sets.append(shards(folder, rows, seed))
        command = [sys.executable, "-c", CHILD, *sets, memory, str(K)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{n:>10,} rows  {memory:>5}  peak {found['peak_mb']:7.0f} MB  {found['cpu_s']:6.0f} s")
    return found


def main(quick: bool = False, data: Path | None = None) -> None:
    sizes = (1_000,) if quick else (100_000, 200_000, 300_000)
    results = {}
    for n in sizes:
        results[f"{n}x{DIMS} streamed"] = one(n, 2_000, MEMORY)
        results[f"{n}x{DIMS} in memory"] = one(n, 2_000, "all")
    streamed = [results[f"{n}x{DIMS} streamed"]["peak_mb"] for n in sizes]
    results["largest to smallest peak"] = {"streamed": streamed[-1] / streamed[0]}
    print(results["largest to smallest peak"])
    if not quick:
        save("how_much_memory_does_an_audit_of_shards_take", results)
