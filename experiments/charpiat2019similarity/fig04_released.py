"""Figure 4 once more, with the settings of the released code: 1/f, or a bump on a floor?

Claim (Charpiat 2019, section 4.4): the number of neighbors falls as 1/f. The released code differs
from the text: six hidden layers, L1, batches of 64, and 5,000 epochs where the text has 80.

Here: six layers and 250 epochs, after which every f up to 8 is learnt. Beside the counts, the mean
of k^C over pairs at one angle from each other: what the counts are made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from experiments.charpiat2019similarity.sinusoid import circle, slope, trained
from experiments.data import Source
from experiments.draw import curves, tidy
from experiments.record import Claim
from experiments.runner import main
from torch import Tensor

from vicinal.similarity import GradientKernel

ESTIMATORS = {"soft": "soft", "hard 0.5": ("hard", 0.5), "hard 0.9": ("hard", 0.9)}
STEPS = 64  # angles at which the kernel is looked at


@dataclass(frozen=True)
class Settings:
    frequencies: tuple[int, ...] = (1, 2, 4, 8)
    points: int = 2048
    width: int = 64
    hidden: int = 6
    epochs: int = 250
    batch: int = 64
    rate: float = 1e-4
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


QUICK = Settings((1, 4), points=128, width=32, hidden=3, epochs=60, batch=16, rate=2e-3, seeds=(0,))
PAPER = Settings((1, 2, 4, 8, 16), epochs=5000, seeds=(0, 1, 2, 3, 4))
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": PAPER}
THEIRS = {"slope": -1.0}
SMALLER = "250 epochs for 5,000; f up to 8 instead of 16"
WHY = "with f the floor under the bump of k^C falls, and hardly the bump's width"


def profile(kernel: GradientKernel, x: Tensor) -> Tensor:
    """The mean of k^C over all pairs whose angles differ by 0, 1/STEPS, … of the circle."""
    alike = kernel.gram(x[:: len(x) // STEPS])
    return torch.stack([alike.roll(-at, 1).diagonal().mean() for at in range(STEPS)])


def run(settings: Settings, seed: int, source: Source) -> dict:
    _, x = circle(settings.points, source.device)
    fits = trained(settings, seed, source.device)
    kernels = [GradientKernel(model) for model, _ in fits]
    counts = {
        name: [float(k.neighbors(x, estimator=e).mean()) for k in kernels]
        for name, e in ESTIMATORS.items()
    }
    shapes = [profile(k, x).cpu() for k in kernels]
    wide = [float((s > (1 + s.min()) / 2).double().mean()) for s in shapes]
    return {
        "frequencies": settings.frequencies, "error": [e for _, e in fits], "counts": counts,
        "slopes": {name: slope(settings.frequencies, n) for name, n in counts.items()},
        "profile": [s.numpy().round(4) for s in shapes], "floor": [float(s.min()) for s in shapes],
        "width": wide, "trained": max(e for _, e in fits) < 0.1,
    }  # fmt: skip


def claims(rows: list[dict]) -> list[Claim]:
    made = [
        Claim(f"{name}: the slope of log N on log f is -1", [r["slopes"][name] for r in rows],
              theirs="-1", equals=-1.0)
        for name in ESTIMATORS
    ]  # fmt: skip
    floors = [r["floor"][0] - r["floor"][-1] for r in rows]
    narrow = [r["width"][1] / r["width"][-1] - 2 for r in rows]
    return [
        *made,
        Claim("the floor of k^C falls from the smallest f to the largest", floors, beyond=True),
        Claim("from f = 2 to the largest, the bump is more than halved", narrow, beyond=True),
    ]


def draw(rows: list[dict], figure) -> None:
    (ax, right), f = figure.subplots(1, 2), np.array(rows[0]["frequencies"])
    curves(ax, f, {name: [row["counts"][name] for row in rows] for name in ESTIMATORS})
    ax.loglog(f, rows[0]["counts"]["soft"][0] / f, "k--", linewidth=0.8, label="1/f", base=2)
    tidy(ax, "", "frequency f", "mean number of neighbors").legend(fontsize=6, frameon=False)
    angles = np.arange(STEPS) / STEPS
    curves(right, angles, {f"f = {n}": [r["profile"][i] for r in rows] for i, n in enumerate(f)})
    tidy(right, "", "difference of angles, of the circle", "mean k^C").legend(fontsize=6)


if __name__ == "__main__":
    main(__file__)
