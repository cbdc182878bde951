"""Figures 6 and 7: the patches most similar to one, and all similarities to it, round by round.

Claims (Charpiat 2019, section 6.2): the nearest patches by k^C look alike, and differ between the
rounds; the similarities of round 2 lie further right than those of rounds 1 and 3. No numbers.

Here: the nets of Figures 1 and 2. "Look alike" is measured by the share of road, against any
patches of other photographs; those of one photograph overlap, and are counted apart.
"""

from __future__ import annotations

import numpy as np
import torch
from experiments.charpiat2019similarity import patches
from experiments.charpiat2019similarity.patches import BINS, NAMES, Settings, bright, closer, view
from experiments.data import Source
from experiments.draw import COLORS, sheet, tidy
from experiments.record import Claim
from experiments.runner import main

PICTURES = True
PRESETS = patches.PRESETS
THEIRS: dict[str, float] = {}
SMALLER = "aerial roads; 1,450 patches for 3,045"
WHY = "similarities rise with each round; each starts anew, so nothing sets round 2 above round 3"


def run(settings: Settings, seed: int, source: Source) -> dict:
    found = view(settings, seed, source)
    rows, told = torch.arange(found.seen), {}
    near = [found.nearest(similar)[rows] for similar in found.similar]
    for r, name in enumerate(NAMES):
        k = found.similar[r][rows]
        told[name] = closer(found, near[r], rows)
        told[name]["tile"] = found.at_home(found.similar[r], rows)
        told[name]["mean"] = float(k.mean())
        told[name]["one"] = (np.histogram(k[0].numpy(), BINS)[0] / k.shape[1]).round(4)
    told["shared"] = float((near[0][:, :, None] == near[1][:, None]).any(2).double().mean())
    if seed == settings.seeds[0]:
        first = torch.stack([torch.cat([rows[:1], mine[0]]) for mine in near])
        values = [k[0][mine].numpy() for k, mine in zip(found.similar, first, strict=True)]
        told["pictures"] = {"patches": found.thumbs[first.numpy()], "similar": np.stack(values)}
    return told


def claims(rows: list[dict]) -> list[Claim]:
    made = [
        Claim(f"{name}: share of road, any patch − the ten nearest",
              [row[name]["road"] for row in rows], items=["fig6"])
        for name in NAMES
    ]  # fmt: skip
    made += [
        Claim(f"{name}: rate of one photograph, nearest − any", beyond=True,
              values=[row[name]["tile"] for row in rows])
        for name in NAMES
    ]  # fmt: skip
    made.append(Claim("the lists of rounds 1 and 2 differ: share not in common > 0.1",
                      [1 - row["shared"] for row in rows], needs=0.1, items=["fig6"]))  # fmt: skip
    return made + [
        Claim(f"mean similarity, round 2 − {other}", items=["fig7"],
              values=[row["round 2"]["mean"] - row[other]["mean"] for row in rows])
        for other in ("round 1", "round 3")
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(5.0)
    axes = figure.subplots(4, 1, height_ratios=(1, 1, 1, 2.4))
    held = rows[0]["pictures"]
    for r, (ax, name) in enumerate(zip(axes, NAMES, strict=False)):
        ax.imshow(sheet(bright(held["patches"][r]), 11, gap=2))
        told = "  ".join(f"{v:.2f}" for v in held["similar"][r][1:])
        tidy(ax, f"{name}: a patch, its nearest, {told}").set_axis_off()
        middle = (BINS[1:] + BINS[:-1]) / 2
        axes[3].step(middle, rows[0][name]["one"], where="mid", color=COLORS[r], label=name)
    tidy(axes[3], "", "k^C to that patch", "share of patches").legend(fontsize=6, frameon=False)


if __name__ == "__main__":
    main(__file__)
