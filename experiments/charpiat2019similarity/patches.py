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
from experiments.draw import COLORS, sheet, tidy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vicinal.similarity import GradientKernel, denoising

NAMES = [f"round {r + 1}" for r in range(ROUNDS)]
BINS = np.linspace(-1, 1, 41)  # of k^C


@dataclass(frozen=True)
class Settings:
    """Of all these figures."""

    recipe: Recipe = field(default_factory=Recipe)
    patches: int = 1200  # of the training photographs
    held: int = 250  # of others
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
    turn: Tensor  # (n, 2) which way its edges run: (cos, sin) of twice the angle, 0 for all ways
    tile: Tensor  # (n,)
    seen: int  # so many are from the training set
    similar: list[Tensor]  # per round (n, n): k^C
    factor: list[Tensor]  # per round (n,): denoising factor, 1 where the weights are no average
    shift: list[Tensor]  # per round (n,): px between y and its average over similar patches
    wrong: list[Tensor]  # per round (n,): px between what the net says and the truth

    def nearest(self, similar: Tensor, k: int = 10) -> Tensor:
        """The k most similar of other photographs (n, k): patches of one overlap."""
        return similar.masked_fill(self.tile[:, None] == self.tile, -torch.inf).topk(k, 1).indices

    def at_home(self, similar: Tensor, rows: Tensor, k: int = 10) -> float:
        """Of the k most similar patches, how many more than of any are of the same photograph."""
        same = (self.tile[:, None] == self.tile).double().fill_diagonal_(0)[rows]
        others = similar.clone().fill_diagonal_(-torch.inf)[rows]
        return float(same.gather(1, others.topk(k, 1).indices).mean() - same.mean())


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
    maps = torch.cat([train.map, test.map])[:, center, center].cpu()
    tile = torch.cat([train.tile, test.tile])
    parts = (
        [state[f"{k}{r}"] for r in range(ROUNDS)] for k in ("similar", "factor", "shift", "wrong")
    )
    return View(small, image, maps.mean((1, 2)), directions(maps), tile, len(picks[0]), *parts)


def directions(maps: Tensor) -> Tensor:
    """(n, 2): the structure tensor of each map without its trace, over its trace."""
    dy, dx = torch.gradient(maps, dim=(1, 2))
    yy, xx, xy = (p.mean((1, 2)) for p in (dy * dy, dx * dx, dy * dx))
    return torch.stack([yy - xx, 2 * xy], 1) / (yy + xx).clamp_min(1e-9)[:, None]


def closer(held: View, near: Tensor, rows: Tensor) -> dict[str, float]:
    """How much nearer than any of other photographs: in share and in directions of road."""
    others = held.tile[rows, None] != held.tile
    found = {}
    for name, what in (("road", held.road[:, None]), ("turn", held.turn)):
        anyone = (what - what[rows, None]).norm(dim=2)[others].mean()
        found[name] = float(anyone - (what[near] - what[rows, None]).norm(dim=2).mean())
    return found


def ten_and_nearest(
    held: View, near: Tensor, ten: Tensor, similar: Tensor
) -> dict[str, np.ndarray]:
    """For the pictures of a round: ten patches with their ten nearest, and ten histograms."""
    rows = similar[ten].numpy()
    shares = np.stack([np.histogram(row, BINS)[0] / len(row) for row in rows])
    return {"patches": held.thumbs[torch.cat([ten[:, None], near], 1).numpy()], "shares": shares}


def draw_rounds(
    figure: Figure, pictures: dict[str, np.ndarray], title: str, below: bool
) -> list[Axes]:
    """Per round ten rows of patches above ten histograms; what comes ``below`` is returned."""
    figure.set_figheight(6.2 if below else 5.0)
    ratios = (1.9, 2.4, 1.1) if below else (1.9, 2.4)
    axes = figure.subplots(len(ratios), len(NAMES), height_ratios=ratios, squeeze=False)
    for r, name in enumerate(NAMES):
        shown = bright(pictures["patches"][r])
        axes[0, r].imshow(sheet(shown.reshape(-1, *shown.shape[2:]), 11, gap=2))
        tidy(axes[0, r], f"{name}: {title},\nten nearest of each").set_axis_off()
        for at, share in enumerate(pictures["shares"][r]):  # the first at the top, as above
            base = -at * 0.6 * pictures["shares"].max()
            axes[1, r].stairs(
                base + share, BINS, baseline=base, fill=True, color=COLORS[r], alpha=0.6
            )
        tidy(axes[1, r], "", "k^C to all").set_yticks([])
        axes[1, r].spines["left"].set_visible(False)
    return list(axes[2]) if below else []


def bright(patches: np.ndarray) -> np.ndarray:
    """Aerial photographs are dark; up to white for the brightest in fifty."""
    return (patches / np.quantile(patches, 0.98)).clip(0, 1) ** 0.75
