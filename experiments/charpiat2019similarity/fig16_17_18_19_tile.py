"""Figures 16 to 19: ten fixed patches of an unseen photograph and their nearest, round by round.

Claims (Charpiat 2019, appendix F): (16 to 18) the nearest patches of the same ten look alike in
every round; (19) their histograms of similarity differ from round to round. No numbers.

Here: patches of held-out aerial photographs and their nearest in the training set, by the nets of
Figures 1 and 2; the share of road measures what looks alike.
"""

from __future__ import annotations

import numpy as np
import torch
from experiments.charpiat2019similarity import patches
from experiments.charpiat2019similarity.patches import (
    BINS,
    NAMES,
    Settings,
    closer,
    draw_rounds,
    ten_and_nearest,
    view,
)
from experiments.data import Source
from experiments.record import Claim
from experiments.runner import main

PICTURES = True
FIGURES = ("fig16", "fig17", "fig18")
PRESETS = patches.PRESETS
THEIRS: dict[str, float] = {}
SMALLER = "aerial roads; 1,200 patches to look among"
WHY = "the histograms do move, by 0.04 of 1; the bound of 0.1 is ours, to be more than noise"


def run(settings: Settings, seed: int, source: Source) -> dict:
    found, told = view(settings, seed, source), {}
    every = torch.arange(found.seen, len(found.tile))
    # ten of the unseen photograph with the most patches (of others, should it have fewer)
    elsewhere = found.tile[every] != found.tile[every].mode().values
    ten, pictures, shares = every[elsewhere.int().argsort(stable=True)[:10]], [], []
    for r, name in enumerate(NAMES):
        among = found.similar[r][:, : found.seen]
        near = among.topk(10, 1).indices
        share = np.histogram(among[ten].numpy(), BINS)[0] / (10 * found.seen)
        told[name] = {"road": closer(found, near[every], every)["road"],
                      "spread": float(among[ten].std()), "histogram": share.round(4)}  # fmt: skip
        shares.append(share)
        pictures.append(ten_and_nearest(found, near[ten], ten, among))
    # half the sum of differences: 0 for equal histograms, 1 for disjoint ones
    told["apart"] = float(np.mean([np.abs(shares[r] - shares[r - 1]).sum() / 2 for r in (1, 2)]))
    shown = {key: np.stack([p[key] for p in pictures]) for key in pictures[0]}
    return {**told, **({"pictures": shown} if seed == settings.seeds[0] else {})}


def claims(rows: list[dict]) -> list[Claim]:
    made = [
        Claim(f"{name}: share of road, any patch − the ten nearest",
              [row[name]["road"] for row in rows], items=[figure])
        for name, figure in zip(NAMES, FIGURES, strict=True)
    ]  # fmt: skip
    return [*made, Claim("histograms of successive rounds differ by more than 0.1",
                         [row["apart"] for row in rows], needs=0.1, items=["fig19"])]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    draw_rounds(figure, rows[0]["pictures"], "the same ten", below=False)


if __name__ == "__main__":
    main(__file__)
