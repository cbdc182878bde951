"""What does one step of the soft nearest neighbor loss cost, forward and backward?

Rivals: dense autograd (the n × n matrix, stable log-sum-exp), the usual way to write the loss; for
scale, the floor: 4 n² d floating point operations (one symmetric Gram product, once more in the
backward pass, and one symmetric product with the weights) at the measured matrix-product rate.
d = 128, 10 classes, float32. Also at 16 to 256 rows, where calls count and not arithmetic, with
hard and with soft labels.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.runner import Measured, gemm_rate, measure, print_table, save
from vicinal.losses import soft_nearest_neighbor_loss

D, CLASSES, TEMPERATURE = 128, 10, 100.0


def dense(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The formula as one would write it."""
    squares = x.square().sum(1)
    d = (squares[:, None] + squares - 2 * x @ x.T).clamp_min(0)
    s = (-d / TEMPERATURE).masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf)
    own = s + (y @ y.T).log() if y.ndim == 2 else s.masked_fill(y[:, None] != y, -torch.inf)
    return (torch.logsumexp(s, 1) - torch.logsumexp(own, 1)).mean()


def ours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return soft_nearest_neighbor_loss(x, y, temperature=TEMPERATURE)


def rivals(n: int, calls: int, soft: bool = False):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, D, generator=generator).requires_grad_()
    y = torch.arange(n) % min(CLASSES, n // 2)
    if soft:
        y = torch.randn(n, CLASSES, generator=generator).softmax(1)

    def step(loss):
        return lambda: [torch.autograd.grad(loss(x, y), x) for _ in range(calls)]

    return {"dense autograd": step(dense), "vicinal": step(ours)}, x, y


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)  # CPU time of two threads also counts how they wait for each other
    rate = gemm_rate()
    results: dict[str, dict[str, object]] = {}
    for n in (64,) if quick else (16, 64, 128, 256, 512, 1024, 4096, 16384):
        calls = max(1, min(100, 4096 // n)) if n <= 512 else 1
        both, x, y = rivals(n, calls)
        rows = measure(both, repeats=2 if n > 4096 else 3 if n > 1024 else 7, warmup=int(n <= 4096))
        rows = {k: Measured(v.cpu / calls, v.peak_mb) for k, v in rows.items()}
        floor = 4 * n * n * D / rate
        grads = [
            torch.autograd.grad(f(x, y), x)[0] for f in ((dense, ours) if n < 16384 else (ours,))
        ]
        apart = float((grads[0] - grads[-1]).norm() / grads[-1].norm())
        print_table(f"SNNL forward + backward, n={n}", rows, against="dense autograd")
        print(
            f"{'floor 4 n² d':<34}{floor * 1e3:>10.2f}{'':>10}; vicinal is "
            f"{rows['vicinal'].cpu / floor:.2f}x the floor; gradients differ by {apart:.1e}"
        )
        facts = {
            "faster": rows["dense autograd"].cpu / rows["vicinal"].cpu,
            "leaner": rows["dense autograd"].peak_mb / max(rows["vicinal"].peak_mb, 0.1),
            "floor_cpu": floor,
            "times_floor": rows["vicinal"].cpu / floor,
            "gradient_difference": apart,
        }
        results[f"n={n}"] = {**rows, **facts}
    for n in (16,) if quick else (16, 32, 64, 128):
        calls = 4096 // n
        rows = measure(rivals(n, calls, soft=True)[0], repeats=1 if quick else 7)
        rows = {k: Measured(v.cpu / calls, v.peak_mb) for k, v in rows.items()}
        print_table(f"SNNL of soft labels, n={n}", rows, against="dense autograd")
        faster = rows["dense autograd"].cpu / rows["vicinal"].cpu
        results[f"soft labels, n={n}"] = {**rows, "faster": faster}
    if not quick:
        save("what_does_snnl_cost", results, d=D, classes=CLASSES, gemm_flops=rate)


if __name__ == "__main__":
    main()
