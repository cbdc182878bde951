"""Table 2: NED is the most accurate and best calibrated neighbor head under corruption.

Claim (Karpusha 2020, section 5): over 15 corruptions of the queries at 5 severities, with support
and T as they were, NED beats 1NN, kNN and both weighted kNN in mean accuracy and in mean ECE.
Theirs, CUB-200: kNN 60.5 / 12.3, Dudani 62.1 / 25.6, NED 64.8 / 3.0 (accuracy / ECE %).

Here: unseen FashionMNIST classes, and CIFAR-10 in the features of a published ResNet-20 (its
classes are seen ones; the support is half of the test set), with the constants of CIFAR-10-C.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from experiments import nets
from experiments.data import Source, cifar10_weights, images, parts
from experiments.draw import bars, tidy
from experiments.fit import outputs
from experiments.karpusha2020ned.retrieval import PAPERS, RIVALS, fitted, unseen_by
from experiments.record import Claim
from experiments.runner import main

from vicinal.perturbations import CORRUPTIONS
from vicinal.studies import PerturbationReport, robustness_report


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("fashion_mnist", "cifar10")
    queries: int = 500
    support: int = 4000
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (1, 3, 5)
    k: int = 50
    steps: int = 300
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


QUICK = Settings(("digits",), 150, 500, ("gaussian_noise", "contrast"), (3,), 20, 60, (0,))
PAPER = Settings(queries=2000, severities=(1, 2, 3, 4, 5), seeds=tuple(range(5)))
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": PAPER}
THEIRS = {"knn": (60.5, 12.3), "dudani": (62.1, 25.6), "gou": (62.2, 25.6), "ned": (64.8, 3.0)}
SMALLER = "FashionMNIST and CIFAR-10 for CUB-200, three severities, 500 queries"
WHY = "T is fitted to clean rows: the more a corruption turns wrong, the worse NED's ECE is"


def embedder(source: Source, name: str, settings: Settings, seed: int) -> tuple:
    """Images to embeddings, and the rows they are asked about."""
    if name == "cifar10":
        net = nets.CifarResNet().to(source.device, memory_format=torch.channels_last).eval()
        net.load_state_dict(cifar10_weights(source, "resnet20"))
        return net.embed, images(source, name, "test")
    return unseen_by(source, name, "normalized softmax", settings.steps, 64, seed)


def run(settings: Settings, seed: int, source: Source) -> dict:
    found = {}
    for name in settings.data:
        embed, (x, y) = embedder(source, name, settings, seed)
        sizes = (min(settings.support, len(x) - settings.queries), settings.queries)
        support, query = parts(x, y, sizes, seed)
        heads = fitted((outputs(embed, support[0]), support[1]), settings.k)
        report = robustness_report(
            heads, *query, embed=embed, corruptions=settings.corruptions, constants="cifar",
            severities=settings.severities, generator=torch.Generator().manual_seed(seed),
            batch_size=32,
        )  # fmt: skip
        found[name] = means(report)
    return {"sets": found, "names": settings.corruptions}


def means(report: PerturbationReport) -> dict[str, dict]:
    """Of each head: accuracy and ECE, %, over all corruptions and by corruption."""
    facts = {head: [c for c in report.corruptions if c.head == head] for head in PAPERS}
    by = {h: {"accuracy": [100 - 100 * c.error for c in mine], "ece": [100 * c.ece for c in mine]}
          for h, mine in facts.items()}  # fmt: skip
    return {h: {w: float(np.mean(v)) for w, v in b.items()} | {"by": b} for h, b in by.items()}


def claims(rows: list[dict]) -> list[Claim]:
    told = []
    for name in rows[0]["sets"]:
        seen = [row["sets"][name] for row in rows]
        gain = [s["ned"]["accuracy"] - max(s[h]["accuracy"] for h in PAPERS[:4]) for s in seen]
        less = [min(s[h]["ece"] for h in RIVALS) - s["ned"]["ece"] for s in seen]
        than, unit = "than the best rival", "points"
        told += [Claim(f"{name}: NED is more accurate {than}", gain, "+2.6", unit=unit),
                 Claim(f"{name}: NED has a lower ECE {than}", less, "+9.3", unit=unit)]  # fmt: skip
    return told


def draw(rows: list[dict], figure) -> None:
    sets, names = rows[0]["sets"], rows[0].get("names", CORRUPTIONS)
    figure.set_figheight(2.8 * len(sets) + 0.8)
    axes = figure.subplots(2 * len(sets), 1, sharex=True)
    for ax, (name, what) in zip(axes, product(sets, ("accuracy", "ece")), strict=True):
        by = {h: np.array([r["sets"][name][h]["by"][what] for r in rows]) for h in PAPERS}
        bars(ax, {c: {h: v[:, at] for h, v in by.items()} for at, c in enumerate(names)})
        means = ", ".join(f"{head} {values.mean():.1f}" for head, values in by.items())
        tidy(ax, f"{name}, {what}, mean %: {means}").tick_params(axis="x", rotation=90)
        # 1-NN is always certain: its ECE is its error, beyond the axis
        ax.set_ylim(0, 1.3 * max(by[h].mean(0).max() for h in PAPERS[1:]))
    axes[0].legend(fontsize=6, ncols=5, loc="upper left", framealpha=0.5)


if __name__ == "__main__":
    main(__file__)
