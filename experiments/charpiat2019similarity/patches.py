"""How alike the nets of the rounds find their patches: k^C of all pairs, and self-denoising.

Computed once for Figures 6 to 8 and 11 to 19; patches come from all photographs of the training set
and, last, from photographs that no net has seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from experiments.charpiat2019similarity.maps import (
    MARGIN,
    PATCH,
    QUICK,
    REACH,
    ROUNDS,
    Recipe,
    aligned,
    evenly,
    said,
)
from experiments.data import Source, kept
from torch import Tensor

from vicinal.similarity import GradientKernel, denoising

NAMES = [f"round {r + 1}" for r in range(ROUNDS)]


@dataclass(frozen=True)
class Settings:
    """Of all these figures."""

    recipe: Recipe = field(default_factory=Recipe)
    patches: int = 160  # of the training photographs
    held: int = 60  # of others
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(QUICK, 40, 20, (0,)),
    "cpu": Settings(),
    "paper": Settings(Recipe("aerial", 2000, 400, 4000, width=32), 2745, 300),
}


@dataclass(frozen=True)
class View:
    """Of n patches: what is seen, where they come from, and what each round's net makes of them."""

    thumbs: np.ndarray  # (n, 24, 24, 3) in 0..1
    image: Tensor  # (n, 3, PATCH, PATCH)
    road: Tensor  # (n,) share of road
    tile: Tensor  # (n,)
    seen: int  # so many are from the training set
    similar: list[Tensor]  # per round (n, n): k^C
    factor: list[Tensor]  # per round (n,): denoising factor, 1 where the weights are no average
    shift: list[Tensor]  # per round (n,): px between y and its average over similar patches
    wrong: list[Tensor]  # per round (n,): px between what the net says and the truth

    def nearest(self, round_: int, k: int = 10) -> Tensor:
        """The k most similar others (n, k)."""
        others = self.similar[round_].clone().fill_diagonal_(-torch.inf)
        return others.topk(k, 1).indices


def view(settings: Settings, seed: int, source: Source) -> View:
    *both, rounds = aligned(source, settings.recipe, seed)
    sizes = settings.patches, settings.held
    # The rows are ordered by photograph: a stride meets them all, the first n would meet a few.
    picks = [evenly(len(p.tile), n) for p, n in zip(both, sizes, strict=True)]
    train, test = (p.of(rows) for p, rows in zip(both, picks, strict=True))

    def made() -> dict[str, Tensor]:
        found = {}
        for r, model in enumerate(rounds.models):
            at = (rounds.train[r][picks[0]], rounds.held[r][picks[1]])
            pairs = list(zip((train, test), at, strict=True))
            x = torch.cat([p.inputs(torch.arange(len(a)), a) for p, a in pairs])
            told = torch.cat([said(model, p, a) for p, a in pairs])
            kernel = GradientKernel(model)
            clean = denoising(kernel, x, told, positive_part=True)
            found |= {f"similar{r}": kernel.gram(x), f"factor{r}": clean.factor,
                      f"shift{r}": clean.shift.norm(dim=1),
                      f"wrong{r}": (told - torch.cat(at)).norm(dim=1)}  # fmt: skip
        return found

    key = ("patches", "evenly", seed, *sizes, *vars(settings.recipe).values())
    state = {k: v.cpu() for k, v in kept(source, key, made).items()}
    inner, center = slice(REACH, REACH + PATCH), slice(MARGIN + REACH, MARGIN + REACH + PATCH)
    image = torch.cat([train.image, test.image])[:, :, inner, inner].cpu()
    small = torch.nn.functional.avg_pool2d(image, 2).permute(0, 2, 3, 1).numpy()
    road = torch.cat([train.map, test.map])[:, center, center].mean((1, 2)).cpu()
    tile = torch.cat([train.tile, test.tile])
    parts = (
        [state[f"{k}{r}"] for r in range(ROUNDS)] for k in ("similar", "factor", "shift", "wrong")
    )
    return View(small, image, road, tile, len(picks[0]), *parts)


def closer(held: View, near: Tensor, rows: Tensor) -> dict[str, float]:
    """How much nearer the neighbors are in share of road, and from one tile, than any others."""
    gap = (held.road[near] - held.road[rows, None]).abs().mean()
    anyone = (held.road[None] - held.road[rows, None]).abs().mean()
    same = (held.tile[near] == held.tile[rows, None]).double().mean()
    chance = (held.tile[None] == held.tile[rows, None]).double().mean()
    return {"road": float(anyone - gap), "tile": float(same - chance)}
