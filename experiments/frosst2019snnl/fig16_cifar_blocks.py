"""Figure 16: in a CIFAR-10 ResNet lower blocks stay entangled, the last one is not.

Claim (Frosst 2019, appendix C): trained by cross-entropy, the soft nearest neighbor loss of the
last block falls, that of the blocks before it stays or rises (cosine distances). No numbers.

Here: three blocks instead of four; a small ResNet while it trains, and the published ResNet-20
before and after training (its start is drawn anew for every seed).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, cifar10_weights, images, parts
from experiments.draw import bars, curves, tidy
from experiments.fit import accuracy, batches, fit, one_cycle
from experiments.record import Claim, difference
from experiments.runner import main
from torch import Tensor, nn

from vicinal.capture import capture
from vicinal.evaluation import entanglement

BLOCKS = {"block 1": "1", "block 2": "2", "block 3": "3"}


@dataclass(frozen=True)
class Settings:
    data: str = "cifar10"
    rows: int = 9000
    steps: int = 500
    width: int = 8
    looks: int = 8
    test: int = 400
    published: bool = True
    seeds: tuple[int, ...] = (0, 1, 2)


PRESETS = {
    "quick": Settings("digits", 1200, 40, 4, 4, 200, False, (0,)),
    "cpu": Settings(),
    "paper": Settings(steps=20_000, width=64, looks=40, test=2000),
}
THEIRS: dict[str, float] = {}
SMALLER = "three blocks of 8 to 32 channels, 500 steps of 100; 9,000 rows"


def mixed(model: nn.Module, x: Tensor, y: Tensor, layers: list[str]) -> list[float]:
    found = entanglement(capture(model, x, layers), y, metric="cosine")
    return [entry.ratio for entry in found.layers]


def run(settings: Settings, seed: int, source: Source) -> dict:
    (x, y), test = parts(*images(source, settings.data), (settings.rows, settings.test), seed)
    stem, when, seen = 2 if x.shape[-1] > 16 else 1, [], []
    with nets.seeded(seed):
        model = nets.res8(x.shape[1], settings.width, stem=stem).to(x.device)

    def look(step: int) -> None:
        if step % (settings.steps // settings.looks) == 0 or step == settings.steps - 1:
            when.append(step + 1)
            seen.append(mixed(model, *test, list(BLOCKS.values())))
            model.train()

    def loss(rows: Tensor, _: int) -> Tensor:
        return F.cross_entropy(model(x[rows]), y[rows])

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    cycle = one_cycle(optimizer, 0.1, settings.steps)
    fit(model, loss, batches(len(x), 100, settings.steps, seed), optimizer, cycle, look)
    found = {"steps": when, "curve": dict(zip(BLOCKS, np.transpose(seen).tolist(), strict=True)),
             "accuracy": accuracy(model, *test)}  # fmt: skip
    if settings.published:
        with nets.seeded(seed):
            net = nets.CifarResNet().to(x.device).eval()
        layers = ["layer1", "layer2", "layer3"]
        ends = {"untrained": mixed(net, *test, layers)}
        net.load_state_dict(cifar10_weights(source, "resnet20"))
        ends["published"] = mixed(net, *test, layers)
        found |= {k: dict(zip(BLOCKS, v, strict=True)) for k, v in ends.items()}
    return found


def claims(rows: list[dict]) -> list[Claim]:
    change = {b: [r["curve"][b][-1] - r["curve"][b][0] for r in rows] for b in BLOCKS}
    made = [Claim("the last block falls while it trains", np.negative(change["block 3"]).tolist())]
    made += [Claim(f"{b} stays or rises (not below −0.02)", change[b], needs=-0.02)
             for b in ("block 1", "block 2")]  # fmt: skip
    if "published" in rows[0]:
        told = [(b, difference(rows, f"published.{b}", f"untrained.{b}")) for b in BLOCKS]
        made += [Claim(f"ResNet-20: {b} stays or rises", v, needs=-0.02) for b, v in told[:2]]
        made += [Claim("ResNet-20: the last block falls", np.negative(told[2][1]).tolist())]
    return made


def draw(rows: list[dict], figure) -> None:
    left, right = figure.subplots(1, 2)
    curves(left, rows[0]["steps"], {b: [row["curve"][b] for row in rows] for b in BLOCKS})
    tidy(left, "while a small ResNet trains", "step", "SNNL / chance").legend(fontsize=6)
    if ends := [k for k in ("untrained", "published") if k in rows[0]]:
        bars(right, {b: {k: [row[k][b] for row in rows] for k in ends} for b in BLOCKS})
        tidy(right, "ResNet-20").legend(fontsize=6, frameon=False)


if __name__ == "__main__":
    main(__file__)
