"""Figure 15: while MNIST is learnt by cross-entropy alone, the loss of every layer falls.

Claim (Frosst 2019, appendix C): in a net of one convolution and three linear layers the soft
nearest neighbor loss of each layer decreases during training. No numbers are printed.

Here: a quarter of the width. At a fixed T a loss mixes scale and structure, so the curve shown is
the loss at its best T over that of chance, on held-out rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, parts
from experiments.draw import curves, tidy
from experiments.fit import accuracy, batches, fit
from experiments.record import Claim
from experiments.runner import main
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.optim import Adam

from vicinal.capture import capture
from vicinal.evaluation import entanglement

LAYERS = {"conv": "1", "fc 1": "4", "fc 2": "6", "logits": "7"}


@dataclass(frozen=True)
class Settings:
    data: str = "mnist"
    rows: int = 10_000
    test: int = 400
    epochs: int = 5
    width: int = 16
    looks: int = 12
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 1200, 200, width=8, looks=5, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(rows=59_000, test=1000, epochs=5, width=64, looks=40),
}
THEIRS: dict[str, float] = {}
SMALLER = "a quarter of the width, 10,000 rows"


def run(settings: Settings, seed: int, source: Source) -> dict:
    train, (x, y) = parts(*images(source, settings.data), (settings.rows, settings.test), seed)
    side, w = x.shape[-1], settings.width
    with nets.seeded(seed):
        model = nn.Sequential(
            nn.Conv2d(1, w, 5, 2, 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(w * ((side + 1) // 2) ** 2, 4 * w), nn.ReLU(), nn.Linear(4 * w, 4 * w),
            nn.ReLU(), nn.Linear(4 * w, 10),
        ).to(x.device)  # fmt: skip
    steps = settings.epochs * len(train[0]) // 128
    curve: dict[str, list[float]] = {name: [] for name in LAYERS}
    when: list[int] = []

    def look(step: int) -> None:
        if step % max(1, steps // settings.looks) == 0 or step == steps - 1:
            found = entanglement(capture(model, x, list(LAYERS.values())), y)
            when.append(step + 1)
            for name, entry in zip(LAYERS, found.layers, strict=True):
                curve[name].append(entry.ratio)
            model.train()

    def loss(rows: Tensor, _: int) -> Tensor:
        return F.cross_entropy(model(train[0][rows]), train[1][rows])

    rows = batches(len(train[0]), 128, steps, seed)
    fit(model, loss, rows, Adam(model.parameters(), 1e-3), after=look)
    return {"steps": when, "curve": curve, "accuracy": accuracy(model, x, y)}


def claims(rows: list[dict]) -> list[Claim]:
    return [
        Claim(f"{name}: the loss falls with the steps (−Spearman's ρ)",
              [-float(spearmanr(row["steps"], row["curve"][name])[0]) for row in rows])
        for name in LAYERS
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    ax = figure.subplots()
    curves(ax, rows[0]["steps"], {n: [row["curve"][n] for row in rows] for n in LAYERS})
    tidy(ax, "entanglement during training", "step", "SNNL at its best T / chance")
    ax.legend(fontsize=7, frameon=False)
    ax.set_ylim(0)


if __name__ == "__main__":
    main(__file__)
