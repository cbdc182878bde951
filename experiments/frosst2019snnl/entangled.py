"""Three nets of one start, plain, entangled, with the triplet loss raised: nine figures share them.

Cross-entropy alone for a fifth of the epochs, then the loss of every hidden layer is *raised* with
a weight that ramps to 1; cosine distances, T of least loss fitted every ten steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, kept, parts
from experiments.fit import batches, fit
from torch import Tensor, nn
from torch.optim import Adam

from vicinal.capture import Activations, capture
from vicinal.confidence import DeepKNN
from vicinal.losses import LayerwiseLoss, Ramp, SoftNearestNeighborLoss, TripletLoss

HIDDEN = ("1", "3", "6")  # what is entangled: after each ReLU of nets.cnn
EPSILONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
COLORS = {"plain": "#4c72b0", "entangled": "#dd8452", "triplet": "#55a868"}
Pair = tuple[Tensor, Tensor]
RAISED = {
    "entangled": lambda: SoftNearestNeighborLoss("optimal", metric="cosine", every=10),
    "triplet": lambda: TripletLoss(margin=0.5, metric="cosine"),
}


@dataclass(frozen=True)
class Recipe:
    """What the nets depend on, and how many rows look at them."""

    rows: int = 10_000
    epochs: int = 12
    width: int = 16
    weight: float = 1.0
    support: int = 2000
    calib: int = 750
    test: int = 400
    k: int = 50


PAPER = Recipe(59_000, 20, 64, support=50_000, test=10_000, k=75)
QUICK = Recipe(rows=900, epochs=5, width=4, support=400, calib=300, test=200, k=20)


@dataclass(frozen=True)
class Rows:
    train: Pair
    support: Pair  # training rows that vote
    calib: Pair
    test: Pair


def rows_of(source: Source, data: str, recipe: Recipe, seed: int) -> Rows:
    """Other rows for every seed; nothing that is tested was trained or calibrated on."""
    if data == "digits":
        sizes = (recipe.rows, recipe.calib, recipe.test)
        train, calib, test = parts(*images(source, data), sizes, seed)
    else:
        train, calib = parts(*images(source, data), (recipe.rows, recipe.calib), seed)
        (test,) = parts(*images(source, data, "test"), (recipe.test,), seed)
    return Rows(train, (train[0][: recipe.support], train[1][: recipe.support]), calib, test)


def net(source: Source, data: str, recipe: Recipe, kind: str, seed: int) -> nn.Sequential:
    """``kind`` plain, entangled or triplet; trained once, then read from the cache."""
    x, y = rows_of(source, data, recipe, seed).train
    with nets.seeded(seed):
        model = nets.cnn(x.shape[-1], x.shape[1], recipe.width).to(x.device)
    trains = (recipe.rows, recipe.epochs, recipe.width, kind != "plain" and recipe.weight)
    key = ("frosst", data, kind, seed, *trains)
    model.load_state_dict(kept(source, key, lambda: _trained(model, x, y, recipe, kind, seed)))
    return model.eval()


def _trained(
    model: nn.Sequential, x: Tensor, y: Tensor, recipe: Recipe, kind: str, seed: int
) -> dict[str, Tensor]:
    steps = recipe.epochs * len(x) // 128
    ramp = Ramp(-recipe.weight, start=0.2 * recipe.epochs, stop=0.3 * recipe.epochs)
    rule = RAISED.get(kind, RAISED["entangled"])()
    hidden = LayerwiseLoss(rule, dict.fromkeys(HIDDEN, 0.0 if kind == "plain" else ramp))

    def loss(rows: Tensor, step: int) -> Tensor:
        hidden.set_epoch(128 * step / len(x))
        with hidden.watch(model) as activations:
            task = F.cross_entropy(model(x[rows]), y[rows])
        return task + hidden(activations, y[rows])

    fit(model, loss, batches(len(x), 128, steps, seed), Adam(model.parameters(), 1e-3))
    return model.state_dict()


def layers_of(model: nn.Sequential, x: Tensor) -> Activations:
    """The hidden layers and the logits."""
    return capture(model, x, [*HIDDEN, str(len(model) - 1)])


def neighbors_of(model: nn.Sequential, rows: Rows, recipe: Recipe) -> DeepKNN:
    """Deep k-nearest neighbors on all layers, calibrated on rows the net has not seen."""
    head = DeepKNN(recipe.k).fit(layers_of(model, rows.support[0]), rows.support[1])
    return head.calibrate(layers_of(model, rows.calib[0]), rows.calib[1])
