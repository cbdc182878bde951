"""Figure 20: attacks made on the entangled net transfer badly to the plain one.

Claim (Frosst 2019, section 5.2 and appendix F): FGSM inputs made on the entangled net hardly fool
the DkNN of the plain net, far less than its own do; entangled nets are a poor source. No numbers.

Here: the nets of Figures 18 and 19, and another plain net, of other rows and another start: a poor
source is one that does worse than *it* does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.data import Source
from experiments.draw import curves, tidy
from experiments.frosst2019snnl.entangled import (
    EPSILONS,
    PAPER,
    QUICK,
    Recipe,
    layers_of,
    neighbors_of,
    net,
    rows_of,
)
from experiments.frosst2019snnl.fig18_19_dknn import FLOOR, SCALE
from experiments.record import Claim
from experiments.runner import main

from vicinal.perturbations import fgsm

STRENGTHS = EPSILONS[2::2]  # 0.1, 0.2, 0.3
ROUTES = {  # source -> target
    "entangled → plain": ("entangled", "plain"),
    "white box": ("plain", "plain"),
    "other plain → plain": ("other", "plain"),
    "plain → entangled": ("plain", "entangled"),
}


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("mnist", "fashion_mnist")
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(),
    "paper": Settings(recipe=PAPER),
}
THEIRS: dict[str, float] = {}
SMALLER = "small nets, 400 test rows; CIFAR-10 in fig20_photographs; without SVHN"
WHY = (
    "on FashionMNIST entangled targets resist plain attacks as much as plain ones entangled attacks"
)
SETS = ("mnist", "fashion_mnist", "cifar10", "cifar10_whole", "digits")


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {"trained": True}
    for data in settings.data:
        rows, recipe = rows_of(source, data, settings.recipe, seed), settings.recipe
        x, y = rows.test
        models = {k: net(source, data, recipe, k, seed) for k in ("plain", "entangled")}
        # the plain net of the next seed, which is trained in any case
        other = settings.seeds[(settings.seeds.index(seed) + 1) % len(settings.seeds)]
        other += 1 if len(settings.seeds) == 1 else 0
        models["other"] = net(source, data, recipe, "plain", other)
        hit = [float((model(x).argmax(1) == y).double().mean()) for model in models.values()]
        found["trained"] &= min(hit) > FLOOR.get(data, 0.7)
        heads = {k: neighbors_of(models[k], rows, recipe) for k in ("plain", "entangled")}
        found[data] = {route: [] for route in ROUTES}
        for epsilon in STRENGTHS:
            attacks = {
                k: fgsm(model, x, y, SCALE.get(data, 1) * epsilon) for k, model in models.items()
            }
            for route, (maker, judge) in ROUTES.items():
                told = heads[judge].predict(layers_of(models[judge], attacks[maker]))
                found[data][route].append(float((told == y).double().mean()))
    return found


def claims(rows: list[dict]) -> list[Claim]:
    def more(data: str, one: str, two: str) -> list[float]:
        return [100 * (sum(r[data][one]) - sum(r[data][two])) / len(STRENGTHS) for r in rows]

    ours, *others = ROUTES
    sets = {d: SCALE.get(d, 1) for d in SETS if d in rows[0]}
    said = {d: f"accuracy of DkNN over ε {0.1 * s:.2g} to {0.3 * s:.2g}" for d, s in sets.items()}
    return [
        Claim(f"{d}: {said[d]}, {ours} over {other}", more(d, ours, other), unit="points",
              beyond=other == "plain → entangled")
        for d in sets
        for other in others
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    sets = [d for d in SETS if d in rows[0]]
    for ax, data in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        strengths = [SCALE.get(data, 1) * s for s in STRENGTHS]
        curves(ax, strengths, {route: [row[data][route] for row in rows] for route in ROUTES})
        tidy(ax, data, "ε of FGSM", "DkNN accuracy").legend(fontsize=6, frameon=False)
        ax.set_ylim(0, 1)


if __name__ == "__main__":
    main(__file__)
