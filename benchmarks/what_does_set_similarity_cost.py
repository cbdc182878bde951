"""What does training for similarity cost, in plain training steps?

One step (forward, backward, Adam) with cross-entropy against the same step with the exact
normalized set-wise similarity of the batch's classes beside it (Charpiat et al. 2019, section 5):
from one shared forward pass, and as a loss by itself. Beside it the paper's substitute, the
two-minibatch criterion by double backward, and the exact loss by torch.func. Perceptron
784-512-512-10 and a convolutional network of 0.8 M parameters, batches of 64; one output per
sample, the right class against the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.how_fast_is_the_gradient_kernel import convolutional, digits, odds, perceptron
from benchmarks.runner import measure, print_table, save
from vicinal.similarity import SetSimilarityLoss, similarity_gradients
from vicinal.similarity.enforce import set_similarity

PLAIN = "a plain step"


def by_torch_func(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same loss from per-sample gradients: each of the size of the parameters."""

    def one(params: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return odds(functional_call(model, params, row[None]), label[None]).sum()

    found = vmap(grad(one), (None, 0, 0))(dict(model.named_parameters()), x, y)
    unit = F.normalize(torch.cat([g.flatten(1) for g in found.values()], 1), dim=1)
    return -set_similarity(unit @ unit.T, y)[0].mean()


def by_two_batches(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The paper's criterion as the paper computes it: two summed gradients, double backward."""
    params, half = list(model.parameters()), len(x) // 2
    sums = []
    for rows in (slice(0, half), slice(half, None)):
        f = odds(model(x[rows]), y[rows]).sum()
        parts = torch.autograd.grad(f, params, create_graph=True)
        sums.append(torch.cat([g.flatten() for g in parts]))
    one, two = sums
    return half * (one - two).square().sum() / (one.norm() * two.norm())


def cost(model: nn.Module, n: int, repeats: int, rivals: bool) -> dict[str, object]:
    x, y = digits(n)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    alike = SetSimilarityLoss(outputs=odds)

    def step(loss: Callable[[], Tensor], count: int = 5) -> Callable[[], None]:
        def call() -> None:
            for _ in range(count):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()

        return call

    def shared() -> Tensor:
        g = similarity_gradients(model, x, y, outputs=odds)
        return F.cross_entropy(g.output, y) + alike.of(g, y)

    losses: dict[str, Callable[[], Tensor]] = {
        PLAIN: lambda: F.cross_entropy(model(x), y),
        "with exact set similarity": shared,
        "exact set similarity alone": lambda: alike(model, x, y, y),
        "two-minibatch criterion alone": lambda: by_two_batches(model, x, y),
    }
    rows = measure({k: step(v) for k, v in losses.items()}, repeats=repeats)
    if rivals:  # one step of it, counted five times
        name = "exact, torch.func alone"
        one = measure({name: step(lambda: by_torch_func(model, x, y), 1)}, repeats=2, warmup=0)
        rows[name] = replace(one[name], cpu=5 * one[name].cpu)
    exact = float(alike(copy.deepcopy(model).double(), x.double(), y, y).detach())
    errors = {
        "float32 error, factors": abs(float(alike(model, x, y, y).detach()) - exact),
        "float32 error, torch.func": abs(float(by_torch_func(model, x, y).detach()) - exact),
    }
    ratios = {f"{k}, times": row.cpu / rows[PLAIN].cpu for k, row in rows.items() if k != PLAIN}
    return {**rows, **ratios, **errors}


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, object]] = {}
    for name, make in (("perceptron", perceptron), ("convolutional", convolutional)):
        n = 8 if quick else 64
        title = f"{name}, batch of {n}, five steps"
        found = cost(make().eval(), n, 1 if quick else 16, rivals=not quick)
        results[title] = found
        timed = {k: v for k, v in found.items() if hasattr(v, "cpu")}
        print_table(title, timed, against=PLAIN)  # type: ignore[arg-type]
        print({k: float(f"{v:.3g}") for k, v in found.items() if isinstance(v, float)})
    if not quick:
        save("what_does_set_similarity_cost", results)
