"""What does soft-target InfoNCE cost, against the paper's listing, the GEMM floor and one-hot rows?

One thread, CPU time of forward and backward. The floor is the two matrix products any dense form
needs, 2·n²·c FLOP each, into buffers that exist. Memory is measured apart, with every tensor of its
own pages.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.runner import Measured, measure, print_table, save
from vicinal.losses import MixedTargets, info_nce


def listing(logits: Tensor, targets: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
    """Figure 2 of Hugger & Uhlmann 2024, on the device of its inputs."""
    n, c = targets.shape
    targets = targets.repeat(n, 1).unsqueeze(1).reshape(n, n, c)
    logits = logits / temperature - noise.log().unsqueeze(0)
    logits = (logits.unsqueeze(1) * targets).sum(-1)
    logits = logits - logits.max(1, keepdim=True)[0].detach()
    return F.cross_entropy(logits, torch.arange(n))


def rivals(n: int, c: int) -> dict[str, Callable[[], object]]:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(n, c, generator=rng, requires_grad=True)
    labels = torch.randint(0, c, (n,), generator=rng)
    mixed = MixedTargets(labels, labels.flip(0), torch.rand(n, generator=rng), 0.1, c)
    soft, one_hot = mixed.dense(), F.one_hot(labels, c).float()
    noise = torch.full((c,), 1 / c)
    scores, grad, fixed = torch.empty(n, n), torch.empty(n, c), z.detach()

    def step(loss: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> None:
            z.grad = None
            loss().backward()

        return run

    def floor() -> None:
        torch.mm(fixed, soft.T, out=scores)
        torch.mm(scores, soft, out=grad)

    return {
        "the paper's listing": step(lambda: listing(z, soft, noise)),
        "soft targets": step(lambda: info_nce(z, soft, noise=noise)),
        "mixed targets": step(lambda: info_nce(z, mixed, noise=noise)),
        "GEMM floor": floor,
        "one-hot rows": step(lambda: info_nce(z, one_hot, noise=noise)),
        "hard labels": step(lambda: info_nce(z, labels, noise=noise)),
    }


@contextmanager
def own_pages() -> Iterator[None]:
    """Let malloc map every large tensor by itself, so that the resident set shows what is in
    use.
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    libc.malloc_trim(0)
    libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    yield


def with_memory(times: dict[str, Measured], peaks: dict[str, Measured]) -> dict[str, Measured]:
    return {name: replace(row, peak_mb=peaks[name].peak_mb) for name, row in times.items()}


def main(quick: bool = False, data: Path | None = None) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cases = [(128, 50)] if quick else [(256, 100), (512, 200), (1024, 200), (1024, 1000)]
    times, results, facts = {}, {}, {}
    for n, c in cases:
        large = n * n * c > 1 << 27  # seconds and gigabytes for the listing: once is enough
        few = measure(rivals(n, c), repeats=1 if large else 5, warmup=0 if large else 1)
        lean = {k: v for k, v in rivals(n, c).items() if k != "the paper's listing"}
        times[n, c] = {**few, **measure(lean, repeats=5 if quick else 40)}
    with own_pages():
        for n, c in cases:
            peaks = measure(rivals(n, c), repeats=1, warmup=0)
            rows = with_memory(times[n, c], peaks)
            case = f"n={n}, c={c}"
            print_table(f"soft-target InfoNCE, {case}", rows, against="the paper's listing")
            facts[case] = {
                "soft_over_floor": rows["soft targets"].cpu / rows["GEMM floor"].cpu,
                "hard_over_one_hot": rows["one-hot rows"].cpu / rows["hard labels"].cpu,
                "mixed_over_soft": rows["soft targets"].cpu / rows["mixed targets"].cpu,
                "faster_than_listing": rows["the paper's listing"].cpu / rows["soft targets"].cpu,
                "leaner_than_listing": rows["the paper's listing"].peak_mb
                / max(rows["soft targets"].peak_mb, 0.1),
            }
            print("  " + ", ".join(f"{k} {v:.2f}" for k, v in facts[case].items()))
            results[case] = rows
    if not quick:
        save("what_does_soft_target_infonce_cost", results, ratios=facts)
    torch.set_num_threads(threads)
