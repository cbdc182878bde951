"""Figures 1, 2 and 13: points in the plane moved by the loss itself.

Claims (Frosst 2019, section 2, appendix A and B): (1) minimizing the soft nearest neighbor loss
separates the classes, maximizing mixes them; (2) minimized, the triplet loss does the same;
maximized, it drives the points onto a circle, where the soft nearest neighbor loss spreads them;
(13) minimizing keeps both modes of a class, no class collapses to a point. No numbers are printed.

Here: two classes of two Gaussians on alternate corners of a square. For Figure 2 maximized points
are kept in a disc, which is ours: the triplet loss has no maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from experiments.data import Source
from experiments.draw import COLORS, tidy
from experiments.record import Claim, difference
from experiments.runner import main
from torch import Tensor

from vicinal.losses import Maximize, SoftNearestNeighborLoss, TripletLoss
from vicinal.neighbors import pairwise_distances


@dataclass(frozen=True)
class Settings:
    points_per_mode: int = 30
    steps: int = 500
    rate: float = 0.1
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {"quick": Settings(15, 100, seeds=(0,)), "cpu": Settings(), "paper": Settings()}
SHOWN = {"disc": "maximized in a disc", "up": "triplet maximized"}
THEIRS: dict[str, float] = {}
SMALLER = "generated; their number of points is not given"


def two_modes(settings: Settings, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two classes of two Gaussians each, on alternate corners of a square; points, class, mode."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.tensor([[-1.5, -1.5], [1.5, 1.5], [-1.5, 1.5], [1.5, -1.5]])
    mode = torch.arange(4).repeat_interleave(settings.points_per_mode)
    x = corners[mode] + 0.9 * torch.randn(len(mode), 2, generator=generator)
    return x, mode // 2, mode


def moved(x: Tensor, y: Tensor, loss, settings: Settings, disc: float = torch.inf) -> Tensor:
    """Gradient descent on the coordinates within a disc; a learned temperature descends along."""
    points = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([points, *loss.parameters()], lr=settings.rate)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss(points, y).backward()
        optimizer.step()
        points.data *= (disc / points.data.norm(dim=1, keepdim=True)).clamp_max(1.0)
    return points.detach()


def measures(x: Tensor, y: Tensor, mode: Tensor) -> dict[str, float]:
    d = pairwise_distances(x, metric="euclidean").fill_diagonal_(torch.inf)
    centers = torch.stack([x[mode == m].mean(0) for m in range(4)])
    within = torch.stack([(x[mode == m] - centers[m]).norm(dim=1).mean() for m in range(4)]).mean()
    between = 0.5 * ((centers[0] - centers[1]).norm() + (centers[2] - centers[3]).norm())
    own, radius = y[d.argmin(1)] == y, (x - x.mean(0)).norm(dim=1)
    apart, ring = between / within.clamp_min(1e-9), radius.std() / radius.mean()
    return {"own": float(own.double().mean()), "apart": float(apart), "ring": float(ring)}


def run(settings: Settings, seed: int, source: Source) -> dict:
    x, y, mode = two_modes(settings, seed)
    low, high, inside = (SoftNearestNeighborLoss(1.0, True, e) for e in ("min", "max", "max"))
    triplet, wide = TripletLoss(margin=1.0), float(x.norm(dim=1).max())
    points = {
        "start": x,
        "minimized": moved(x, y, low, settings),
        "maximized": moved(x, y, high, settings),
        "triplet": moved(x, y, triplet, settings),
        "disc": moved(x, y, inside, settings, wide),
        "up": moved(x, y, Maximize(triplet), settings, wide),
    }
    found = {name: measures(p, y, mode) for name, p in points.items()}
    drawn = {name: p.round(decimals=2).T.tolist() for name, p in points.items()}
    return {**found, "points": drawn, "classes": y.tolist()} if seed == 0 else found


def claims(rows: list[dict]) -> list[Claim]:
    own, apart = "nearest neighbor of the own class", "distance of a class's modes / their spread"
    told = [
        (f"minimizing raises the {own}", "minimized.own", "start.own", ["fig1"]),
        (f"maximizing lowers the {own}", "start.own", "maximized.own", ["fig1"]),
        ("the triplet loss, minimized, raises it too", "triplet.own", "start.own", ["fig2"]),
        ("raised, its radii spread more than the triplet's", "disc.ring", "up.ring", ["fig2"]),
        (f"minimizing keeps the {apart}", "minimized.apart", "start.apart", ["fig13"]),
    ]
    return [Claim(s, difference(rows, more, less), items=i) for s, more, less, i in told]


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(3.6)
    panels = figure.subplots(2, 3).flat
    for ax, (name, (x, y)) in zip(panels, rows[0]["points"].items(), strict=True):
        ax.scatter(x, y, s=4, c=[COLORS[c] for c in rows[0]["classes"]])
        tidy(ax, f"{SHOWN.get(name, name)}\nown {rows[0][name]['own']:.2f}")


if __name__ == "__main__":
    main(__file__)
