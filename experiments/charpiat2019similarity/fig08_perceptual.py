"""Figure 8: neighbors by a perceptual loss make less sense than those by the net's own similarity.

Claim (Charpiat 2019, section 6.2): the patches nearest to one by the activations of a network
trained on photographs (VGG there) are less alike than those by k^C. No numbers are printed.

Here: the activations of a published CIFAR-10 ResNet-20. The net was to find where roads are, so
their share and directions should be alike. On photographs its maps stay off by 2.0 of 2.9 px, so
that generated scenes stand beside them, which it has learnt: 0.4 of 2.8 px (theirs: 3.5 of 18).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from experiments import nets
from experiments.charpiat2019similarity import patches
from experiments.charpiat2019similarity.maps import QUICK, Recipe
from experiments.charpiat2019similarity.patches import NAMES, bright, closer, view
from experiments.data import Source, cifar10_weights
from experiments.draw import sheet, tidy
from experiments.record import Claim, difference
from experiments.runner import main

from vicinal.similarity import perceptual_gram

PICTURES, STAGES, LAST = True, ("layer1", "layer2", "layer3"), len(NAMES) - 1


@dataclass(frozen=True)
class Settings(patches.Settings):
    generated: Recipe = field(default_factory=lambda: Recipe("generated", 300, 60, 180, rounds=4))
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PAPER = patches.PRESETS["paper"]
PRESETS = {
    "quick": Settings(QUICK, 40, 20, generated=QUICK, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(PAPER.recipe, PAPER.patches, PAPER.held),
}
THEIRS: dict[str, float] = {}
SMALLER = "ResNet-20 of CIFAR-10 for VGG, 1,450 patches of aerial roads, 360 generated"
WHY = (
    "on photographs activations find the share of road, k^C the directions, on which offsets "
    "depend; in scenes that the net has learnt k^C wins in both"
)


def run(settings: Settings, seed: int, source: Source) -> dict:
    with nets.seeded(seed):
        net = nets.CifarResNet().eval()
    if source.root is not None:  # quick runs have no data
        net.load_state_dict(cifar10_weights(source, "resnet20"))
    told, pictures = {}, {}
    for name, recipe in (("aerial", settings.recipe), ("generated", settings.generated)):
        found = view(replace(settings, recipe=recipe), seed, source)
        alike = perceptual_gram(net, found.image, layers=list(STAGES))
        rows, told[name] = torch.arange(len(alike)), {}
        for by, similar in (("activations", alike), ("k^C", found.similar[LAST])):
            near = found.nearest(similar)
            home = found.at_home(similar, rows)
            told[name][by] = closer(found, near, rows) | {"tile": home}
            pictures[f"{name}, by {by}"] = found.thumbs[[0, *near[0].tolist()]]
    return {**told, **({"pictures": pictures} if seed == settings.seeds[0] else {})}


def claims(rows: list[dict]) -> list[Claim]:
    kinds = {
        "road": "share of road",
        "turn": "directions of roads",
        "tile": "rate of one photograph",
    }
    pairs = [(name, what) for name in ("aerial", "generated") for what in ("road", "turn")]
    return [
        Claim(f"{name}, {kinds[what]}: nearest by k^C (round 3) more alike than by activations",
              difference(rows, f"{name}.k^C.{what}", f"{name}.activations.{what}"),
              beyond=what == "tile")
        for name, what in (*pairs, ("aerial", "tile"))
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    held = rows[0]["pictures"]
    figure.set_figheight(0.85 * len(held))
    for ax, (title, shown) in zip(figure.subplots(len(held), 1), held.items(), strict=True):
        ax.imshow(sheet(bright(shown), 11, gap=2))
        name, by = title.split(", by ")
        gain = np.mean([row[name][by]["road"] for row in rows])
        tidy(ax, f"{name}: a patch and its nearest by {by} (in share {gain:+.3f} nearer than any)")
        ax.set_axis_off()


if __name__ == "__main__":
    main(__file__)
