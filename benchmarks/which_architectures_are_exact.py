"""Which architectures have exact gradient kernels, and at what cost?

Each network of `architectures` at n = 64 with d = 1 and 10 outputs: k^C and N_S as times of one
forward and d backward passes of the same batch, the peak of memory while the matrix is made, the
share of parameters under each rule, and the largest error of the kernel of eight samples against
per-sample autograd, both in float64. ``name=`` asks those whose name holds it.

On one thread, CPU time, the best of three after a warm-up.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.architectures import Data, architectures
from benchmarks.runner import RESULTS, measure, save
from vicinal.similarity import GradientKernel

QUESTION = "which_architectures_are_exact"


def answer(model: nn.Module, data: Data) -> Tensor:
    out = model(data) if isinstance(data, Tensor) else model(**data)
    return getattr(out, "logits", out)


def error(model: nn.Module, make: Any) -> float:
    """Of k^I of eight samples, relative to its largest entry, in float64."""
    model = copy.deepcopy(model).double().eval()
    data = make(8, torch.float64)
    params, grads = [p for p in model.parameters() if p.requires_grad], []
    for i in range(8):
        one = (
            data[i : i + 1]
            if isinstance(data, Tensor)
            else {k: v[i : i + 1] for k, v in data.items()}
        )
        f = answer(model, one)[0]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        each = [torch.autograd.grad(v, params, **options) for v in f]
        grads.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in each]))
    plain = torch.stack(grads)
    exact = torch.einsum("nip,mip->nm", plain, plain) / plain.shape[1]
    found = GradientKernel(model).gram(data, kind="inner")
    return float((found - exact).abs().max() / exact.abs().max())


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
        "peak_mb": found["k^C"].peak_mb,
        "ruled_share": ruled,
        "shares": shares,
        "relative_error_float64": error(model, make),
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
    print(f"{'':<46}{'d':>3}{'k^C':>8}{'N_S':>8}{'peak MB':>9}{'ruled':>8}{'error':>10}")
    for d in (1,) if quick else outputs:
        for key, (build, make) in asked.items():
            found = row(build, make, n, d, repeats)
            results[f"{key}, d={d}"] = found
            print(
                f"{key:<46}{d:>3}{found['k^C_times_step']:>8.2f}{found['N_S_times_step']:>8.2f}"
                f"{found['peak_mb']:>9.0f}{found['ruled_share']:>8.1%}"
                f"{found['relative_error_float64']:>10.1e}",
                flush=True,
            )
            if not quick:
                save(QUESTION, results, n=n)


if __name__ == "__main__":
    main()
