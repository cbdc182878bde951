"""Figure 4 and appendix D: the harder the sinusoid, the fewer neighbors, by every estimator.

A network learns ``y = sin(2π f α)`` from points on a circle, so that the input has no ends. 2048
points, five hidden layers of 64, Adam at 1e-4 for 80 epochs, five networks per frequency and their
median: the paper's text. Batches of 16 and ReLU, which the text leaves open.

    python experiments/charpiat2019similarity/figD_sinusoid_toy.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from vicinal.similarity import GradientKernel

RESULTS = Path(__file__).parent / "results"
ESTIMATORS: dict[str, str | tuple[str, float]] = {
    "soft": "soft",
    "hard 0.5": ("hard", 0.5),
    "hard 0.7": ("hard", 0.7),
    "hard 0.9": ("hard", 0.9),
    "positive 1": ("positive", 1.0),
    "positive 2": ("positive", 2.0),
    "positive 4": ("positive", 4.0),
}


@dataclass(frozen=True)
class Settings:
    frequencies: tuple[int, ...] = (1, 2, 4, 8)
    points: int = 2048
    width: int = 64
    hidden: int = 5
    epochs: int = 80
    batch: int = 16
    rate: float = 1e-4
    repeats: int = 5


QUICK = Settings(
    frequencies=(1, 4), points=128, width=32, hidden=3, epochs=50, rate=2e-3, repeats=1
)


def circle(points: int) -> tuple[Tensor, Tensor]:
    """Angles α in [0, 1) and their places on the circle."""
    alpha = torch.arange(points) / points
    return alpha, torch.stack([(2 * math.pi * alpha).cos(), (2 * math.pi * alpha).sin()], 1)


def trained(settings: Settings) -> dict[int, list[tuple[nn.Module, float]]]:
    """For each frequency, networks fitted to its sinusoid and their final mean squared errors.

    All networks are trained side by side, a batched product per layer; Adam acts on each number
    by itself, so none knows of the others.
    """
    torch.manual_seed(0)
    which = [f for f in settings.frequencies for _ in range(settings.repeats)]
    models = [network(settings) for _ in which]
    weights = [
        torch.stack(p).detach().requires_grad_() for p in zip(*map(parameters, models), strict=True)
    ]
    alpha, x = circle(settings.points)
    y = torch.stack([(2 * math.pi * f * alpha).sin()[:, None] for f in which])
    optimizer = torch.optim.Adam(weights, settings.rate)
    for _ in range(settings.epochs):
        for rows in torch.randperm(settings.points).split(settings.batch):
            optimizer.zero_grad()
            (side_by_side(weights, x[rows]) - y[:, rows]).square().mean((1, 2)).sum().backward()
            optimizer.step()
    found: dict[int, list[tuple[nn.Module, float]]] = {f: [] for f in settings.frequencies}
    with torch.no_grad():
        errors = (side_by_side(weights, x) - y).square().mean((1, 2))
        for i, model in enumerate(models):
            for p, stacked in zip(parameters(model), weights, strict=True):
                p.copy_(stacked[i])
            found[which[i]].append((model, float(errors[i])))
    return found


def network(settings: Settings) -> nn.Sequential:
    widths = [2, *[settings.width] * settings.hidden]
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(settings.width, 1))


def parameters(model: nn.Module) -> list[Tensor]:
    return list(model.parameters())


def side_by_side(weights: list[Tensor], x: Tensor) -> Tensor:
    """The outputs (networks, n, 1) of networks whose weights and biases are stacked."""
    h = x.expand(len(weights[0]), -1, -1)
    for i in range(0, len(weights), 2):
        h = torch.baddbmm(weights[i + 1][:, None], h, weights[i].mT)
        h = h.relu() if i + 2 < len(weights) else h
    return h


def counts(model: nn.Module, points: int) -> dict[str, float]:
    """The mean number of neighbors over the circle, by every estimator."""
    _, x = circle(points)
    kernel = GradientKernel(model)
    return {name: float(kernel.neighbors(x, estimator=e).mean()) for name, e in ESTIMATORS.items()}


def run(settings: Settings) -> dict[str, object]:
    """Median counts per frequency, and the slope of their logarithms: -1 is 1/f."""
    table: dict[int, dict[str, float]] = {}
    errors: dict[int, float] = {}
    for frequency, fits in trained(settings).items():
        rows = [counts(model, settings.points) for model, _ in fits]
        table[frequency] = {k: statistics.median(row[k] for row in rows) for k in ESTIMATORS}
        errors[frequency] = statistics.median(error for _, error in fits)
    return {
        "settings": asdict(settings),
        "counts": table,
        "error": errors,
        "falls": {name: falls([row[name] for row in table.values()]) for name in ESTIMATORS},
        "slope": {name: slope([(f, row[name]) for f, row in table.items()]) for name in ESTIMATORS},
    }


def falls(values: list[float]) -> bool:
    """Whether every higher frequency leaves fewer neighbors."""
    return all(after < before for before, after in pairwise(values))


def slope(points: list[tuple[int, float]]) -> float:
    """Least-squares slope of log count against log frequency."""
    u = [math.log(f) for f, _ in points]
    v = [math.log(max(count, 1e-9)) for _, count in points]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    over = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return over / sum((a - mean_u) ** 2 for a in u)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    found = run(QUICK if quick else Settings())
    print(json.dumps(found, indent=1))
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / "figD_sinusoid_toy.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(path)


if __name__ == "__main__":
    main()
