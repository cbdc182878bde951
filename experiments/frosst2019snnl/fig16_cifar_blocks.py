"""Figure 16: in a CIFAR-10 ResNet lower blocks stay entangled, the last one is not.

Claim (Frosst 2019, appendix C): trained by cross-entropy, the soft nearest neighbor loss of the
last block falls, that of the blocks before it stays or rises (cosine distances). No numbers.

Here: three blocks for four; a small ResNet in training; ResNet-20 and -56, untrained and published.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, cifar10_weights, images, parts
from experiments.draw import bars, curves, tidy
from experiments.fit import accuracy, batches, fit, one_cycle
from experiments.record import Claim
from experiments.runner import main
from torch import Tensor, nn
from torch.optim import SGD

from vicinal.capture import capture
from vicinal.evaluation import entanglement

ENDS = ("untrained", "published")
BLOCKS = {"ResNet-20": 3, "ResNet-56": 9}  # a group


@dataclass(frozen=True)
class Settings:
    data: str = "cifar10"
    rows: int = 9000
    steps: int = 900
    width: int = 8
    looks: int = 8
    test: int = 400
    published: tuple[str, ...] = tuple(BLOCKS)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


QUICK = Settings("digits", 1200, 40, 4, 4, 200, (), (0,))
PAPER = Settings("cifar10_whole", 49_000, 106 * 490, 64, 40, 1000)  # PreActResNet-18
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": PAPER}
THEIRS: dict[str, float] = {}
SMALLER = "three blocks of 8 to 32 channels, 900 steps of 100; 9,000 rows"
WHY = "at its best T every block loses entanglement, the last by far the most; their T is not said"


def mixed(model: nn.Module, x: Tensor, y: Tensor, layers: list[str]) -> dict[str, float]:
    found = entanglement(capture(model, x, layers), y, metric="cosine").layers
    return {f"block {n}": entry.ratio for n, entry in enumerate(found, 1)}


def run(settings: Settings, seed: int, source: Source) -> dict:
    (x, y), test = parts(*images(source, settings.data), (settings.rows, settings.test), seed)
    stem, when, seen = 2 if x.shape[-1] > 16 else 1, [], []
    with nets.seeded(seed):
        small, large = nets.res8(x.shape[1], settings.width, stem=stem), len(x) > 10_000
        model = (nets.preact_resnet18(3) if large else small).to(x.device)

    def look(step: int) -> None:
        if step % (settings.steps // settings.looks) == 0 or step == settings.steps - 1:
            when.append(step + 1)
            seen.append(mixed(model, *test, ["1", "2", "3", *("4" * large)]))
            model.train()

    sgd, rows = SGD(model.parameters(), 0.1, 0.9), batches(len(x), 100, settings.steps, seed)
    fit(model, lambda at, _: F.cross_entropy(model(x[at]), y[at]), rows, sgd,
        one_cycle(sgd, 0.1, settings.steps), look)  # fmt: skip
    curve = {b: [at[b] for at in seen] for b in seen[0]}
    found = {"steps": when, "curve": curve, "accuracy": accuracy(model, *test)}
    for name in settings.published:
        with nets.seeded(seed):
            net = nets.CifarResNet(BLOCKS[name]).to(x.device).eval()
        groups, weights = ["layer1", "layer2", "layer3"], name.lower().replace("-", "")
        found[name] = {"untrained": mixed(net, *test, groups)}
        net.load_state_dict(cifar10_weights(source, weights))
        found[name]["published"] = mixed(net, *test, groups)
    return found


def claims(rows: list[dict]) -> list[Claim]:
    seen, made = {"a small ResNet": [r["curve"] for r in rows]}, []
    for name in (n for n in BLOCKS if n in rows[0]):
        seen[name] = [{b: [r[name][e][b] for e in ENDS] for b in r[name][ENDS[0]]} for r in rows]
    for net, found in seen.items():
        *lower, last = ([r[b][-1] - r[b][0] for r in found] for b in found[0])
        more, told = np.subtract(lower[-1], last), f"{net}: the last falls further than block"
        made += [Claim(f"{net}: block {n} stays or rises (above −0.02)", v, needs=-0.02)
                 for n, v in enumerate(lower, 1)]  # fmt: skip
        made += [Claim(f"{net}: the last block falls", np.negative(last)),
                 Claim(f"{told} {len(lower)}", more, beyond=True)]  # fmt: skip
    return made


def draw(rows: list[dict], figure) -> None:
    left, *right = figure.subplots(1, 3)
    curves(left, rows[0]["steps"], {b: [r["curve"][b] for r in rows] for b in rows[0]["curve"]})
    tidy(left, "while a small ResNet trains", "step", "SNNL / chance").legend(fontsize=6)
    for ax, name in zip(right, (n for n in BLOCKS if n in rows[0]), strict=False):
        blocks = rows[0][name][ENDS[0]]
        bars(ax, {b: {e: [r[name][e][b] for r in rows] for e in ENDS} for b in blocks})
        tidy(ax, name).set_ylim(0, 1.2)
        ax.legend(fontsize=6, ncols=2)


if __name__ == "__main__":
    main(__file__)
