"""Figure 15, its measure on digits: entanglement per layer with SNNL ignored, minimized, maximized.

Claims (Frosst 2019, section 3 and appendix C): minimizing the loss on the hidden layers
disentangles them; maximizing it entangles them more while the network still classifies. No numbers.

Here: a small perceptron on the digits of scikit-learn, cosine distances so that a maximized loss
cannot win by shrinking the activations. The weight of the loss was chosen by held-out accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, parts
from experiments.draw import bars, tidy
from experiments.fit import accuracy, batches, fit
from experiments.record import Claim, difference
from experiments.runner import main
from torch import Tensor, nn

from vicinal.capture import capture
from vicinal.evaluation import entanglement
from vicinal.losses import LayerwiseLoss, SoftNearestNeighborLoss

LAYERS = ("1", "3", "4")  # two hidden layers after their ReLU, and the logits
NAMES = {"layer 1": "first hidden layer", "layer 3": "second hidden layer", "layer 4": "logits"}
# The weight of the loss on each hidden layer; negative maximizes, where more drowns the classes.
PULLS = {"plain": 0.0, "minimized": 0.4, "maximized": -0.1}


@dataclass(frozen=True)
class Settings:
    width: int = 128
    steps: int = 400
    batch: int = 130
    rate: float = 3e-3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(width=64, steps=120, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(),
}
THEIRS: dict[str, float] = {}
SMALLER = "digits, 8 px, and a small perceptron"


def trained(pull: float, settings: Settings, seed: int, x: Tensor, y: Tensor) -> nn.Module:
    with nets.seeded(seed):
        model = nets.mlp(64, settings.width, settings.width, 10).to(x.device)
    rules = {
        name: SoftNearestNeighborLoss(0.1, learn_temperature=True, metric="cosine",
                                      entangle="min" if pull >= 0 else "max")
        for name in LAYERS[:2]
    }  # fmt: skip
    hidden = LayerwiseLoss(rules, layers=dict.fromkeys(rules, abs(pull))).to(x.device)
    temperatures = {"params": hidden.parameters(), "lr": 0.1}  # they follow the network at once
    optimizer = torch.optim.Adam([{"params": model.parameters()}, temperatures], lr=settings.rate)

    def loss(rows: Tensor, _: int) -> Tensor:
        with hidden.watch(model) as activations:
            value = F.cross_entropy(model(x[rows]), y[rows])
        return value + hidden(activations, y[rows])

    return fit(model, loss, batches(len(x), settings.batch, settings.steps, seed), optimizer)


def run(settings: Settings, seed: int, source: Source) -> dict:
    x, y = images(source, "digits")
    (x, y), (x_test, y_test) = parts(x.flatten(1), y, (1300, 497), seed)
    found = {}
    for name, pull in PULLS.items():
        model = trained(pull, settings, seed, x, y)
        layers = capture(model, (x_test, y_test), list(LAYERS))
        mixed = entanglement(layers, y_test, metric="cosine")
        found[name] = {"accuracy": 100 * accuracy(model, x_test, y_test)}
        found[name] |= {f"layer {e.layer}": e.ratio for e in mixed.layers}
    return found


def claims(rows: list[dict]) -> list[Claim]:
    told = []
    for layer in ("layer 1", "layer 3"):
        told += [
            Claim(f"minimizing disentangles the {NAMES[layer]}",
                  difference(rows, f"plain.{layer}", f"minimized.{layer}")),
            Claim(f"maximizing entangles the {NAMES[layer]}",
                  difference(rows, f"maximized.{layer}", f"plain.{layer}")),
        ]  # fmt: skip
    lost = difference(rows, "maximized.accuracy", "plain.accuracy")
    return [*told, Claim("entangled, it loses less than 5 points", lost, needs=-5, unit="points")]


def draw(rows: list[dict], figure) -> None:
    ax = figure.subplots()
    bars(ax, {told: {p: [r[p][key] for r in rows] for p in PULLS} for key, told in NAMES.items()})
    tidy(ax, "SNNL at its best T / chance, held-out digits")
    ax.legend(fontsize=7, frameon=False, loc="upper left")


if __name__ == "__main__":
    main(__file__)
