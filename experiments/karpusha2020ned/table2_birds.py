"""Table 2 on its own birds: NED and its rivals under corruption, images of CUB-200.

Claim (Karpusha 2020, section 5), CUB-200: as in table2_corruptions.py. Theirs: kNN 60.5 / 12.3,
Dudani 62.1 / 25.6, NED 64.8 / 3.0 (accuracy / ECE %).

Here: unseen birds at 64 px, EfficientNet-Lite0 and a linear map, with the constants of CIFAR-10-C.
The trunk takes 4 ms an image, hence three severities of five and 500 queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from experiments.data import Source, bird_trunk, images, parts
from experiments.fit import outputs
from experiments.karpusha2020ned.retrieval import fitted, unseen_by
from experiments.karpusha2020ned.table2_corruptions import THEIRS, claims, draw, means
from experiments.runner import main

from vicinal.perturbations import CORRUPTIONS
from vicinal.studies import robustness_report


@dataclass(frozen=True)
class Settings:
    data: str = "birds"
    queries: int = 500
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (1, 3, 5)
    k: int = 50
    steps: int = 300
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 100, ("contrast",), (3,), k=20, steps=30, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(queries=3000, severities=(1, 2, 3, 4, 5), steps=6000),
}
SMALLER = "64 px, a frozen trunk and a linear map; three severities of five, 500 queries"
WHY = "Dudani and Gou are as accurate, as on clean birds (Table 1), where NED is 0.3 points behind"


def run(settings: Settings, seed: int, source: Source) -> dict:
    last, (x, y) = unseen_by(source, settings.data, "normalized softmax", settings.steps, 128, seed)
    sizes = (min(3000, len(x) - settings.queries), settings.queries)
    support, query = parts(outputs(last, x), y, sizes, seed)[0], parts(x, y, sizes, seed)[1]
    embed = last
    if settings.data == "birds":  # the support by its stored features, queries by their pixels
        pixels, trunk = images(source, "cub200", "test_classes")[0], bird_trunk(source)
        query = parts(pixels, y, sizes, seed)[1]
        embed = lambda rows: last(trunk(rows))  # noqa: E731
    report = robustness_report(
        fitted(support, settings.k), *query, embed=embed, corruptions=settings.corruptions,
        severities=settings.severities, constants="cifar", batch_size=16,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return {"sets": {settings.data: means(report)}, "names": settings.corruptions}


__all__ = ["THEIRS", "claims", "draw"]

if __name__ == "__main__":
    main(__file__)
