"""What do a search and an audit on all cores take while other processes use them as well?

OpenMP's threads wait for one another by spinning: beside a process that keeps a core busy, each
short parallel region then lasts until the scheduler gives the last thread its turn. Threads that
sleep at once must be woken for each. The command line sets ``OMP_WAIT_POLICY=PASSIVE`` and
``GOMP_SPINCOUNT=3000`` before torch is loaded; in Python whoever starts the process sets them. One
exact search and one audit (wall time, in a process of its own), alone and beside as many busy
processes as there are cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.runner import save

JOBS = """
import json, sys, time, warnings, torch
from vicinal import audit
from vicinal.neighbors import ExactSearch
warnings.simplefilter("ignore")
rows, queries, few, many = (int(word) for word in sys.argv[1:])
rng = torch.Generator().manual_seed(0)
support, asked = (torch.randn(n, 128, generator=rng) for n in (rows, queries))
search = ExactSearch().build(support)
labels = torch.arange(max(few, many)) % 10
z, zq = (torch.randn(n, 32, generator=rng) + labels[:n, None] / 4 for n in (few, many))
jobs = {
    "search": lambda: search.query(asked, 50),
    "audit": lambda: audit(support=(z, labels[:few]), query=(zq, labels[:many])),
}
search.query(asked[:64], 50)
audit(support=(z[:200], labels[:200]), query=(zq[:200], labels[:200]))
taken = {}
for name, job in [*jobs.items()] * 2:
    start = time.perf_counter()
    job()
    taken[name] = min(taken.get(name, 1e9), time.perf_counter() - start)
print(json.dumps(taken))
"""
BUSY = "while True: pass"
WAYS = {
    "threads that spin": {"OMP_WAIT_POLICY": "ACTIVE"},
    "threads that sleep": {"OMP_WAIT_POLICY": "PASSIVE"},
    "a moment, then sleep": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def seconds(environment: dict[str, str], sizes: tuple[int, ...]) -> dict[str, float]:
    """Wall time of each job in a process with these variables."""
    ours = ("OMP_", "MKL_", "GOMP_")
    unset = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    words = [sys.executable, "-c", JOBS, *map(str, sizes)]
    done = subprocess.run(
        words, env=unset | environment, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(quick: bool = False, data: Path | None = None) -> None:
    sizes = (2_000, 256, 300, 300) if quick else (50_000, 8_192, 5_000, 15_000)
    cores = os.cpu_count() or 1
    results: dict[str, dict[str, object]] = {
        f"{job}, {way}": {} for job in ("search", "audit") for way in WAYS
    }
    for others in (0,) if quick else (0, cores):
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(others)]
        try:
            for way, environment in [*WAYS.items()][-1:] if quick else WAYS.items():
                for job, taken in seconds(environment, sizes).items():
                    results[f"{job}, {way}"][f"beside {others}"] = taken
        finally:
            for process in busy:
                process.kill()
    for what, found in results.items():
        print(what, {beside: round(float(str(taken)), 2) for beside, taken in found.items()})
    if not quick:
        for found in results.values():
            found["slower"] = float(str(found[f"beside {cores}"])) / float(str(found["beside 0"]))
        save("what_does_a_busy_machine_cost", results, cores=cores, sizes=sizes)


if __name__ == "__main__":
    main()
