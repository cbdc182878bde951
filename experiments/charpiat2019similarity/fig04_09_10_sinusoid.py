"""Figures 4, 9 and 10: the harder the sinusoid, the fewer neighbors; fewest where it bends.

Claims (Charpiat 2019, section 4.4, appendix D): a network that learns sin(2π f α) from points on a
circle has (4) neighbor counts that fall as 1/f, whatever the estimator, and (9, 10) fewer neighbors
where the curve bends more, at f = 2 and at every other f.

Here: as the text says, 2048 points, five hidden layers of 64, Adam at 1e-4 for 80 epochs, f = 1 to
16; batches of 64 and L1 as in the released code, which has six layers and 5,000 epochs. Eleven
of its estimators; a slope is over the f that are learnt (mean error below 0.1 of 1), all are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from experiments.charpiat2019similarity.sinusoid import circle, curvature, learnt, slope, trained
from experiments.data import Source
from experiments.draw import COLORS, curves, over_seeds, tidy
from experiments.record import Claim
from experiments.runner import main
from scipy.stats import spearmanr

from vicinal.similarity import GradientKernel

HARD, POSITIVE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99), (2, 3, 4)
ESTIMATORS: dict[str, str | tuple[str, float]] = {"soft": "soft"}
ESTIMATORS |= {f"positive {n}": ("positive", float(n)) for n in POSITIVE}
ESTIMATORS |= {f"hard {t}": ("hard", t) for t in HARD}


@dataclass(frozen=True)
class Settings:
    frequencies: tuple[int, ...] = (1, 2, 4, 8, 16)
    points: int = 2048
    width: int = 64
    hidden: int = 5
    epochs: int = 80
    batch: int = 64
    rate: float = 1e-4
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


QUICK = Settings((1, 4), points=128, width=32, hidden=3, epochs=80, batch=16, rate=2e-3, seeds=(0,))
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": Settings()}
THEIRS = {"slope": -1.0}
SMALLER = "nothing, by the text; the released code has six layers and 5,000 epochs"
WHY = "each ReLU of layer 1 is on for half the circle: k^C keeps a floor and a bump of 0.2 of it"


def run(settings: Settings, seed: int, source: Source) -> dict:
    alpha, x = circle(settings.points, source.device)
    shown = slice(None, None, -(-settings.points // 48))
    fits = trained(settings, seed, source.device)
    kernels = [GradientKernel(model) for model, _ in fits]
    counts = {
        name: [float(k.neighbors(x, estimator=e).mean()) for k in kernels]
        for name, e in ESTIMATORS.items()
    }
    errors = [error for _, error in fits]
    some = learnt([errors]) or [0, 1]
    f = [settings.frequencies[at] for at in some]
    slopes = {name: slope(f, [n[at] for at in some]) for name, n in counts.items()}
    soft = [k.neighbors(x).cpu().numpy() for k in kernels]
    bends = [curvature(alpha.cpu().numpy(), f) for f in settings.frequencies]
    bent = [float(spearmanr(b, n)[0]) for b, n in zip(bends, soft, strict=True)]
    return {"frequencies": settings.frequencies, "counts": counts, "slopes": slopes, "bent": bent,
            "soft": [n[shown].round(1) for n in soft], "error": errors}  # fmt: skip


def claims(rows: list[dict]) -> list[Claim]:
    made = [
        Claim(f"{name}: the slope of log N on log f is -1", [r["slopes"][name] for r in rows],
              theirs="-1", equals=-1.0, items=["fig4"])
        for name in ESTIMATORS
    ]  # fmt: skip
    known, f = learnt([r["error"] for r in rows]), rows[0]["frequencies"]
    for at in known:
        told = f"f = {f[at]}: fewer soft neighbors where it bends (−Spearman's ρ)"
        items = ["fig9", "fig10"] if f[at] == 2 else ["fig10"]
        made.append(Claim(told, [-r["bent"][at] for r in rows], items=items))
    return made + [
        Claim(f"{name}: every higher f leaves fewer neighbors",
              [min(-np.diff(np.take(r["counts"][name], known))) for r in rows], beyond=True)
        for name in ("soft", "hard 0.9")
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(5.6)
    made = figure.subplot_mosaic("aa\nbc", per_subplot_kw={"c": {"projection": "3d"}})
    (ax, below, deep), f = made.values(), np.array(rows[0]["frequencies"])
    curves(ax, f, {name: [row["counts"][name] for row in rows] for name in ESTIMATORS})
    ax.loglog(f, rows[0]["counts"]["soft"][0] / f, "k--", linewidth=0.8, label="1/f", base=2)
    known = ", ".join(str(f[at]) for at in learnt([r["error"] for r in rows]))
    tidy(ax, "Figure 4", f"frequency f (learnt: {known})", "neighbors")
    ax.legend(fontsize=7, bbox_to_anchor=(1, 1), handlelength=3)
    below.margins(y=0.2)
    places = np.linspace(0, 1, len(rows[0]["soft"][0]), endpoint=False)
    for at, (n, color) in enumerate(zip(f, COLORS, strict=False)):
        soft = over_seeds([row["soft"][at] for row in rows])[0]
        below.plot(places, soft, color=color, label=f"f = {n}")
        deep.plot(places, np.log10(np.maximum(curvature(places, n), 1e-2)), soft, color=color)
    tidy(below, "Figure 9, for all f", "angle α", "soft count")
    below.legend(fontsize=6, ncols=4, loc=9, frameon=False, columnspacing=1, handlelength=1)
    tidy(deep, "Figure 10", "α", "log₁₀ curvature").view_init(25, -60)


if __name__ == "__main__":
    main(__file__)
