"""Figure 1: NED lies on the diagonal of the reliability diagram, kNN and weighted kNN do not.

Claim (Karpusha 2020, section 4): kNN and both weighted kNN are overconfident, NED has the smallest
ECE. The figure is of CARS196, where Table 1 has kNN 10.0, Dudani 12.2, Gou 12.3, NED 1.5 % ECE.

Here: birds that the embedding has not seen, a linear map of frozen ImageNet features at 64 px.
k = 50, as in our Table 1 (theirs is not given); k = 10 beside it, for over- or underconfident is a
matter of k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from experiments.data import Source
from experiments.draw import COLORS, diagram, over_seeds, tidy
from experiments.karpusha2020ned.retrieval import RIVALS, fitted, halves
from experiments.record import Claim
from experiments.runner import main

from vicinal.confidence import NEDClassifier
from vicinal.evaluation import noise_floor, reliability

HEADS = (*RIVALS, "ned")


@dataclass(frozen=True)
class Settings:
    data: str = "birds"
    steps: int = 300
    dim: int = 128
    ks: tuple[int, ...] = (10, 50)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", steps=60, dim=16, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings("birds_resnet50", steps=6000, dim=512),
}
THEIRS = {"knn": 10.0, "dudani": 12.2, "gou": 12.3, "ned": 1.5}
WHY = "a class has 30 rows in the support, so that a vote of 50 cannot exceed 0.6"
SMALLER = "CUB-200 for CARS196, 64 px, frozen features and a linear map"


def run(settings: Settings, seed: int, source: Source) -> dict:
    seen = halves(source, settings.data, "normalized softmax", settings.steps, settings.dim, seed)
    deepest = NEDClassifier(max(settings.ks)).fit(*seen.support)  # one search for both k
    near, found = deepest.neighborhood_of(seen.query[0]), {}
    for k in settings.ks:
        heads = fitted(deepest.support_, k)
        for name in HEADS:
            p = heads[name].log_probs_of(near.first(k)).exp()
            # in float32 a tenth is a tenth: votes lie on the edges of the bins
            confidence, at = p.float().double().max(1)
            truth = seen.query[1].cpu().numpy()
            right = np.asarray(heads[name].classes_)[at.cpu().numpy()] == truth
            bins = reliability(confidence.clamp(0, 1), right, bins=10)
            filled = bins.count > 0
            found.setdefault(f"k = {k}", {})[name] = {
                "ece": 100 * bins.ece,
                "floor": 100 * float(noise_floor(confidence.clamp(0, 1), bins=10)),
                "over": 100 * (float(confidence.mean()) - float(right.mean())),
                "confidence": np.where(filled, bins.confidence, 0.0),
                "accuracy": np.where(filled, bins.accuracy, 0.0),
                "count": bins.count,
            }
    return {"at": found}


def claims(rows: list[dict]) -> list[Claim]:
    told = []
    for k in rows[0]["at"]:
        seen, more = [row["at"][k] for row in rows], {"beyond": k != "k = 50", "unit": "points"}
        for h in RIVALS:
            gap = [s[h]["ece"] - s["ned"]["ece"] for s in seen]
            theirs = f"{THEIRS[h] - THEIRS['ned']:+.1f}"
            told.append(Claim(f"{k}: ECE of {h} − ECE of NED", gap, theirs, **more))
            told.append(Claim(f"{k}: {h} is overconfident", [s[h]["over"] for s in seen], **more))
    return told


def draw(rows: list[dict], figure) -> None:
    figure.set_figheight(3.4)
    axes = figure.subplots(len(rows[0]["at"]), 4, sharex=True, sharey=True)
    for line, k in zip(axes, rows[0]["at"], strict=True):
        for ax, name, color in zip(line, HEADS, COLORS, strict=False):
            seen = [row["at"][k][name] for row in rows]
            bins = [[s[what] for what in ("confidence", "accuracy", "count")] for s in seen]
            diagram(ax, bins, color)
            mean, error = over_seeds([[s["ece"]] for s in seen])
            tidy(ax, f"{name}, {k}\nECE {mean[0]:.1f} ± {error[0]:.1f} %")
    figure.supxlabel("confidence (a dot's size: how many queries)", fontsize=8)
    figure.supylabel("accuracy", fontsize=8)


if __name__ == "__main__":
    main(__file__)
