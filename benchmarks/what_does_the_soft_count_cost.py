"""What does the neighbor count N_S of a whole data set cost, in forward and backward passes?

N_S in linear time against one forward and d backward passes over the same samples: with the factors
kept between its two passes, and streaming (captured twice). Perceptron 784-512-512-10 and a
convolutional network of 0.8 M parameters; one output (right against rest) and ten.

On one thread, as threads that wait for each other count waiting as CPU time. The limit for large n
is set by FLOPs: on the perceptron the passes take F + d(0.4 F + F), F those of one forward; sums
and products take 2dF more than the backward passes to the layers, and a stream these passes twice:
1.4 (kept) and 2.0 (stream) times for d = 1, 1.7 and 2.0 for d = 10. Where all is kept and n is
small, layers are counted by pairs for less. The last block is never captured twice, so a stream of
few blocks costs less; ``blocks`` says how many there were.
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
    blocks = len(Blocks(kernel, (x, y), "sum", budget=0))
    return {
        **rows,
        **ratios,
        "blocks": blocks,
        "largest difference from the sum over pairs, per pair": error,
    }


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results: dict[str, dict[str, object]] = {}
    for name, make, sizes in (
        ("perceptron", perceptron, (64, 16, 64) if quick else (2000, 1000, 4000)),
        ("convolutional", convolutional, (32, 8) if quick else (1000, 256)),
    ):
        model = make().eval()
        cases = [(sizes[0], odds, "1 output"), *((n, "logits", "10 outputs") for n in sizes[1:])]
        for n, outputs, what in cases:
            title = f"{name}, {what}, n={n}"
            results[title] = cost(model, n, outputs, 1 if quick else 4)
            timed = {k: v for k, v in results[title].items() if hasattr(v, "cpu")}
            print_table(title, timed, against="forward + d backwards")  # type: ignore[arg-type]
            print({k: v for k, v in results[title].items() if isinstance(v, float)})
    if not quick:
        save("what_does_the_soft_count_cost", results)
