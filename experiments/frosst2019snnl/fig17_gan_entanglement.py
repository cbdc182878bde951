"""Figure 17: while a GAN trains, real and made images become entangled, towards train against test.

Claim (Frosst 2019, section 3.3 and appendix D): the soft nearest neighbor loss of real against made
rows rises in training, for several GANs, towards that of training against test rows. Their level,
0.698, is that of chance for their batch; their 11.5 is −log 1e-5, an epsilon inside a logarithm.

Here: perceptrons on MNIST, the loss at its best T over chance on 256 + 256 rows, exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from experiments.data import Source, images, parts
from experiments.draw import curves, tidy
from experiments.frosst2019snnl.gans import Game, play
from experiments.record import Claim
from experiments.runner import main
from torch import Tensor

from vicinal.evaluation import entanglement

KINDS = ("gan", "wgan-gp", "snn")


@dataclass(frozen=True)
class Settings:
    data: str = "mnist"
    rows: int = 10_000
    steps: int = 2000
    width: int = 256
    looks: int = 8
    compared: int = 256
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 1200, 60, 64, 3, 100, (0,)),
    "cpu": Settings(),
    "paper": Settings(rows=59_000, steps=50_000, width=1024, looks=40, compared=512),
}
THEIRS = {"train against test": 0.698, "chance of their batch": 0.697}
SMALLER = "perceptrons on MNIST, 2,000 steps; no DCGAN, no CIFAR-10"
WHY = (
    "the plain GAN collapses after 250 steps, which the loss shows; the others rise, and SNN stays"
)


def mixed(one: Tensor, two: Tensor) -> float:
    """1: nobody can tell the two sets apart by neighbors; 0: everybody can."""
    which = torch.arange(len(one) + len(two)) // len(one)
    return entanglement(torch.cat([one, two]), which).layers[0].ratio


def run(settings: Settings, seed: int, source: Source) -> dict:
    sizes = (settings.rows, settings.compared)
    (x, _), (other, _) = parts(*images(source, settings.data), sizes, seed)
    x, other = x.flatten(1), other.flatten(1)
    real, found = x[: settings.compared], {"ceiling": mixed(x[: settings.compared], other)}
    for kind in KINDS:
        game = Game(kind, x.shape[1], settings.width, settings.steps, seed, source.device)
        curve: list[float] = []
        when: list[int] = []

        def look(step: int, game=game, curve=curve, when=when) -> None:
            with torch.no_grad():
                curve.append(mixed(real, game.make(len(real))))
            when.append(step)

        play(game, x, settings.looks, look)
        found |= {kind: curve, "steps": when}
    return found


def claims(rows: list[dict]) -> list[Claim]:
    rises = [
        Claim(f"{k}: real and made are more entangled at the end than at the start",
              [row[k][-1] - row[k][0] for row in rows], theirs="rises")
        for k in KINDS
    ]  # fmt: skip
    near = [
        Claim(f"{k}: within 0.1 of train against test at the end", beyond=True, within=0.1,
              values=[row["ceiling"] - row[k][-1] for row in rows])
        for k in KINDS
    ]  # fmt: skip
    return rises + near


def draw(rows: list[dict], figure) -> None:
    ax = figure.subplots()
    curves(ax, rows[0]["steps"], {k: [row[k] for row in rows] for k in KINDS})
    ceiling = float(np.mean([row["ceiling"] for row in rows]))
    ax.axhline(ceiling, color="#222222", linestyle="--", linewidth=0.8, label="train against test")
    tidy(ax, "", "step", "SNNL of real against made, best T / chance")
    ax.legend(fontsize=7, frameon=False)


if __name__ == "__main__":
    main(__file__)
