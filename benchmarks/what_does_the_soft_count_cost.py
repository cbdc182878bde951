"""What does the neighbor count N_S of a whole data set cost, in forward and backward passes?

N_S in linear time against one forward and d backward passes over the same samples: with the factors
kept between its two passes, and streaming (captured twice). Perceptron 784-512-512-10 and a
convolutional network of 0.8 M parameters; one output (right against rest) and ten.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.how_fast_is_the_gradient_kernel import convolutional, digits, odds, perceptron
from benchmarks.runner import measure, print_table, save
from vicinal.similarity import GradientKernel
from vicinal.similarity.blocks import Blocks
from vicinal.similarity.density import soft_counts


def cost(model: nn.Module, n: int, outputs: object, repeats: int) -> dict[str, object]:
    x, y = digits(n)
    kernel = GradientKernel(model, outputs=outputs)
    params = list(model.parameters())

    def passes() -> None:
        """Forward and d backwards, batch by batch as the counts go."""
        for rows in torch.arange(n).split(512):
            f = odds(model(x[rows]), y[rows]) if outputs is odds else model(x[rows])
            for j in range(f.shape[1]):
                torch.autograd.grad(f[:, j].sum(), params, retain_graph=j < f.shape[1] - 1)

    def streaming() -> None:
        blocks = Blocks(kernel, (x, y), "sum", budget=0)
        soft_counts(kernel, blocks, blocks)

    calls = {
        "forward + d backwards": passes,
        "N_S, factors kept": lambda: kernel.neighbors((x, y)),
        "N_S, streaming": streaming,
    }
    rows = measure(calls, repeats=repeats)
    base = rows["forward + d backwards"].cpu
    quadratic = kernel.gram((x, y)).double().sum(1)
    error = float((kernel.neighbors((x, y)).double() - quadratic).abs().max()) / n
    ratios = {f"{name}, times": row.cpu / base for name, row in rows.items() if "N_S" in name}
    return {**rows, **ratios, "largest difference from the sum over pairs, per pair": error}


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, object]] = {}
    for name, make, sizes in (
        ("perceptron", perceptron, (64, 16) if quick else (2000, 1000)),
        ("convolutional", convolutional, (32, 8) if quick else (1000, 256)),
    ):
        model = make().eval()
        for n, outputs, what in ((sizes[0], odds, "1 output"), (sizes[1], "logits", "10 outputs")):
            title = f"{name}, {what}, n={n}"
            results[title] = cost(model, n, outputs, 1 if quick else 5)
            timed = {k: v for k, v in results[title].items() if hasattr(v, "cpu")}
            print_table(title, timed, against="forward + d backwards")  # type: ignore[arg-type]
            print({k: v for k, v in results[title].items() if isinstance(v, float)})
    if not quick:
        save("what_does_the_soft_count_cost", results)
