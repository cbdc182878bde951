"""Table 2: adversarially trained convolutions are more entangled than plain ones.

Claim (Frosst 2019, appendix E): at T = 100 the soft nearest neighbor loss of conv 1 and conv 2 is
higher after PGD training, of the fully connected layer lower. Here: the same net with a quarter of
the channels, read after its pools; ε 0.2 that ramps up (0.3 from the first step stays at chance),
five inner steps. T = 100 compares scales, so the loss at the best T / chance stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, parts
from experiments.draw import bars, tidy
from experiments.fit import accuracy, batches, fit
from experiments.record import Claim, difference
from experiments.runner import main
from torch import Tensor, nn
from torch.optim import Adam

from vicinal.capture import capture
from vicinal.evaluation import entanglement
from vicinal.losses import soft_nearest_neighbor_loss
from vicinal.perturbations import pgd

LAYERS = {"conv1": "2", "conv2": "5", "fc": "8", "logits": "9"}


@dataclass(frozen=True)
class Settings:
    data: str = "mnist"
    rows: int = 10_000
    steps: int = 600
    epsilon: float = 0.2
    inner: int = 5
    channels: int = 8
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 1200, 60, inner=3, channels=4, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(rows=59_000, steps=30_000, epsilon=0.3, inner=40, channels=32),
}
THEIRS = {"conv1": (1.39, 2.21), "conv2": (0.75, 1.97), "fc": (1.75, 0.46), "logits": (0.13, 0.21)}
SMALLER = "a quarter of the channels, 600 steps, ε 0.2"
WHY = (
    "PGD training shrinks ‖h‖² to about two fifths in all layers, so that at T = 100 each loss "
    "rises, the linear layer's too; at its best T none changes by more than 0.003 of chance"
)


def run(settings: Settings, seed: int, source: Source) -> dict:
    (x, y), test = parts(*images(source, settings.data), (settings.rows, 512), seed)
    found: dict = {}
    for kind in ("plain", "pgd"):
        with nets.seeded(seed):
            model = nets.madry(x.shape[-1], settings.channels).to(x.device)

        def loss(rows: Tensor, step: int, model=model, kind=kind) -> Tensor:
            moved, epsilon = x[rows], settings.epsilon * min(1, step / (0.4 * settings.steps))
            if kind == "pgd" and epsilon:
                moved = pgd(model, moved, y[rows], epsilon, steps=settings.inner)
            return F.cross_entropy(model(moved), y[rows])

        rows = batches(len(x), 64, settings.steps, seed)
        fit(model, loss, rows, Adam(model.parameters(), 1e-3))
        found[kind] = {"accuracy": accuracy(model, *test), **looked_at(model, *test)}
    return {**found, "trained": min(f["accuracy"] for f in found.values()) > 0.8}


def looked_at(model: nn.Module, x: Tensor, y: Tensor) -> dict:
    """Per layer: the loss at T = 100, mean of batches of 128; the best over chance; mean ‖h‖²."""
    layers, out = capture(model, x, list(LAYERS.values())).layers, {}
    for name, layer in LAYERS.items():
        pairs = zip(layers[layer].split(128), y.split(128), strict=True)
        fixed = [float(soft_nearest_neighbor_loss(h, c, temperature=100.0)) for h, c in pairs]
        best = entanglement({"h": layers[layer]}, y).layers[0].ratio
        out[name] = {"fixed": float(np.mean(fixed)), "best": best,
                     "scale": float(layers[layer].square().sum(1).mean())}  # fmt: skip
    return out


def claims(rows: list[dict]) -> list[Claim]:
    made = []
    for name, (plain, hard) in THEIRS.items():
        if name != "logits":
            pair = ("pgd", "plain") if hard > plain else ("plain", "pgd")
            word = "more" if hard > plain else "less"
            for rule, said in (("fixed", "T = 100"), ("best", "its best T")):
                values = difference(rows, *(f"{k}.{name}.{rule}" for k in pair))
                made.append(Claim(f"{name} {word} entangled after PGD, {said}", values,
                                  f"{plain} → {hard}", beyond=rule == "best"))  # fmt: skip
    return made


def draw(rows: list[dict], figure) -> None:
    for ax, rule in zip(figure.subplots(1, 2), ("fixed", "best"), strict=True):
        bars(ax, {n: {k: [r[k][n][rule] for r in rows] for k in ("plain", "pgd")} for n in LAYERS})
        for at, pair in enumerate(THEIRS.values() if rule == "fixed" else ()):
            ax.plot([at - 0.2, at + 0.2], pair, "_", color="#222222", markersize=11)
        tidy(ax, "T = 100 (theirs as ticks)" if rule == "fixed" else "at its best T / chance")
        ax.legend(fontsize=7, frameon=False)


if __name__ == "__main__":
    main(__file__)
