"""Figure 1: in two dimensions, graph smoothness makes clusters, cross-entropy makes rays.

Claim (Bontonou 2019, section 4.2): trained with two outputs, the proposed loss puts the classes in
clusters, cross-entropy with a bottleneck of two lays them along lines from the origin. No numbers.

Here: FashionMNIST and a fifth of CIFAR-10, a ResNet of three blocks, 10 epochs; batch norm on the
two outputs: unit length leaves but one. Colors are classes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from experiments.bontonou2019graph.smooth import rows_of, trained
from experiments.data import Source
from experiments.draw import COLORS, tidy
from experiments.fit import outputs
from experiments.record import Claim, difference
from experiments.runner import main
from torch import Tensor, nn

from vicinal.confidence import KNNClassifier

WHEN = ("start", "a third", "end")
LOSSES = ("graph smoothness", "cross-entropy")
END = {LOSSES[0]: lambda: nn.BatchNorm1d(2, affine=False), LOSSES[1]: lambda: nn.Linear(2, 10)}


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("fashion_mnist", "cifar10")
    rows: int = 10_000
    test: int = 2000
    steps: int = 1000
    net: str = "res8"
    seeds: tuple[int, ...] = (0, 1, 2)


PAPER = Settings(("cifar10_whole",), 50_000, 10_000, 100_000, "preact_resnet18")
QUICK = Settings(("digits",), 1200, 400, 45, seeds=(0,))
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": PAPER}
THEIRS: dict[str, float] = {}
WHY = "the clusters come, but in ten epochs this loss learns less than cross-entropy"
SMALLER = "a fifth of CIFAR-10, a ResNet of three blocks for PreActResNet-18; 10 epochs for 200"


def rays(z: Tensor, y: Tensor) -> float:
    """Median over classes: variance along the direction of the class mean / across it."""
    z, shares = z - z.mean(0), []
    for mine in (z[y == c] for c in y.unique()):
        along = F.normalize(mine.mean(0), dim=0)
        across = torch.stack([-along[1], along[0]])
        shares.append((mine @ along).var() / (mine @ across).var().clamp_min(1e-9))
    return float(torch.stack(shares).median())


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {data: {} for data in settings.data}
    for data, name in product(settings.data, LOSSES):
        train, (x, y) = rows_of(source, data, settings.rows, settings.test, seed)
        smooth = {"alpha": 2.0, "normalize": False} if name == LOSSES[0] else None
        plane = slice(None) if smooth else slice(1)  # without the layer from two to ten
        seen: list[Tensor] = []

        def look(model: nn.Sequential, step: int, x=x, seen=seen, plane=plane) -> None:
            if step in (0, settings.steps // 3, settings.steps - 1):
                seen.append(outputs(model.eval()[plane], x))
                model.train()

        with warnings.catch_warnings(action="ignore"):  # a batch norm bounds the outputs
            model = trained(train, 2, settings.steps, seed, smooth=smooth, net=settings.net,
                            last=END[name], after=look)  # fmt: skip
        head = KNNClassifier(10).fit(outputs(model[plane], train[0]), train[1])
        right = float((head.predict(seen[-1]) == y).double().mean())
        planes = [z[:150].T.tolist() for z in seen] if seed == 0 else []
        found[data][name] = {"rays": rays(seen[-1], y), "10nn": 100 * right, "planes": planes}
        found[data]["labels"] = y[:150].tolist()
    return {"sets": found}


def claims(rows: list[dict]) -> list[Claim]:
    made = []
    for data in rows[0]["sets"]:
        ours, other = (f"sets.{data}.{name}" for name in LOSSES)
        more = difference(rows, f"{other}.rays", f"{ours}.rays")
        near = {"values": difference(rows, f"{ours}.10nn", f"{other}.10nn"), "unit": "points"}
        made += [
            Claim(f"{data}: variance along / across the ray: cross-entropy − proposed", more),
            Claim(f"{data}: 10-NN in the plane: proposed − cross-entropy", **near, beyond=True),
        ]
    return made


def draw(rows: list[dict], figure) -> None:
    sets = rows[0]["sets"]
    figure.set_figheight(4.6 * len(sets))
    lines = zip(figure.subplots(2 * len(sets), 3), product(sets, LOSSES), strict=True)
    for line, (data, name) in lines:
        colors = [(*COLORS, "#000000", "#bcbd22")[c] for c in sets[data]["labels"]]
        for ax, when, (x, y) in zip(line, WHEN, sets[data][name]["planes"], strict=True):
            ax.scatter(x, y, s=3, c=colors)
            tidy(ax, f"{name}, {when}", data.replace("_", " "))


if __name__ == "__main__":
    main(__file__)
