"""Figure 22: adversarial inputs lie apart in the first hidden layer of the entangled net only.

Claim (Frosst 2019, appendix H): a t-SNE of the first layer puts FGSM inputs apart from real ones in
the entangled net, and among them in the plain net. No numbers are printed.

Here: FashionMNIST and MNIST, ε 0.2, the nets of Figure 14. The soft nearest neighbor loss of real
against adversarial at its best T, over chance, is the two-sample statistic; the map is only shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from experiments.data import Source
from experiments.draw import tidy
from experiments.frosst2019snnl.entangled import HIDDEN, QUICK, Recipe, layers_of, net, rows_of
from experiments.record import Claim, difference
from experiments.runner import main
from sklearn.manifold import TSNE

from vicinal.evaluation import entanglement
from vicinal.perturbations import fgsm

KINDS = ("plain", "entangled")


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("fashion_mnist", "mnist")
    recipe: Recipe = field(default_factory=Recipe)
    epsilon: float = 0.2
    shown: int = 120
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(("digits",), QUICK, shown=50, seeds=(0,)),
    "cpu": Settings(recipe=Recipe(test=500)),
    "paper": Settings(recipe=Recipe(59_000, 20, 64, test=1000)),
}
THEIRS: dict[str, float] = {}
SMALLER = "small nets, 500 real and 500 attacked rows"
WHY = "attacked rows lie apart in the plain net already; entangling mixes them in, like classes"
SETS = ("fashion_mnist", "mnist", "digits")


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {}
    for data in settings.data:
        x, y = rows_of(source, data, settings.recipe, seed).test
        moved = torch.arange(2 * len(x)) // len(x)
        found[data] = {}
        for kind in KINDS:
            model = net(source, data, settings.recipe, kind, seed)
            both = torch.cat([x, fgsm(model, x, y, settings.epsilon)])
            layers = layers_of(model, both).layers
            hidden = {name: layers[name] for name in HIDDEN}
            mixed = entanglement(hidden, moved, metric="cosine").layers
            found[data][kind] = {f"layer {i + 1}": e.ratio for i, e in enumerate(mixed)}
            if seed == settings.seeds[0] and data == settings.data[0]:
                rows = torch.cat([layers["1"][: settings.shown],
                                  layers["1"][len(x) : len(x) + settings.shown]])  # fmt: skip
                map_ = TSNE(metric="cosine", random_state=0, perplexity=20, init="random")
                found[data][kind]["map"] = map_.fit_transform(rows.numpy()).T.round(1)
    return found


def claims(rows: list[dict]) -> list[Claim]:
    sets = [d for d in SETS if d in rows[0]]
    return [
        Claim(f"{d}, layer {at}: loss of real against attacked / chance, plain − entangled",
              difference(rows, f"{d}.plain.layer {at}", f"{d}.entangled.layer {at}"),
              beyond=at > 1)
        for d in sets for at in (1, 2, 3)
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    data = next(d for d in SETS if d in rows[0] and "map" in rows[0][d]["plain"])
    figure.suptitle("first hidden layer; loss of real against attacked / chance", fontsize=9)
    for ax, kind in zip(figure.subplots(1, 2), KINDS, strict=True):
        places = np.array(rows[0][data][kind]["map"])
        half = places.shape[1] // 2
        ax.scatter(*places[:, :half], s=5, color="#4c72b0", label="real")
        ax.scatter(*places[:, half:], s=5, color="#c44e52", label="attacked")
        mixed = np.mean([row[data][kind]["layer 1"] for row in rows])
        tidy(ax, f"{data}, {kind}: {mixed:.2f}")
        ax.set(xticks=[], yticks=[])
        ax.legend(fontsize=7, frameon=False, loc="upper center", ncols=2,
                  bbox_to_anchor=(0.5, 0))  # fmt: skip


if __name__ == "__main__":
    main(__file__)
