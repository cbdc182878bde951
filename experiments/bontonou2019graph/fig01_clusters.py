"""Figure 1: in two dimensions, graph smoothness makes clusters, cross-entropy makes rays.

Claim (Bontonou 2019, section 4.2): trained with two outputs, the proposed loss puts the classes in
clusters, cross-entropy with a bottleneck of two lays them along lines from the origin. No numbers.

Here: FashionMNIST, three convolutions; batch norm on the two outputs: unit length leaves but one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from experiments.bontonou2019graph.smooth import rows_of, trained
from experiments.data import Source
from experiments.draw import COLORS, tidy
from experiments.fit import outputs
from experiments.record import Claim, difference
from experiments.runner import main
from torch import Tensor, nn

from vicinal.confidence import KNNClassifier

LOSSES = ("graph smoothness", "cross-entropy")
END = {"graph smoothness": lambda: nn.BatchNorm1d(2, affine=False),
       "cross-entropy": lambda: nn.Linear(2, 10)}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    data: str = "fashion_mnist"
    rows: int = 10_000
    test: int = 1000
    steps: int = 600
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 1200, 400, 45, (0,)),
    "cpu": Settings(),
    "paper": Settings("cifar10_whole", 50_000, 10_000, 100_000),
}
NETS = {"cifar10_whole": "preact_resnet18"}
THEIRS: dict[str, float] = {}
WHY = "the clusters come, but in six epochs this loss learns less than cross-entropy"
SMALLER = "FashionMNIST and three convolutions for CIFAR-10 and PreActResNet-18; 6 epochs for 200"


def rays(z: Tensor, y: Tensor) -> float:
    """Median over classes: variance along the direction of the class mean / across it."""
    z, shares = z - z.mean(0), []
    for c in y.unique():
        mine = z[y == c]
        along = mine.mean(0) / mine.mean(0).norm().clamp_min(1e-9)
        across = torch.stack([-along[1], along[0]])
        shares.append((mine @ along).var() / (mine @ across).var().clamp_min(1e-9))
    return float(torch.stack(shares).median())


def plane(model: nn.Sequential) -> nn.Module:  # without cross-entropy's layer from two to ten
    return model[0] if isinstance(model[1], nn.Linear) else model


def run(settings: Settings, seed: int, source: Source) -> dict:
    train, (x, y) = rows_of(source, settings.data, settings.rows, settings.test, seed)
    found: dict = {"labels": y[:200].tolist() if seed == 0 else []}
    for name in LOSSES:
        smooth = {"alpha": 2.0, "normalize": False} if name == LOSSES[0] else None
        seen: dict[str, list] = {}

        def look(model: nn.Module, step: int, seen: dict = seen) -> None:
            share = {0: "start", settings.steps // 3: "a third", settings.steps - 1: "end"}
            if step in share:
                model.eval()
                seen[share[step]] = outputs(plane(model), x)
                model.train()

        with warnings.catch_warnings(action="ignore"):  # a batch norm bounds the outputs
            model = trained(train, 2, settings.steps, seed, smooth=smooth, last=END[name],
                            net=NETS.get(settings.data, "convolutions"), after=look)  # fmt: skip
        z, support = seen["end"], outputs(plane(model), train[0])
        right = KNNClassifier(10).fit(support, train[1]).predict(z) == y
        found[name] = {"rays": rays(z, y), "10nn": 100 * float(right.double().mean())}
        if seed == 0:
            found[name]["planes"] = {k: v[:200].T.tolist() for k, v in seen.items()}
    return found


def claims(rows: list[dict]) -> list[Claim]:
    more = difference(rows, "cross-entropy.rays", "graph smoothness.rays")
    near = difference(rows, "graph smoothness.10nn", "cross-entropy.10nn")
    return [
        Claim("variance along / across the ray: cross-entropy − graph smoothness", more),
        Claim("10-NN accuracy in the plane: graph smoothness − cross-entropy", near, beyond=True),
    ]


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(4.6)
    figure.suptitle("test rows in the plane of the two outputs, colored by class", fontsize=9)
    for line, name in zip(figure.subplots(2, 3), LOSSES, strict=True):
        for ax, (when, (x, y)) in zip(line, rows[0][name]["planes"].items(), strict=True):
            ax.scatter(x, y, s=3, c=[(*COLORS, "#000000", "#bcbd22")[c] for c in rows[0]["labels"]])
            tidy(ax, f"{name}, {when}")


if __name__ == "__main__":
    main(__file__)
