"""Figures 1 and 5: does InfoNCE estimate a conditional model better than NLL as modes align?

Claim (Hugger 2024, section 3.1, A.1): with more alignment of 20 Gaussian modes, hence more label
noise, the KL divergence of the true conditional from the fit grows more slowly for InfoNCE than for
NLL. The figure prints no numbers. Figure 5 shows the mixtures by t-SNE.

Here: the paper's 20 modes in R^20, 1,600 points, 32,000 labels, batches of 1,024, Adam at 1e-3;
modes contracted to the first axis. InfoNCE with η the label frequencies (for which
it *is* cross-entropy plus log n_y) and with η uniform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from experiments.data import Source
from experiments.draw import COLORS, curves, tidy
from experiments.hugger2024infonce.mixtures import divergence, mixture
from experiments.record import Claim
from experiments.runner import main
from sklearn.manifold import TSNE

from vicinal.losses import info_nce

LOSSES = {
    "NLL": lambda z, y, eta: F.cross_entropy(z, y),
    "InfoNCE, frequencies": lambda z, y, eta: info_nce(z, y, noise=eta),
    "InfoNCE, uniform": lambda z, y, eta: info_nce(z, y),
}


@dataclass(frozen=True)
class Settings:
    modes: int = 20
    points: int = 1600
    labels: int = 32_000
    epochs: int = 75
    alignments: tuple[int, ...] = (0, 40, 60, 80)
    seeds: tuple[int, ...] = tuple(range(10))


QUICK = Settings(points=200, labels=4000, epochs=5, alignments=(0, 40, 80), seeds=(0,))
PAPER = Settings(epochs=500, alignments=tuple(range(0, 81, 10)), seeds=tuple(range(10)))
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": PAPER}
THEIRS: dict[str, float] = {}
SMALLER = "the paper's own data; 75 epochs instead of up to 500"
WHY = (
    "NLL is the maximum likelihood of the model that made the labels, and InfoNCE with η = label "
    "frequencies is the same loss up to a constant; with uniform η it estimates p(k|x)/p(k)"
)


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {"alignments": settings.alignments, "kl": {}, "maps": {}}
    made = {
        a: [t.to(source.device) for t in mixture(settings.modes, settings.points, a, seed)]
        for a in settings.alignments
    }
    fits = settings.labels, settings.epochs, seed
    for name, loss in LOSSES.items():
        found["kl"][name] = [divergence(loss, *made[a], *fits) for a in made]
    for a in settings.alignments if seed == 0 else ():
        flat = TSNE(2, random_state=0, perplexity=20, max_iter=300).fit_transform(
            made[a][0][:200].cpu()
        )
        found["maps"][f"{a} %"] = flat.round(1).T.tolist()
    return found


def claims(rows: list[dict]) -> list[Claim]:
    told, theirs = [], "clearly lower"
    for loss in list(LOSSES)[1:]:
        for at, a in enumerate(rows[0]["alignments"]):
            kl = [(r["kl"]["NLL"][at], r["kl"][loss][at]) for r in rows]
            if a >= 40:
                gain = [100 * (1 - other / nll) for nll, other in kl]
                sentence = f"{a} % aligned: KL of {loss} is over 1 % below NLL's"
                told.append(Claim(sentence, gain, theirs, 1.0, items=["fig1"], unit="%"))
    return told


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(3.6)
    maps = rows[0]["maps"]
    top, bottom = figure.subfigures(2, 1, height_ratios=(2, 1))
    ax = top.subplots()
    curves(ax, rows[0]["alignments"], {n: [r["kl"][n] for r in rows] for n in LOSSES})
    ax.set_yscale("log")
    ax.tick_params(which="both", labelsize=7)
    tidy(ax, "", "alignment of the modes, %", "KL(true ‖ fit)").legend(fontsize=7, frameon=False)
    for ax, (name, (x, y)) in zip(
        np.atleast_1d(bottom.subplots(1, len(maps))), maps.items(), strict=True
    ):
        ax.scatter(x, y, s=1, color=COLORS[0])
        # t-SNE throws a point far out now and then
        limits = [np.quantile(v, (0.01, 0.99)) + np.ptp(v) * np.array([-0.1, 0.1]) for v in (x, y)]
        ax.set(xticks=[], yticks=[], xlim=limits[0], ylim=limits[1])
        tidy(ax, name)


if __name__ == "__main__":
    main(__file__)
