"""Figures 18 and 19: reliability of DkNN credibility under attack, MNIST and FashionMNIST.

Claims (Frosst 2019, appendix F): over FGSM inputs of all ε the accuracy of DkNN rises with its
credibility, and the entangled net's credibility is nearer to the accuracy than the plain net's.

Here: the nets of Figure 14; p-values smoothed, since counts of neighbors tie.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from experiments.data import Source
from experiments.draw import over_seeds, tidy
from experiments.frosst2019snnl.entangled import (
    COLORS,
    EPSILONS,
    QUICK,
    Recipe,
    layers_of,
    neighbors_of,
    net,
    rows_of,
)
from experiments.record import Claim, difference
from experiments.runner import main

from vicinal.perturbations import fgsm

KINDS, BINS = ("plain", "entangled"), 10


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("mnist", "fashion_mnist")
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0, 1, 2)


PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(),
    "paper": Settings(recipe=Recipe(59_000, 20, 64, support=50_000, test=10_000, k=75)),
}
THEIRS: dict[str, float] = {}
SMALLER = "10,000 rows, two convolutions of 16 and 32 channels; 400 test rows at 7 strengths"
FIGURE = {"mnist": "fig18", "fashion_mnist": "fig19", "digits": "fig18"}


def reliability(credibility: np.ndarray, right: np.ndarray) -> dict:
    """Accuracy and share of rows in ten bins of credibility; their slope and mean gap."""
    at = np.minimum((credibility * BINS).astype(int), BINS - 1)
    share = np.bincount(at, minlength=BINS) / len(at)
    hit = np.bincount(at, right, minlength=BINS) / np.maximum(np.bincount(at, minlength=BINS), 1)
    middle = np.bincount(at, credibility, minlength=BINS) / np.maximum(share * len(at), 1)
    return {"accuracy": hit, "share": share, "gap": float(share @ np.abs(hit - middle)),
            "slope": float(np.polyfit(credibility, right.astype(float), 1)[0])}  # fmt: skip


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {}
    for data in settings.data:
        rows, found[data] = rows_of(source, data, settings.recipe, seed), {}
        x, y = rows.test
        for kind in KINDS:
            model = net(source, data, settings.recipe, kind, seed)
            head = neighbors_of(model, rows, settings.recipe).set_params(random_state=seed)
            inputs = [fgsm(model, x, y, e) if e else x for e in EPSILONS]
            told = [head.evaluate(layers_of(model, moved)) for moved in inputs]
            right = torch.cat([t.labels == y for t in told]).numpy()
            sure = torch.cat([torch.as_tensor(t.credibility) for t in told]).numpy()
            found[data][kind] = reliability(sure, right)
            found[data][kind]["clean"] = float((told[0].labels == y).double().mean())
    return found


def claims(rows: list[dict]) -> list[Claim]:
    made = []
    for data in (d for d in FIGURE if d in rows[0]):
        at = [FIGURE[data]]
        made += [
            *(Claim(f"{data}, {k}: accuracy rises with credibility (slope)",
                    [row[data][k]["slope"] for row in rows], items=at) for k in KINDS),
            Claim(f"{data}: mean gap of accuracy and credibility, plain − entangled",
                  difference(rows, f"{data}.plain.gap", f"{data}.entangled.gap"), items=at),
            Claim(f"{data}: clean DkNN accuracy, entangled − plain", beyond=True, unit="points",
                  values=difference(rows, f"{data}.entangled.clean", f"{data}.plain.clean", 100)),
        ]  # fmt: skip
    return made


def draw(rows: list[dict], figure) -> None:
    sets = [d for d in FIGURE if d in rows[0]]
    for ax, data in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        places = (np.arange(BINS) + 0.5) / BINS
        for at, kind in enumerate(KINDS):
            hit, error = over_seeds([row[data][kind]["accuracy"] for row in rows])
            ax.bar(places + (at - 0.5) * 0.04, hit, 0.04, yerr=error, color=COLORS[kind],
                   label=kind, error_kw={"linewidth": 0.7})  # fmt: skip
            share, _ = over_seeds([row[data][kind]["share"] for row in rows])
            ax.plot(places, share, ".--", color=COLORS[kind], linewidth=0.6, markersize=3)
        ax.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
        tidy(ax, f"{data} (dashed: share of rows)", "credibility", "DkNN accuracy")
        ax.legend(fontsize=6, frameon=False)


if __name__ == "__main__":
    main(__file__)
