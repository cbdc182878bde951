"""Perceptron generators against four rivals, on flat images: Figures 17 and 23.

``gan`` and ``wgan-gp`` have a discriminator. ``snn`` has none: the generator raises the soft
nearest neighbor loss of real against made rows in pixel space, T annealed in mean distances of the
batch. ``snn 10-d`` goes on from there with a space of 10 dimensions that lowers the loss, seldom.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from experiments import nets
from torch import Tensor, nn
from torch.optim import Adam

from vicinal.losses import Linear, Maximize, Relative, SoftNearestNeighborLoss

NOISE, BATCH = 32, 128


class Game:
    """One generator and what it plays against; ``step(real)`` moves both."""

    def __init__(self, kind: str, pixels: int, width: int, steps: int, seed: int, device: str):
        with nets.seeded(seed):
            maker = nn.Sequential(nets.mlp(NOISE, width, width, pixels), nn.Sigmoid())
            self.maker = maker.to(device)
            self.rival = nets.mlp(pixels, width, 10 if kind == "snn 10-d" else 1).to(device)
        self.kind, self.steps, self.at = kind, steps, 0
        self.draws = torch.Generator().manual_seed(seed)
        rate = 1e-3 if kind.startswith("snn") else 2e-4
        self.maker_moves = Adam(self.maker.parameters(), rate, betas=(0.5, 0.99))
        self.rival_moves = Adam(self.rival.parameters(), 2e-4, betas=(0.5, 0.99))
        self.pixels = SoftNearestNeighborLoss(Relative(Linear(0.6, 0.03, 0.7)))
        self.space = SoftNearestNeighborLoss(Relative(0.5), metric="cosine")
        self.near = torch.arange(2 * BATCH, device=device) // BATCH

    def make(self, rows: int) -> Tensor:
        noise = torch.randn(rows, NOISE, generator=self.draws)
        return self.maker(noise.to(next(self.maker.parameters()).device))

    def step(self, real: Tensor) -> None:
        self.at += 1
        fight = {"gan": self._gan, "wgan-gp": self._wasserstein}.get(self.kind, self._neighbors)
        fight(real)

    def _gan(self, real: Tensor) -> None:
        made = self.make(len(real))
        lost = F.softplus(-self.rival(real)) + F.softplus(self.rival(made.detach()))
        _move(self.rival_moves, lost.mean())
        _move(self.maker_moves, F.softplus(-self.rival(made)).mean())

    def _wasserstein(self, real: Tensor) -> None:
        for _ in range(3):
            made = self.make(len(real)).detach()
            share = torch.rand(len(real), 1, generator=self.draws).to(real.device)
            between = (share * real + (1 - share) * made).requires_grad_()
            (slope,) = torch.autograd.grad(self.rival(between).sum(), between, create_graph=True)
            gap = self.rival(made).mean() - self.rival(real).mean()
            _move(self.rival_moves, gap + 10 * (slope.norm(dim=1) - 1).square().mean())
        _move(self.maker_moves, -self.rival(self.make(len(real))).mean())

    def _neighbors(self, real: Tensor) -> None:
        done = self.at / self.steps
        if self.kind == "snn" or done < 0.6:
            self.pixels.set_epoch(done if self.kind == "snn" else done / 0.6)
            both = torch.cat([real, self.make(len(real))])
            _move(self.maker_moves, Maximize(self.pixels)(both, self.near))
            return
        made = self.make(len(real))
        if self.at % 5 == 0:
            both = self.rival(torch.cat([real, made.detach()]))
            _move(self.rival_moves, self.space(both, self.near))
        both = self.rival(torch.cat([real, made]))
        _move(self.maker_moves, Maximize(self.space)(both, self.near))


def _move(optimizer: Adam, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def play(game: Game, x: Tensor, looks: int, look: Callable[[int], None]) -> None:
    """All steps on random rows of ``x``; ``look(step)`` now and then, and at both ends."""
    for step in range(game.steps):
        if step % max(1, game.steps // looks) == 0:
            look(step)
        game.step(x[torch.randint(len(x), (BATCH,), generator=game.draws).to(x.device)])
    look(game.steps)


@torch.no_grad()
def judged(judge: nn.Module, made: Tensor, side: int) -> dict[str, float]:
    """A classifier's view: entropy of its classes over log 10, and its mean confidence."""
    shares = judge(made.view(-1, 1, side, side)).softmax(1)
    classes = torch.bincount(shares.argmax(1), minlength=10) / len(made)
    spread = -(classes * classes.clamp_min(1e-12).log()).sum() / math.log(10)
    return {"classes": float(spread), "confidence": float(shares.amax(1).mean())}
