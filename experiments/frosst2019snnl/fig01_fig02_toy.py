"""Figures 1, 2 and 13: points in the plane moved by the soft nearest neighbor loss itself.

Claims: (13) minimizing keeps both modes of a class apart, it does not collapse the class to one
point; (1) minimizing separates classes, maximizing spreads them over each other; (2) the triplet
loss separates as well when minimized.

    python -m experiments.frosst2019snnl.fig01_fig02_toy --preset quick
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from vicinal.losses import SoftNearestNeighborLoss, triplet_loss
from vicinal.neighbors import pairwise_distances

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Settings:
    points_per_mode: int = 20
    steps: int = 200
    rate: float = 0.1
    seed: int = 0


PRESETS = {
    "quick": Settings(points_per_mode=15, steps=100),
    "cpu": Settings(points_per_mode=50, steps=1000),
}


def two_modes(settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Two classes of two Gaussians each, on alternate corners of a square; points, class, mode."""
    generator = torch.Generator().manual_seed(settings.seed)
    corners = torch.tensor([[-1.5, -1.5], [1.5, 1.5], [-1.5, 1.5], [1.5, -1.5]])
    mode = torch.arange(4).repeat_interleave(settings.points_per_mode)
    x = corners[mode] + 0.9 * torch.randn(len(mode), 2, generator=generator)
    return x, mode // 2, mode


def move(x: Tensor, y: Tensor, loss, settings: Settings) -> Tensor:
    """Gradient descent on the coordinates; a temperature, if learned, descends along."""
    points = x.clone().requires_grad_()
    parameters = [points, *getattr(loss, "parameters", list)()]
    optimizer = torch.optim.Adam(parameters, lr=settings.rate)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss(points, y).backward()
        optimizer.step()
    return points.detach()


def measures(x: Tensor, y: Tensor, mode: Tensor) -> dict[str, float]:
    d = pairwise_distances(x, metric="euclidean").fill_diagonal_(torch.inf)
    own = y[d.argmin(1)] == y
    centers = torch.stack([x[mode == m].mean(0) for m in range(4)])
    within = torch.stack([(x[mode == m] - centers[m]).norm(dim=1).mean() for m in range(4)]).mean()
    between = 0.5 * ((centers[0] - centers[1]).norm() + (centers[2] - centers[3]).norm())
    return {
        "nearest_is_own_class": float(own.float().mean()),
        "modes_of_a_class_apart": float(between / within.clamp_min(1e-9)),
    }


def run(settings: Settings) -> dict[str, dict[str, float]]:
    x, y, mode = two_modes(settings)
    low = SoftNearestNeighborLoss(1.0, learn_temperature=True)
    high = SoftNearestNeighborLoss(1.0, learn_temperature=True, entangle="max")
    rows = {
        "at the start": x,
        "SNNL minimized": move(x, y, low, settings),
        "SNNL maximized": move(x, y, high, settings),
        "triplet minimized": move(x, y, lambda x, y: triplet_loss(x, y, margin=1.0), settings),
    }
    return {name: measures(points, y, mode) for name, points in rows.items()}


def claims(results: dict[str, dict[str, float]]) -> dict[str, bool]:
    start, low = results["at the start"], results["SNNL minimized"]
    high, triplet = results["SNNL maximized"], results["triplet minimized"]
    own, apart = "nearest_is_own_class", "modes_of_a_class_apart"
    return {
        "fig. 1: minimizing puts every point by its own class": low[own] >= 0.99,
        "fig. 1: maximizing spreads the classes over each other": high[own] < start[own] - 0.2,
        "fig. 13: minimizing keeps the two modes of a class": low[apart] >= start[apart],
        "fig. 2: the triplet loss separates as well": triplet[own] >= 0.99,
    }


def show(results: dict[str, dict[str, float]]) -> None:
    print(f"{'':<22}{'nearest is own class':>22}{'modes apart / spread':>22}")
    for name, row in results.items():
        print(f"{name:<22}" + "".join(f"{value:>22.3f}" for value in row.values()))
    for claim, holds in claims(results).items():
        print(f"{'holds  ' if holds else 'differs'}  {claim}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    preset = parser.parse_args().preset
    results = run(PRESETS[preset])
    show(results)
    record = {"settings": asdict(PRESETS[preset]), "results": results, "claims": claims(results)}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"fig01_fig02_toy.{preset}.json"
    path.with_suffix(".partial").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".partial").replace(path)


if __name__ == "__main__":
    main()
