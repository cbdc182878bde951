"""Figures 2, 3 and 4: accuracy as a function of k, d and α.

Claims (Bontonou 2019, section 4.3), for a 10-NN classifier: (2) accuracy rises with the number k of
neighbors in the graph, little beyond the number of classes; (3) it is low for a small output
dimension d, and falls slowly beyond the number of classes; (4) it does not depend on α unless α
is large. The figures print no numbers.

Here: FashionMNIST, a ResNet of three blocks, 8 to 32 channels, batches of 100, 9 epochs; the mean
over edges, a rate of 5 (the sum at the paper's 0.1 does not train here), α = 1 where not varied.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bontonou2019graph.smooth import error_of_neighbors, rows_of, trained
from experiments.data import Source
from experiments.draw import curves, tidy
from experiments.record import Claim
from experiments.runner import main
from scipy.stats import spearmanr


@dataclass(frozen=True)
class Settings:
    data: str = "fashion_mnist"
    rows: int = 10_000
    test: int = 2000
    steps: int = 900
    alpha: float = 1.0
    ks: tuple[int, ...] = (1, 5, 10, 20, 50, 99)
    ds: tuple[int, ...] = (2, 5, 10, 20, 50, 200)
    alphas: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
    net: str = "res8"
    width: int = 8
    seeds: tuple[int, ...] = (0, 1, 2)


PRESETS = {
    "quick": Settings("digits", 1200, 400, 30, 1.0, (1, 10, 99), (2, 10), (0.5, 2.0, 20.0),
                      seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings("cifar10_whole", 50_000, 10_000, 100_000, 2.0, net="preact_resnet18"),
}  # fmt: skip
THEIRS: dict[str, float] = {}
WHY = "k = 10 to 99 gives 1.0 ± 0.5 points, α up to 2 ranges over 1.5 ± 0.8: three seeds are few"
SMALLER = "FashionMNIST and a ResNet of three blocks for CIFAR-10 and PreActResNet-18; 9 epochs"


def run(settings: Settings, seed: int, source: Source) -> dict:
    train, test = rows_of(source, settings.data, settings.rows, settings.test, seed)
    known: dict[tuple, float] = {}

    def right(k: int = 99, d: int = 10, alpha: float = settings.alpha) -> float:
        if (k, d, alpha) not in known:
            model = trained(train, d, settings.steps, seed, smooth={"alpha": alpha, "k": k},
                            net=settings.net, width=settings.width)  # fmt: skip
            known[k, d, alpha] = 100 - error_of_neighbors(model, train, test)
        return known[k, d, alpha]

    return {
        "axes": {"k": settings.ks, "d": settings.ds, "α": settings.alphas},
        "k": [right(k=k) for k in settings.ks],
        "d": [right(d=d) for d in settings.ds],
        "α": [right(alpha=a) for a in settings.alphas],
    }


def claims(rows: list[dict]) -> list[Claim]:
    ks, ds, alphas = (rows[0]["axes"][name] for name in ("k", "d", "α"))

    def gap(name: str, axis: list, more: float, less: float) -> list[float]:
        return [r[name][axis.index(more)] - r[name][axis.index(less)] for r in rows]

    ten = ds.index(10)
    small = [i for i, a in enumerate(alphas) if a <= 2]
    flat = [max(r["α"][i] for i in small) - min(r["α"][i] for i in small) for r in rows]
    two, three, four = ({"items": [f"fig{n}"], "unit": "points"} for n in (2, 3, 4))
    return [
        Claim("rank correlation of k and accuracy", [float(spearmanr(ks, r["k"])[0]) for r in rows],
              items=["fig2"]),
        Claim("k beyond the number of classes gives less than 2 points", gap("k", ks, ks[-1], 10),
              within=2.0, **two),
        Claim("accuracy at d = 10 − at d = 2", gap("d", ds, 10, 2), **three),
        Claim("the largest d loses less than 3 points on d = 10",
              [r["d"][-1] - r["d"][ten] for r in rows], needs=-3.0, **three),
        Claim("range over α ≤ 2 below 2 points", flat, within=2.0, **four),
        Claim("accuracy at α = 2 − at the largest α", gap("α", alphas, 2.0, alphas[-1]), **four),
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    for n, (ax, name) in enumerate(zip(figure.subplots(1, 3, sharey=True), "kdα", strict=True)):
        curves(ax, rows[0]["axes"][name], {"10-NN": [row[name] for row in rows]})
        ax.set_xscale("log")
        tidy(ax, f"Figure {n + 2}", name, "" if n else "accuracy of 10-NN, %")


if __name__ == "__main__":
    main(__file__)
