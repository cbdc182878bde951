"""Figures 11 to 15: neighbor counts of all patches, and the neighbors of ten of them, by round.

Claims (Charpiat 2019, appendix F, section 6.3): (11) the soft counts of round 2 are the largest;
(12 to 14) the nearest of ten patches, from few neighbors to many, look alike; (15) patches with
more neighbors have histograms further right. Section 6.3: the denoising factor is small, 0.02, in
all rounds, and the shift (4.4 px) is like the observed error.

Here: the nets of Figures 1 and 2, 1,450 patches; road shares measure what looks alike.
"""

from __future__ import annotations

import numpy as np
import torch
from experiments.charpiat2019similarity import patches
from experiments.charpiat2019similarity.patches import (
    NAMES,
    Settings,
    closer,
    draw_rounds,
    ten_and_nearest,
    view,
)
from experiments.data import Source
from experiments.draw import COLORS, tidy
from experiments.record import Claim
from experiments.runner import main
from scipy.stats import spearmanr

BINS, PICTURES = np.linspace(-0.2, 0.5, 36), True
FIGURES = ("fig12", "fig13", "fig14")
PRESETS = patches.PRESETS
THEIRS = {"denoising factor": 0.02, "shift, px": 4.4}
SMALLER = "aerial roads; 1,450 patches for 3,045"
WHY = (
    "counts rise with each round, and nothing sets round 2 above round 3; ten patches are few to "
    "tell their nearest from any by: in Figure 6, of 1,200, each round holds"
)


def run(settings: Settings, seed: int, source: Source) -> dict:
    found, told = view(settings, seed, source), {}
    pictures = []
    for r, name in enumerate(NAMES):
        share = found.similar[r].mean(1)  # N_S / n
        ten = share.argsort()[torch.linspace(0, len(share) - 1, 10).long()]
        near = found.nearest(found.similar[r])[ten]
        middle = found.similar[r][ten].median(1).values
        told[name] = closer(found, near, ten) | {
            "count": float(share.mean()),
            "histogram": (np.histogram(share.numpy(), BINS)[0] / len(share)).round(4),
            "order": float(spearmanr(share[ten], middle)[0]),
            "factor": float(found.factor[r].median()),
            "shift": float(found.shift[r].median()),
            "wrong": float(found.wrong[r].median()),
            "rank": float(np.nan_to_num(spearmanr(found.shift[r], found.wrong[r])[0])),
        }
        pictures.append(ten_and_nearest(found, near, ten, found.similar[r]))
    shown = {key: np.stack([p[key] for p in pictures]) for key in pictures[0]}
    return {**told, **({"pictures": shown} if seed == settings.seeds[0] else {})}


def claims(rows: list[dict]) -> list[Claim]:
    def of(name: str, what: str) -> list[float]:
        return [row[name][what] for row in rows]

    made = [Claim(f"mean soft count / n, round 2 − {other}", items=["fig11"],
                  values=np.subtract(of("round 2", "count"), of(other, "count")))
            for other in ("round 1", "round 3")]  # fmt: skip
    for name, figure in zip(NAMES, FIGURES, strict=True):
        told = f"{name}: share of road, any patch − nearest of ten"
        order = f"{name}: more neighbors, histogram further right (Spearman's ρ)"
        made += [Claim(told, of(name, "road"), items=[figure]),
                 Claim(order, of(name, "order"), items=["fig15"]),
                 Claim(f"{name}: denoising factor below 0.1", np.negative(of(name, "factor")),
                       "0.02", needs=-0.1, beyond=True),
                 Claim(f"{name}: larger shift, larger error (Spearman's ρ)", of(name, "rank"),
                       "4.4 px and about as much", beyond=True)]  # fmt: skip
    return made


def draw(rows: list[dict], figure) -> None:
    below = draw_rounds(figure, rows[0]["pictures"], "ten patches", below=True)
    for r, (ax, name) in enumerate(zip(below, NAMES, strict=True)):
        mean = np.mean([row[name]["histogram"] for row in rows], 0)
        ax.stairs(mean, BINS, fill=True, color=COLORS[r])
        factor = np.mean([row[name]["factor"] for row in rows])
        tidy(ax, f"denoising factor {factor:.2f}", "soft count / n", "" if r else "patches")


if __name__ == "__main__":
    main(__file__)
