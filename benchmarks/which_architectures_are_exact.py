"""Which architectures have exact gradient kernels, and at what cost?

Each network of `architectures` at n = 64 with d = 1 and 10 outputs: k^C and N_S as times of one
forward and d backward passes of the same batch, and of what anyone would write first, a loop over
the samples (at n = 24 as well); the peak of memory while the matrix is made, the share of
parameters under each rule, and the largest error of the kernel of eight samples against per-sample
autograd, both in float64. ``name=`` asks those whose name holds it.

On one thread, CPU time, the best of three after a warm-up.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.architectures import Data, architectures
from benchmarks.runner import RESULTS, measure, save
from vicinal.similarity import GradientKernel

QUESTION = "which_architectures_are_exact"


def answer(model: nn.Module, data: Data) -> Tensor:
    out = model(data) if isinstance(data, Tensor) else model(**data)
    return getattr(out, "logits", out)


def by_loop(model: nn.Module, data: Data) -> Tensor:
    """Gradients ``(n, d, p)``, one sample after another by plain autograd: the naive way."""
    params, rows = [p for p in model.parameters() if p.requires_grad], []
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    for i in range(len(data if isinstance(data, Tensor) else next(iter(data.values())))):
        at = slice(i, i + 1)
        one = data[at] if isinstance(data, Tensor) else {k: v[at] for k, v in data.items()}
        f = answer(model, one)
        each = [torch.autograd.grad(v, params, **options) for v in f[0]]
        rows.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in each]))
    return torch.stack(rows)


def counted(gradients: Tensor) -> Tensor:
    """N_S of gradients ``(n, d, p)``, whitened and of norm 1; k^C itself would take longer."""
    n, d, _ = gradients.shape
    if d == 1:
        unit = F.normalize(gradients[:, 0], dim=1)
    else:
        values, vectors = torch.linalg.eigh(gradients @ gradients.mT)
        unit = ((vectors * values.rsqrt()[:, None]) @ vectors.mT @ gradients).view(n, -1)
    return unit @ unit.sum(0) / d


def error(model: nn.Module, make: Any, n: int = 8) -> float:
    """Of k^I of n samples, relative to its largest entry, in float64."""
    model = copy.deepcopy(model).double().eval()
    data = make(n, torch.float64)
    plain = by_loop(model, data)
    exact = torch.einsum("nip,mip->nm", plain, plain) / plain.shape[1]
    found = GradientKernel(model).gram(data, kind="inner")
    return float((found - exact).abs().max() / exact.abs().max())


def against_the_loop(
    model: nn.Module, kernel: GradientKernel, make: Any, n: int, repeats: int
) -> dict[str, float]:
    """k^C and N_S of n samples in times of the loop over them."""
    data = make(n, torch.float32)
    calls = {
        "k^C": lambda: kernel.gram(data),
        "N_S": lambda: kernel.neighbors(data),
        "loop": lambda: counted(by_loop(model, data)),
    }
    found = measure(calls, repeats=repeats, warmup=0)  # all of them ran before
    return {name: found[name].cpu / found["loop"].cpu for name in ("k^C", "N_S")}


def row(build: Callable[[int], nn.Module], make: Any, n: int, d: int, repeats: int) -> dict:
    torch.manual_seed(0)
    model = build(d).eval()
    data, kernel = make(n, torch.float32), GradientKernel(model)
    params = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        y = answer(model, data)
        for j in range(d):
            torch.autograd.grad(y[:, j].sum(), params, retain_graph=j < d - 1, allow_unused=True)

    calls = {"step": step, "k^C": lambda: kernel.gram(data), "N_S": lambda: kernel.neighbors(data)}
    found = measure(calls, repeats=repeats)
    loops = {
        size: against_the_loop(model, kernel, make, size, repeats)
        for size in sorted({min(24, n), n})
    }
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    shares: dict[str, float] = {}
    for layer in kernel.explain():
        own = sum(sizes[name] for name in layer.parameters) / sum(sizes.values())
        shares[layer.rule] = shares.get(layer.rule, 0.0) + own
    ruled = sum(share for rule, share in shares.items() if "vjp" not in rule)
    return {
        "step_cpu": found["step"].cpu,
        "k^C_times_step": found["k^C"].cpu / found["step"].cpu,
        "N_S_times_step": found["N_S"].cpu / found["step"].cpu,
        "loop": loops,
        "peak_mb": found["k^C"].peak_mb,
        "ruled_share": ruled,
        "shares": shares,
        "relative_error_float64": error(model, make, min(n, 8)),
    }


def earlier() -> dict[str, dict[str, object]]:
    """What is known: a row is written when it is measured, and stays until it is measured again."""
    path = RESULTS / f"{QUESTION}.json"
    return json.loads(path.read_text())["results"] if path.exists() else {}


def main(
    quick: bool = False,
    data: Path | None = None,
    outputs: tuple[int, ...] = (1, 10),
    repeats: int = 3,
    name: str = "",
) -> None:
    torch.set_num_threads(1)
    n, repeats = (4, 1) if quick else (64, repeats)
    results = earlier()
    asked = {key: found for key, found in architectures().items() if name in key}
    heads = "".join(f"{head:>9}" for head in ("k^C", "N_S", "of loop", "peak MB", "ruled", "error"))
    print(f"{'':<46}{'d':>3}{heads}")
    for d in (1,) if quick else outputs:
        for key, (build, make) in asked.items():
            found = row(build, make, n, d, repeats)
            results[f"{key}, d={d}"] = found
            worst = max(value for each in found["loop"].values() for value in each.values())
            times = f"{found['k^C_times_step']:>9.2f}{found['N_S_times_step']:>9.2f}{worst:>9.2f}"
            rest = f"{found['peak_mb']:>9.0f}{found['ruled_share']:>9.1%}"
            wrong = f"{found['relative_error_float64']:>9.0e}"
            print(f"{key:<46}{d:>3}{times}{rest}{wrong}", flush=True)
            if not quick:
                save(QUESTION, results, n=n)


if __name__ == "__main__":
    main()
