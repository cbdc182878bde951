"""CPU time and memory of rival ways to do one thing, as ratios within one run.

Machines are shared and noisy, so the measure is the CPU time of this process, the best of several
repeats, with the rivals interleaved: what slows one slows the others. Memory is the peak resident
set above what was resident before the call (the inputs).

    rows = measure({"dense": dense, "tiles": tiles}, repeats=5)
    print_table("SNNL, n=4096", rows, against="dense")
    save("what_does_snnl_cost", {"n=4096": rows})
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Measured:
    """CPU seconds of one call (best of repeats) and peak megabytes above the inputs."""

    cpu: float
    peak_mb: float


def measure(
    rivals: Mapping[str, Callable[[], object]], *, repeats: int = 5, warmup: int = 1
) -> dict[str, Measured]:
    """The best time of ``repeats`` calls in turn, and the peak of one call before them.

    The call that is watched for memory starts with all freed memory given back, so it pays for
    every page; the timed ones run as in a loop. With ``warmup=0`` the first timed call is the
    watched one.
    """
    gc.collect()
    gc.freeze()  # what is there already need not be looked through before every call
    best = dict.fromkeys(rivals, float("inf"))
    peaks = dict.fromkeys(rivals, 0.0)
    for round_ in range(warmup + repeats):
        for name, call in rivals.items():
            cpu, peak = _one(call, watched=round_ == 0)
            if round_ == 0:
                peaks[name] = peak
            if round_ >= warmup:
                best[name] = min(best[name], cpu)
    gc.unfreeze()
    return {name: Measured(best[name], peaks[name]) for name in rivals}


def gemm_rate(n: int = 2048, inner: int = 128, repeats: int = 5) -> float:
    """Measured float32 matrix-product rate in FLOP per CPU second: the limit to compare with."""
    a, b, out = torch.randn(n, inner), torch.randn(inner, n), torch.empty(n, n)

    def call() -> None:
        for _ in range(20):
            torch.mm(a, b, out=out)

    return 20 * 2 * n * n * inner / measure({"gemm": call}, repeats=repeats)["gemm"].cpu


def print_table(title: str, rows: Mapping[str, Measured], *, against: str) -> None:
    """One line per rival, with how many times faster and leaner than it the others are."""
    base = rows[against]
    print(f"\n{title}\n{'':<34}{'CPU ms':>10}{'peak MB':>10}{'speed':>9}{'memory':>9}")
    for name, row in rows.items():
        lean = base.peak_mb / max(row.peak_mb, 0.1)
        print(
            f"{name:<34}{row.cpu * 1e3:>10.2f}{row.peak_mb:>10.1f}"
            f"{base.cpu / row.cpu:>8.2f}x{lean:>8.1f}x"
        )


def save(question: str, results: Mapping[str, Mapping[str, object]], **facts: object) -> Path:
    """Write ``results/<question>.json`` atomically, with the machine beside the numbers."""
    plain = {
        case: {k: asdict(v) if isinstance(v, Measured) else v for k, v in rows.items()}
        for case, rows in results.items()
    }
    path = RESULTS / f"{question}.json"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    record = {"question": question, "machine": _machine(), "results": plain, **facts}
    partial.write_text(json.dumps(record, indent=1, default=float) + "\n")
    partial.replace(path)
    return path


def _one(call: Callable[[], object], *, watched: bool) -> tuple[float, float]:
    gc.collect()
    if watched:
        _give_back()
        _reset_peak()
    before, start = _status_kb("VmRSS"), time.process_time()
    call()
    cpu = time.process_time() - start
    return cpu, max(_status_kb("VmHWM") - before, 0) / 1024


def _give_back() -> None:
    """Return freed memory to the system: what the allocator keeps would hide the next peak."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_peak() -> None:
    # Where this is not Linux, or not allowed, peaks are those of the whole process.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status_kb(field: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _machine() -> dict[str, object]:
    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
