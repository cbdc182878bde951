"""Figure 21: letters lie apart from digits in the entangled net.

Claim (Frosst 2019, section 5.3 and appendix G): in the space before the softmax, inputs of another
kind (notMNIST) form clusters of their own in the entangled net, and mix with the digits in the
plain one. No numbers are printed.

Here: the nets of Figure 14. A t-SNE map proves nothing, so AUROC decides: of DkNN credibility, and
of the distance to the 20th training row at the logits, both on data unseen in training.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from experiments.data import Source, images, parts
from experiments.draw import tidy
from experiments.frosst2019snnl.entangled import (
    PAPER,
    QUICK,
    Recipe,
    layers_of,
    neighbors_of,
    net,
    rows_of,
)
from experiments.record import Claim, difference
from experiments.runner import main
from sklearn.manifold import TSNE
from torch import Tensor

from vicinal.evaluation import auroc
from vicinal.neighbors import ExactSearch

KINDS = ("plain", "entangled")


@dataclass(frozen=True)
class Settings:
    data: str = "mnist"
    foreign: str = "notmnist"
    recipe: Recipe = field(default_factory=Recipe)
    shown: int = 150
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", "rotated", QUICK, 60, (0,)),
    "cpu": Settings(recipe=Recipe(test=1000)),
    "paper": Settings(recipe=PAPER),
}
THEIRS: dict[str, float] = {}
SMALLER = "small nets, 1,000 digits and 1,000 letters"
WHY = "distances in the plain net tell letters apart already (AUROC 0.97); entangling blurs them"


def letters(settings: Settings, source: Source, digits: Tensor, seed: int) -> Tensor:
    if settings.foreign == "rotated":
        return digits.rot90(1, (2, 3))
    found = images(source, settings.foreign, "test")
    return parts(*found, (settings.recipe.test,), seed)[0][0]


def run(settings: Settings, seed: int, source: Source) -> dict:
    rows, found = rows_of(source, settings.data, settings.recipe, seed), {}
    x = rows.test[0]
    others = letters(settings, source, x, seed)
    for kind in KINDS:
        model = net(source, settings.data, settings.recipe, kind, seed)
        head = neighbors_of(model, rows, settings.recipe)
        strange = [1 - head.credibility(layers_of(model, part)) for part in (x, others)]
        with torch.no_grad():
            home, near, far = (model(part) for part in (rows.support[0], x, others))
        search = ExactSearch("euclidean").build(home)
        away = [search.query(part, 20).distances[:, -1] for part in (near, far)]
        found[kind] = {"credibility": auroc(*strange), "distance": auroc(*away)}
        if seed == settings.seeds[0]:
            both = torch.cat([near[: settings.shown], far[: settings.shown]]).cpu().numpy()
            places = TSNE(random_state=0, perplexity=20).fit_transform(both)
            found[kind]["map"] = places.T.round(1)
    return found


def claims(rows: list[dict]) -> list[Claim]:
    return [
        Claim(f"AUROC of {told}: entangled − plain",
              difference(rows, f"entangled.{score}", f"plain.{score}"))
        for score, told in (("credibility", "DkNN credibility"), ("distance", "logit distance"))
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    for ax, kind in zip(figure.subplots(1, 2), KINDS, strict=True):
        places = np.array(rows[0][kind]["map"])
        half = places.shape[1] // 2
        ax.scatter(*places[:, :half], s=5, color="#4c72b0", label="digits")
        ax.scatter(*places[:, half:], s=5, color="#dd8452", label="letters")
        told = np.mean([[r[kind]["credibility"], r[kind]["distance"]] for r in rows], 0)
        tidy(ax, f"{kind}: AUROC {told[0]:.2f}, by distance {told[1]:.2f}")
        ax.set(xticks=[], yticks=[])
        ax.legend(fontsize=7, frameon=False, loc="upper center", ncols=2,
                  bbox_to_anchor=(0.5, 0))  # fmt: skip


if __name__ == "__main__":
    main(__file__)
