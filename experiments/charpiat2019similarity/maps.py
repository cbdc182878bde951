"""Maps that are off, and nets that learn to align them from themselves, in rounds (section 6.1).

A patch has an image and a map (roads), which lies off the truth by an offset a nobody knows. A net
is shown the map moved by a further d and learns d; noise of mean zero in a averages out. Then every
map is moved by what the net says of it at d = 0, and the next round starts from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, aerial_roads, kept
from experiments.fit import batches, fit, one_cycle, outputs
from torch import Tensor, nn

PATCH, REACH = 48, 7  # px: side of what is seen of the image, largest offset that is looked for
SIDE = PATCH + 2 * REACH  # the map is seen with its surroundings
MARGIN = 12  # and may lie so much further off
STRIDE = 13  # px from patch to patch
ROUNDS = 3  # the paper's


@dataclass(frozen=True)
class Recipe:
    scenes: str = "aerial"  # or "generated"
    patches: int = 1200
    held: int = 250
    steps: int = 2000
    noise: float = 2.5  # px
    width: int = 12
    rounds: int = ROUNDS


QUICK = Recipe("generated", 48, 24, 12, width=6)


@dataclass(frozen=True)
class Scenes:
    image: Tensor  # (n, 3, SIDE, SIDE) in 0..1
    map: Tensor  # (n, SIDE + 2 MARGIN, SIDE + 2 MARGIN), aligned: never shown as it is
    tile: Tensor  # (n,) which photograph

    def of(self, rows: Tensor) -> Scenes:
        return Scenes(self.image[rows], self.map[rows], self.tile[rows])

    def inputs(self, rows: Tensor, offset: Tensor) -> Tensor:
        """Image and map as one tensor (n, 4, SIDE, SIDE), the map moved by (dy, dx) px."""
        here = torch.arange(SIDE, device=offset.device) + MARGIN
        large = self.map.shape[-1]
        y, x = (here + offset[:, i : i + 1].clamp(-MARGIN, MARGIN) for i in (0, 1))
        grid = torch.stack([x[:, None].expand(-1, SIDE, -1), y[:, :, None].expand(-1, -1, SIDE)], 3)
        grid = 2 * grid / (large - 1) - 1
        moved = F.grid_sample(self.map[rows][:, None], grid, align_corners=True)
        return torch.cat([self.image[rows], moved], 1)


class Aligner(nn.Module):
    """The image becomes one channel, is correlated with the map; softmax gives a mean (dy, dx)."""

    def __init__(self, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((3, width), (width, width), (width, width)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
        layers.append(nn.Conv2d(width, 1, 3, padding=1))
        self.look = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # half the time

    def forward(self, x: Tensor) -> Tensor:
        inside = slice(REACH, REACH + PATCH)
        image = x[:, :3, inside, inside].contiguous(memory_format=torch.channels_last)
        seen = torch.fft.rfft2(self.look(image)[:, 0], s=(SIDE, SIDE))
        everywhere = torch.fft.irfft2(torch.fft.rfft2(x[:, 3]) * seen.conj(), s=(SIDE, SIDE))
        found = everywhere[:, : 2 * REACH + 1, : 2 * REACH + 1] / PATCH
        share = found.flatten(1).softmax(1).unflatten(1, found.shape[1:])
        places = torch.arange(2 * REACH + 1, device=x.device, dtype=x.dtype) - REACH
        # the map moved by +d is found d px earlier
        return -torch.stack([share.sum(2) @ places, share.sum(1) @ places], 1)


def scenes(source: Source, recipe: Recipe, seed: int) -> tuple[Scenes, Scenes]:
    """To train on, and of other photographs."""
    make = _generated if recipe.scenes == "generated" else _aerial
    return make(source, recipe, seed)


def _generated(source: Source, recipe: Recipe, seed: int) -> tuple[Scenes, Scenes]:
    """Bright or dark rectangles on rough ground."""
    draws, n, large = np.random.default_rng(seed), recipe.patches + recipe.held, SIDE + 2 * MARGIN
    images, maps = draws.normal(0.5, 0.15, (n, large, large)), np.zeros((n, large, large))
    for image, drawn in zip(images, maps, strict=True):
        for _ in range(5):
            y, x, h, w = *draws.integers(0, large - 20, 2), *draws.integers(8, 20, 2)
            image[y : y + h, x : x + w] += 0.4
            drawn[y : y + h, x : x + w] = 1
    inner = slice(MARGIN, MARGIN + SIDE)
    image = torch.tensor(images[:, None, inner, inner].repeat(3, 1)).float().clamp(0, 1)
    return _halves(source, recipe, image, torch.tensor(maps).float(), torch.arange(n))


def _aerial(source: Source, recipe: Recipe, seed: int) -> tuple[Scenes, Scenes]:
    """Aerial photographs at 200 px, patches with roads in two directions, tiles in random order."""
    photos, roads = aerial_roads(source)
    photo = F.avg_pool2d(torch.tensor(photos).permute(0, 3, 1, 2).float() / 255, 2)
    road = F.avg_pool2d(torch.tensor(roads)[:, None].float(), 2)[:, 0]
    large, edge = SIDE + 2 * MARGIN, MARGIN + REACH
    good = _crossings(road[:, edge:-edge, edge:-edge])
    order = torch.randperm(100, generator=torch.Generator().manual_seed(seed))
    rank = torch.empty(100, dtype=torch.long).scatter_(0, order, torch.arange(100))
    places = good.nonzero() * torch.tensor([1, STRIDE, STRIDE])
    places = places[rank[places[:, 0]].argsort(stable=True)]
    # both ends of the order, and no photograph in both halves
    held = places[-recipe.held :]
    others = places[~torch.isin(places[:, 0], held[:, 0])]
    places = torch.cat([others[: recipe.patches], held])
    images, maps = [], []
    for tile, y, x in places.tolist():
        inside = slice(y + MARGIN, y + MARGIN + SIDE), slice(x + MARGIN, x + MARGIN + SIDE)
        images.append(photo[tile, :, *inside])
        maps.append(road[tile, y : y + large, x : x + large])
    return _halves(source, recipe, torch.stack(images), torch.stack(maps), places[:, 0])


def _crossings(road: Tensor) -> Tensor:
    """Which patches will do: along one straight road the offset would be undefined."""
    dy, dx = torch.gradient(road, dim=(1, 2))
    yy, xx, xy, share = (
        F.avg_pool2d(p[:, None], PATCH, STRIDE)[:, 0] for p in (dy * dy, dx * dx, dy * dx, road)
    )
    least = (yy + xx - ((yy - xx).square() + 4 * xy.square()).sqrt()) / 2
    return (least > 0.25 * (yy + xx)) & (share > 0.05) & (share < 0.6)


def _halves(
    source: Source, recipe: Recipe, image: Tensor, map_: Tensor, tile: Tensor
) -> tuple[Scenes, Scenes]:
    n = len(tile) - recipe.held
    image, map_ = image.to(source.device), map_.to(source.device)
    return Scenes(image[:n], map_[:n], tile[:n]), Scenes(image[n:], map_[n:], tile[n:])


@dataclass(frozen=True)
class Rounds:
    """What the rounds left: a net each, and the offsets of the maps before and after each."""

    models: list[Aligner]
    train: list[Tensor]  # rounds + 1 of (n, 2): first as given
    held: list[Tensor]


def aligned(source: Source, recipe: Recipe, seed: int) -> tuple[Scenes, Scenes, Rounds]:
    """The rounds, trained once for all figures."""
    train, held = scenes(source, recipe, seed)
    given = [_noise(len(s.tile), recipe.noise, seed + i) for i, s in enumerate((train, held))]
    key = ("maps", seed, *vars(recipe).values())
    state = kept(source, key, lambda: _states(train, given[0], recipe, seed))
    rounds = Rounds([], [given[0].to(source.device)], [given[1].to(source.device)])
    for r in range(recipe.rounds):
        model = Aligner(recipe.width).to(source.device)
        mine = {k.removeprefix(f"{r}."): v for k, v in state.items() if k.startswith(f"{r}.")}
        model.load_state_dict(mine)
        rounds.models.append(model.eval())
        for part, where in ((train, rounds.train), (held, rounds.held)):
            where.append(where[-1] - said(model, part, where[-1]))
    return train, held, rounds


def said(model: nn.Module, part: Scenes, offset: Tensor) -> Tensor:
    """What the net says of every map where it lies."""
    return outputs(model, part.inputs(torch.arange(len(offset)), offset), 100)


def error(offset: Tensor) -> Tensor:
    return offset.norm(dim=1)


def evenly(rows: int, n: int) -> Tensor:
    """``n`` rows at equal steps, or all of them."""
    return torch.linspace(0, rows - 1, min(n, rows)).long()


def _noise(n: int, sd: float, seed: int) -> Tensor:
    return sd * torch.randn(n, 2, generator=torch.Generator().manual_seed(1000 + seed))


def _states(train: Scenes, offset: Tensor, recipe: Recipe, seed: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    offset = offset.to(train.image.device)
    for r in range(recipe.rounds):
        with nets.seeded(seed):
            model = Aligner(recipe.width).to(offset.device)
        optimizer, draws = torch.optim.Adam(model.parameters(), 3e-3), torch.Generator()
        draws.manual_seed(seed + r)

        def loss(rows: Tensor, _: int, model=model, draws=draws, offset=offset) -> Tensor:
            extra = (6 * torch.rand(len(rows), 2, generator=draws) - 3).to(offset.device)
            told = model(train.inputs(rows, offset[rows] + extra))
            return (told - extra).square().sum(1).mean()

        rows = batches(len(offset), 32, recipe.steps, seed + r)
        fit(model, loss, rows, optimizer, one_cycle(optimizer, 3e-3, recipe.steps))
        found |= {f"{r}.{k}": v for k, v in model.state_dict().items()}
        offset = offset - said(model, train, offset)
    return found
