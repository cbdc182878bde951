"""Figures 1 and 2: maps aligned by a net that learnt from maps that are off, in rounds.

Claims (Charpiat 2019, sections 1 and 6.1): the alignments are far better than the annotations they
were learnt from (median 18 → 3.5 px), better after each round, and about as good when more noise is
added to the annotations.

Here: aerial photographs with roads for Inria's buildings, one offset per patch for a displacement
field, N(0, 2.5 px) added to maps that lie right, three rounds of 2,000 steps; and generated scenes
(rectangles on rough ground), also with 3.5 px, four rounds: after three, more noise still tells.
Held-out photographs are aligned by the same nets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from experiments.charpiat2019similarity import maps
from experiments.charpiat2019similarity.maps import (
    MARGIN,
    PATCH,
    QUICK,
    REACH,
    Recipe,
    error,
    evenly,
)
from experiments.charpiat2019similarity.patches import bright
from experiments.data import Source
from experiments.draw import COLORS, over_seeds, tidy
from experiments.record import Claim
from experiments.runner import main

TAU = np.linspace(0, 8, 33)
PICTURES = True


@dataclass(frozen=True)
class Settings:
    recipes: tuple[Recipe, ...] = (
        Recipe(), *(Recipe("generated", 300, 60, 180, noise, rounds=4) for noise in (2.5, 3.5)),
    )  # fmt: skip
    seeds: tuple[int, ...] = (0, 1, 2)


PRESETS = {
    "quick": Settings((QUICK, replace(QUICK, noise=3.5)), (0,)),
    "cpu": Settings(),
    "paper": Settings((Recipe("aerial", 2000, 400, 4000, width=32), *Settings().recipes[1:])),
}
THEIRS = {"median given": 18.0, "median after three rounds": 3.5}
SMALLER = "aerial roads and generated scenes for Inria's buildings; offsets for displacement fields"


def run(settings: Settings, seed: int, source: Source) -> dict:
    found, pictures = {}, {}
    for recipe in settings.recipes:
        name = f"{recipe.scenes} {recipe.noise}"
        _, held, rounds = maps.aligned(source, recipe, seed)
        found[name] = {part: [float(error(o).median()) for o in getattr(rounds, part)]
                       for part in ("train", "held")}  # fmt: skip
        ends = [error(o).cpu().numpy() for o in rounds.train]
        found[name]["below"] = [[float((end < t).mean()) for t in TAU] for end in ends]
        if not pictures:
            inner, four = slice(REACH, REACH + PATCH), evenly(len(held.tile), 4)
            seen, offsets = held.of(four), torch.stack([o[four] for o in rounds.held])
            pictures = {"image": seen.image[:, :, inner, inner].movedim(1, 3).cpu().numpy(),
                        "map": seen.map.cpu().numpy(), "offset": offsets.cpu().numpy()}  # fmt: skip
    return {**found, **({"pictures": pictures} if seed == settings.seeds[0] else {})}


def claims(rows: list[dict]) -> list[Claim]:
    sets, made = [k for k in rows[0] if " " in k], []
    for name in sets:
        for part in ("train", "held"):
            med, ours = np.array([row[name][part] for row in rows]).T, part == "held"
            told = f"{name} px, {'other' if ours else 'training'} photographs: median error"
            made += [Claim(f"{told}, given − round 1", med[0] - med[1], beyond=ours, unit="px"),
                     Claim(f"{told}, round 1 − round 3", med[1] - med[3], beyond=ours, unit="px",
                           theirs="18 → 3.5")]  # fmt: skip
    ends = [row[sets[-1]]["train"][-1] - row[sets[-2]]["train"][-1] for row in rows]
    return [*made, Claim("more noise: about as good (within 0.5 px)", ends, within=0.5, unit="px",
                         items=["fig2"])]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(4.2)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    held, sets = rows[0]["pictures"], [k for k in rows[0] if " " in k]
    above.suptitle("maps of other photographs: red given, blue round 1, green round 2", fontsize=9)
    for at, ax in enumerate(above.subplots(1, 4)):
        ax.imshow(bright(held["image"][at]))
        for state, color in ((0, "#ff3030"), (1, "#3060ff"), (2, "#30ff30")):
            y, x = held["offset"][state, at]
            places = np.arange(held["map"].shape[-1]) - MARGIN - REACH
            ax.contour(places - x, places - y, held["map"][at], [0.5], colors=color, linewidths=1.2)
        ax.set(xlim=(0, PATCH - 1), ylim=(PATCH - 1, 0))
        ax.set_axis_off()
    axes = below.subplots(1, len(sets), sharey=True)
    for ax, name in zip(axes, sets, strict=True):
        for r, mean in enumerate(over_seeds([row[name]["below"] for row in rows])[0]):
            state = f"round {r}" if r else "given"
            ax.plot(TAU, mean, color=COLORS[r], label=state, linestyle="-" if r else "--")
        tidy(ax, f"{name} px", "error below, px", "" if name != sets[0] else "share of maps")
    axes[-2].legend(fontsize=7, frameon=False)


if __name__ == "__main__":
    main(__file__)
