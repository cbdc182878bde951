"""Figure 14: under attack, credibility follows accuracy in the entangled net alone.

Claims (Frosst 2019, appendix B): with FGSM of growing ε the credibility of DkNN stays nearer to its
accuracy where the soft nearest neighbor loss of the hidden layers was maximized; maximizing the
triplet loss does not do this. No numbers are printed.

Here: MNIST, a net of two convolutions, 750 calibration rows. Credibility is a conformal p-value,
about 0.5 on average whatever the accuracy, so the gap is theirs, not a calibration error: whether
credibility ranks right above wrong (AUROC) is shown beside it, and so is the accuracy that
entangling costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from experiments.data import Source
from experiments.draw import over_seeds, tidy
from experiments.frosst2019snnl.entangled import (
    COLORS,
    EPSILONS,
    PAPER,
    QUICK,
    Recipe,
    layers_of,
    neighbors_of,
    net,
    rows_of,
)
from experiments.record import Claim, difference
from experiments.runner import main

from vicinal.evaluation import auroc, entanglement
from vicinal.perturbations import fgsm


@dataclass(frozen=True)
class Settings:
    data: str = "mnist"
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", QUICK, (0,)),
    "cpu": Settings(),
    "paper": Settings(recipe=PAPER),
}
THEIRS: dict[str, float] = {}
SMALLER = "10,000 rows, two convolutions of 16 and 32 channels; 400 test rows"
WHY = "entangling costs accuracy, and raises the credibility of wrong answers along with right ones"


def run(settings: Settings, seed: int, source: Source) -> dict:
    rows, found = rows_of(source, settings.data, settings.recipe, seed), {}
    x, y = rows.test
    for kind in COLORS:
        model = net(source, settings.data, settings.recipe, kind, seed)
        head, gaps, ranks = neighbors_of(model, rows, settings.recipe), [], []
        accuracy, credibility = [], []
        for epsilon in EPSILONS:
            told = head.evaluate(layers_of(model, fgsm(model, x, y, epsilon) if epsilon else x))
            right = (told.labels == y).numpy()
            accuracy.append(float(right.mean()))
            credibility.append(float(told.credibility.mean()))
            gaps.append(abs(accuracy[-1] - credibility[-1]))
            if 0 < right.sum() < len(right):
                ranks.append(auroc(told.credibility[~right], told.credibility[right]))
        mixed = entanglement(layers_of(model, x), y, metric="cosine").layers
        found[kind] = {
            "net": float((model(x).argmax(1) == y).double().mean()),
            "accuracy": accuracy, "credibility": credibility, "gap": float(np.mean(gaps)),
            "auroc": float(np.mean(ranks or [0.5])), "mixed": [e.ratio for e in mixed],
        }  # fmt: skip
    trained = min(found[kind]["net"] for kind in COLORS) > 0.8
    return {**found, "trained": trained}


def claims(rows: list[dict]) -> list[Claim]:
    gap = "mean over ε of |accuracy − credibility|"
    return [
        Claim(f"{gap}: plain − entangled", difference(rows, "plain.gap", "entangled.gap")),
        Claim(f"{gap}: triplet − entangled", difference(rows, "triplet.gap", "entangled.gap")),
        Claim("AUROC of right over wrong by credibility: entangled − plain",
              difference(rows, "entangled.auroc", "plain.auroc"), beyond=True),
        Claim("the net's own accuracy: entangled − plain",
              difference(rows, "entangled.net", "plain.net", 100), beyond=True, unit="points"),
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    for kind, color in COLORS.items():
        x, _ = over_seeds([row[kind]["accuracy"] for row in rows])
        y, error = over_seeds([row[kind]["credibility"] for row in rows])
        ax.errorbar(x, y, error, color=color, marker="o", markersize=3, linewidth=1.2, label=kind)
    title = "one mark an ε, 0 (right) to 0.3 (left)"
    tidy(ax, title, "DkNN accuracy", "mean credibility").legend(fontsize=7, frameon=False)


if __name__ == "__main__":
    main(__file__)
