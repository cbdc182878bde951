"""Figures 18 and 19: reliability of DkNN credibility under attack, MNIST and FashionMNIST.

Claims (Frosst 2019, section 5 and appendix F): over FGSM inputs of all ε the accuracy of DkNN rises
with its credibility, and the entangled net's credibility is nearer to the accuracy than the plain
net's: MNIST (18), FashionMNIST (19). No numbers are printed.

Here: the nets of Figure 14; p-values smoothed, since counts of neighbors tie.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from experiments.data import Source
from experiments.draw import over_seeds, tidy
from experiments.frosst2019snnl import entangled
from experiments.frosst2019snnl.entangled import COLORS, EPSILONS, QUICK, Recipe, layers_of
from experiments.record import Claim, difference
from experiments.runner import main

from vicinal.evaluation import auroc, reliability
from vicinal.perturbations import fgsm

KINDS, BINS = ("plain", "entangled"), 10
FIGURE = {"mnist": 18, "fashion_mnist": 19, "cifar10": 9, "svhn": 9, "digits": 18}
FLOOR = {"mnist": 0.8, "cifar10": 0.4}  # of a trained net; else 0.7
SCALE = {"cifar10": 1 / 6, "cifar10_whole": 1 / 6}  # of the strengths: photographs bear less


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("mnist", "fashion_mnist")
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(),
    "paper": Settings(recipe=entangled.PAPER),
}
THEIRS: dict[str, float] = {}
SMALLER = "10,000 rows, small nets, 400 test rows at 7 strengths"
WHY = "on FashionMNIST plain credibility follows accuracy already; entangling costs 7 to 8 points"


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {}
    for data in settings.data:
        rows, recipe = entangled.rows_of(source, data, settings.recipe, seed), settings.recipe
        found[data] = {}
        x, y = rows.test
        for kind in KINDS:
            model = entangled.net(source, data, recipe, kind, seed)
            head = entangled.neighbors_of(model, rows, recipe).set_params(random_state=seed)
            scale = SCALE.get(data, 1.0)
            inputs = [fgsm(model, x, y, scale * e) if e else x for e in EPSILONS]
            told = [head.evaluate(layers_of(model, moved)) for moved in inputs]
            right = torch.cat([t.labels == y for t in told]).numpy()
            sure = torch.cat([torch.as_tensor(t.credibility) for t in told]).numpy()
            bins = reliability(sure, right, bins=BINS)
            found[data][kind] = {
                "net": float((model(x).argmax(1) == y).double().mean()),
                "clean": float((told[0].labels == y).double().mean()),
                "accuracy": np.nan_to_num(bins.accuracy), "share": bins.share, "gap": bins.ece,
                "slope": float(np.polyfit(sure, right.astype(float), 1)[0]),
                "auroc": auroc(sure[~right], sure[right]),
            }  # fmt: skip
    trained = all(found[d][kind]["net"] > FLOOR.get(d, 0.7) for d in found for kind in KINDS)
    return {**found, "trained": trained}


def claims(rows: list[dict]) -> list[Claim]:
    made = []
    for d in (d for d in FIGURE if d in rows[0]):
        ours = {**(theirs := {"items": [f"fig{FIGURE[d]}"]}), "beyond": True}
        gap, hit, rank = (
            difference(rows, *(f"{d}.{kind}.{what}" for kind in kinds), scale)
            for what, kinds, scale in
            (("gap", KINDS, 1), ("clean", KINDS[::-1], 100), ("auroc", KINDS[::-1], 1))
        )  # fmt: skip
        said = "AUROC of right over wrong by credibility"
        made += [
            *(Claim(f"{d}, {k}: accuracy rises with credibility (slope)",
                    [row[d][k]["slope"] for row in rows], **theirs) for k in KINDS),
            Claim(f"{d}: mean gap of accuracy and credibility, plain − entangled", gap, **theirs),
            Claim(f"{d}: clean DkNN accuracy, entangled − plain", hit, unit="points", **ours),
            Claim(f"{d}: {said}, entangled − plain", rank, **ours),
        ]  # fmt: skip
    return made


def draw(rows: list[dict], figure) -> None:
    sets, places = [d for d in FIGURE if d in rows[0]], (np.arange(BINS) + 0.5) / BINS
    for ax, data in zip(figure.subplots(1, len(sets), squeeze=False).flat, sets, strict=True):
        for at, kind in enumerate(KINDS):
            hit, error = over_seeds([row[data][kind]["accuracy"] for row in rows])
            ax.bar(places + (at - 0.5) * 0.04, hit, 0.04, yerr=error, color=COLORS[kind],
                   label=kind, error_kw={"linewidth": 0.7})  # fmt: skip
            share = over_seeds([row[data][kind]["share"] for row in rows])[0]
            ax.plot(places, share, ".--", color=COLORS[kind], linewidth=0.6, markersize=3)
        ax.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
        tidy(ax, f"{data} (dashed: share)", "credibility", "DkNN accuracy").set_ylim(0, 1)
        ax.legend(fontsize=6, frameon=False)


if __name__ == "__main__":
    main(__file__)
