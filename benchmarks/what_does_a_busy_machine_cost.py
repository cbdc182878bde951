"""What does a search on all cores take while other processes use them as well?

OpenMP's threads wait for one another by spinning: beside a process that keeps a core busy, each
short parallel region then lasts until the scheduler gives the last thread its turn. The command
line sets ``OMP_WAIT_POLICY=PASSIVE`` before torch is loaded; in Python whoever starts the process
sets it. One exact search (wall time, in a process of its own), alone and beside as many
busy processes as there are cores: threads that spin, threads that sleep, and one thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.runner import save

SEARCH = """
import sys, time, torch
from vicinal.neighbors import ExactSearch
rows, queries, repeats = (int(word) for word in sys.argv[1:])
rng = torch.Generator().manual_seed(0)
support = torch.randn(rows, 128, generator=rng)
asked = torch.randn(queries, 128, generator=rng)
search = ExactSearch().build(support)
search.query(asked[:64], 50)
taken = []
for _ in range(repeats):
    start = time.perf_counter()
    search.query(asked, 50)
    taken.append(time.perf_counter() - start)
print(min(taken))
"""
BUSY = "while True: pass"
WAYS = {
    "threads that spin": {"OMP_WAIT_POLICY": "ACTIVE"},
    "threads that sleep": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def seconds(environment: dict[str, str], sizes: tuple[int, int, int]) -> float:
    """Wall time of the search in a process with these variables."""
    unset = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_"))}
    words = [sys.executable, "-c", SEARCH, *map(str, sizes)]
    done = subprocess.run(
        words, env=unset | environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main(quick: bool = False, data: Path | None = None) -> None:
    sizes = (2000, 256, 1) if quick else (50_000, 8192, 3)
    cores = os.cpu_count() or 1
    results: dict[str, dict[str, object]] = {way: {} for way in WAYS}
    for others in (0, cores):
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(others)]
        try:
            for way, environment in WAYS.items():
                results[way][f"beside {others}"] = seconds(environment, sizes)
        finally:
            for process in busy:
                process.kill()
    for way, found in results.items():
        alone, beside = (float(str(found[f"beside {others}"])) for others in (0, cores))
        found["slower"] = beside / alone
        print(
            f"{way:<20} alone {alone:.2f} s, beside {cores} {beside:.2f} s: {beside / alone:.1f}x"
        )
    if not quick:
        save("what_does_a_busy_machine_cost", results, cores=cores, sizes=sizes)


if __name__ == "__main__":
    main()
