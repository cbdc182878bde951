"""Figure 3: a step for x moves the output at x′ by ε k^N(x, x′).

Claim (Charpiat 2019, section 2.1): the smallest change of parameters that moves f(x) by ε moves
f(x′) by ε k^N(x, x′), to first order; k^N(x, x′) = ∇f(x)·∇f(x′) / ‖∇f(x)‖². An illustration there.

Here: measured. A net that tells two digits apart takes such steps, and the moves of its other
outputs are compared with what the kernel foresaw.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, parts
from experiments.draw import COLORS, tidy
from experiments.fit import batches, fit, outputs
from experiments.record import Claim
from experiments.runner import main
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from vicinal.similarity import GradientKernel


@dataclass(frozen=True)
class Settings:
    data: str = "mnist"
    rows: int = 1500
    steps: int = 60
    epsilons: tuple[float, ...] = (0.001, 0.1, 1.0)
    moved: int = 8
    others: int = 25
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings("digits", 300, 30, moved=3, others=10, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(rows=10_000, steps=1000, moved=50, others=200),
}
THEIRS = {"R squared for a small step": 1.0}
SMALLER = "an illustration in the paper, measured here"


def run(settings: Settings, seed: int, source: Source) -> dict:
    x, y = images(source, settings.data)
    pair = y < 2
    ((x, y),) = parts(x[pair], y[pair].float(), (settings.rows,), seed)
    with nets.seeded(seed):
        model = nets.cnn(x.shape[-1], width=8, fc=32, out=1).to(x.device)

    def loss(rows: Tensor, _: int) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows])

    rows = batches(len(x), 64, settings.steps, seed)
    fit(model, loss, rows, torch.optim.Adam(model.parameters(), 1e-3))
    # float64: a move of 1e-3 k^N is far below the rounding of float32
    model, x = model.double(), x.double()
    chosen, others = x[: settings.moved], x[settings.moved : settings.moved + settings.others]
    foreseen = GradientKernel(model).gram(chosen, others, kind="influence")
    before, found = outputs(model, others)[:, 0], {}
    for epsilon in settings.epsilons:
        moves = torch.stack([pushed(model, one, epsilon, others) - before for one in chosen])
        wrong = (moves / epsilon - foreseen).square().sum()
        found[str(epsilon)] = {"r2": float(1 - wrong / (foreseen - foreseen.mean()).square().sum())}
        if seed == settings.seeds[0]:
            found[str(epsilon)]["moves"] = (moves / epsilon)[:, :10].flatten().cpu()
            found["foreseen"] = foreseen[:, :10].flatten().cpu()
    return found


def pushed(model: torch.nn.Module, x: Tensor, epsilon: float, others: Tensor) -> Tensor:
    """The outputs at ``others`` after the least change of parameters that adds ε to f(x)."""
    net = copy.deepcopy(model)
    gradient = torch.autograd.grad(net(x[None]).sum(), list(net.parameters()))
    step = torch.cat([g.flatten() for g in gradient])
    here = parameters_to_vector(net.parameters()).detach()
    vector_to_parameters(here + epsilon * step / step.square().sum(), net.parameters())
    return outputs(net, others)[:, 0]


def claims(rows: list[dict]) -> list[Claim]:
    sizes = [key for key in rows[0] if key[0].isdigit()]
    fit_ = [[row[s]["r2"] for row in rows] for s in sizes]
    drop = (np.array(fit_[0]) - fit_[-1]).tolist()
    return [
        Claim(f"ε = {sizes[0]}: R² of foreseen and measured moves > 0.99", fit_[0], needs=0.99),
        Claim(f"R² is less at ε = {sizes[-1]}: it is first order", drop, beyond=True),
    ]


def draw(rows: list[dict], figure) -> None:
    sizes = [key for key in rows[0] if key[0].isdigit()]
    for ax, size, color in zip(figure.subplots(1, len(sizes)), sizes, COLORS, strict=False):
        ax.axline((0, 0), slope=1, color="#bbbbbb", linewidth=0.8)
        ax.scatter(rows[0]["foreseen"], rows[0][size]["moves"], s=6, color=color)
        r2 = np.mean([row[size]["r2"] for row in rows])
        tidy(ax, f"ε = {size}: R² {r2:.3f}", "k^N(x, x′)", "move of f(x′) / ε")


if __name__ == "__main__":
    main(__file__)
