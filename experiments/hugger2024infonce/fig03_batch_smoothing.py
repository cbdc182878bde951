"""Figure 3: soft-target InfoNCE needs large batches, and cares less about label smoothing.

Claims (Hugger 2024, section 4.2): (a) small batches cost soft-target InfoNCE more than soft
cross-entropy (4.21 points at the smallest), at large ones they are on par (+0.19); (b) over the
smoothing ε its accuracy varies less (standard deviation 0.12 against 0.34).

Here: heads on frozen features of 200 kinds of birds, at equal epochs, each at the rate that is best
on held-out rows; beside them our remedy, noise targets drawn apart from the batch, so that absent
classes are repelled too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from experiments.data import Source
from experiments.draw import curves, tidy
from experiments.fit import accuracy
from experiments.hugger2024infonce.heads import Recipe, feature_parts, trained
from experiments.record import Claim
from experiments.runner import main


@dataclass(frozen=True)
class Settings:
    data: str = "birds"
    epochs: int = 10
    rates: tuple[float, ...] = (1e-3, 3e-3)
    batches: tuple[int, ...] = (32, 128, 512, 1024)
    epsilons: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    bank: int = 1024
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 2, (3e-3,), (16, 64), (0.0, 0.3), 64, (0,)),
    "cpu": Settings(),
    "paper": Settings("tiny_imagenet_vitb16", epochs=100, rates=(3e-4,), bank=4096),
}
THEIRS = {"smallest batch": 4.21, "largest batch": -0.19, "sd InfoNCE": 0.12, "sd CE": 0.34}
WHY = (
    "smoothing shrinks what tells two targets apart by 1 − ε, which slows InfoNCE: it loses 3 "
    "points from ε = 0 to 0.5"
)
SMALLER = "a head on frozen features of CUB-200 instead of a ViT on Tiny ImageNet, 10 epochs"
LINES = {"soft CE": ("soft CE", False), "InfoNCE": ("soft target", False),
         "InfoNCE + bank": ("soft target", True)}  # fmt: skip


def run(settings: Settings, seed: int, source: Source) -> dict:
    train, held, test = feature_parts(source, settings.data, seed)
    classes = int(train[1].max()) + 1
    found: dict = {
        "batches": settings.batches,
        "epsilons": settings.epsilons,
        "batch": {},
        "eps": {},
    }
    for name, (loss, bank) in LINES.items():
        base = Recipe(settings.epochs, max(settings.batches), 0, bank=settings.bank if bank else 0)

        @cache
        def right(recipe: Recipe, loss: str = loss) -> float:
            """At the rate that is best on held-out rows."""
            ways = (replace(recipe, rate=rate) for rate in settings.rates)
            made = [trained(loss, way, train, classes, seed) for way in ways]
            return 100 * accuracy(max(made, key=lambda net: accuracy(net, *held)), *test)

        found["batch"][name] = [right(replace(base, batch=b)) for b in settings.batches]
        if not bank:
            found["eps"][name] = [right(replace(base, epsilon=e)) for e in settings.epsilons]
    return found


def claims(rows: list[dict]) -> list[Claim]:
    def gap(row: dict, at: int, name: str = "InfoNCE") -> float:
        return row["batch"]["soft CE"][at] - row["batch"][name][at]

    lost = [gap(r, 0) - gap(r, -1) for r in rows]
    spread = [np.std(r["eps"]["soft CE"]) - np.std(r["eps"]["InfoNCE"]) for r in rows]
    a, b = {"items": ["fig3a"], "unit": "points"}, {"items": ["fig3b"], "unit": "points"}
    return [
        Claim("the gap to soft CE is larger at the smallest batch", lost, "+4.4", **a),
        Claim("on par at the largest batch, within 2 points", [gap(r, -1) for r in rows], "-0.19",
              within=2.0, **a),
        Claim("standard deviation over ε: soft CE − InfoNCE", spread, "+0.22", **b),
        Claim("noise targets beside the batch mend the smallest batch",
              [gap(r, 0) - gap(r, 0, "InfoNCE + bank") for r in rows], beyond=True, **a),
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    curves(left, rows[0]["batches"], {n: [r["batch"][n] for r in rows] for n in rows[0]["batch"]})
    curves(right, rows[0]["epsilons"], {n: [r["eps"][n] for r in rows] for n in rows[0]["eps"]})
    left.set_xscale("log", base=2)
    tidy(left, "", "batch size", "top-1, %").legend(fontsize=7, frameon=False)
    tidy(right, "", "label smoothing ε")


if __name__ == "__main__":
    main(__file__)
