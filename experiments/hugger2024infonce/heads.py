"""Classification heads on frozen features, trained by the five losses that the paper compares.

Birds: all 200 classes of CUB-200, 1280 ImageNet features projected on 256 principal components, a
perceptron of three layers. CIFAR-10: 64 features of its test images by a ResNet-20 that was trained
on others. Digits stand in where there are no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, bird_features, cifar10_features, images, parts
from experiments.fit import batches, fit, outputs
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from vicinal.evaluation import expected_calibration_error, noise_floor, reliability
from vicinal.losses import (
    info_nce,
    mixup,
    one_hot_noise,
    smooth_labels,
    soft_distribution_info_nce,
    soft_target_cross_entropy,
)

HARD = ("NLL", "InfoNCE")
SOFT = ("soft CE", "soft distribution", "soft target")
SHOWN = {"fig4": ("soft CE", "soft target"), "fig6": ("soft CE + MixUp", "soft target + MixUp")}
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Recipe:
    """What is the same for all losses of a comparison; ``bank`` noise targets beside the batch."""

    epochs: int
    batch: int
    rate: float
    epsilon: float = 0.1
    alpha: float = 0.0  # of MixUp; 0 is without
    bank: int = 0
    hidden: int = 256


def feature_parts(source: Source, name: str, seed: int) -> list[Pair]:
    """To train on (70 %), to choose the rate on (10 %), to test on (20 %)."""
    if name == "birds":
        halves = [bird_features(source, f"{part}_classes") for part in ("train", "test")]
        x, y = torch.cat([h[0] for h in halves]), torch.cat([h[1] for h in halves])
    elif name == "cifar10":
        x, y = cifar10_features(source)
    elif name == "tiny_imagenet_vitb16":
        held = np.load(source.file(name, "features.npz"))
        x, y = source.give(held["features"], held["label"])
    else:
        x, y = images(source, name)
        x = x.flatten(1) + 0.4 * torch.randn(
            len(x), 64, generator=torch.Generator().manual_seed(seed)
        )
    n = len(x)
    sizes = (7 * n // 10, n // 10, n - 7 * n // 10 - n // 10)
    train, held, test = parts(x, y, sizes, seed)
    center = train[0].mean(0)
    with nets.seeded(seed):  # its sketch is random
        _, spread, directions = torch.svd_lowrank(train[0] - center, min(256, x.shape[1]))
    scale = directions / spread.mean() * len(train[0]) ** 0.5
    return [((rows - center) @ scale, labels) for rows, labels in (train, held, test)]


def trained(loss: str, recipe: Recipe, train: Pair, classes: int, seed: int) -> nn.Module:
    """A perceptron under ``loss``; soft losses see smoothed (with ``alpha``: mixed) targets."""
    x, y = train
    with nets.seeded(seed):
        net = nets.mlp(x.shape[1], recipe.hidden, recipe.hidden, classes).to(x.device)
    draws = torch.Generator().manual_seed(seed)
    eta = torch.full((classes,), 1 / classes)

    def step(rows: Tensor, _: int) -> Tensor:
        inputs, targets = x[rows], y[rows]
        if loss == "NLL":
            return F.cross_entropy(net(inputs), targets)
        if loss == "InfoNCE":
            return info_nce(net(inputs), targets, noise="batch")
        if recipe.alpha:
            inputs, targets = mixup(
                inputs, targets, recipe.alpha, draws, num_classes=classes, epsilon=recipe.epsilon
            )
        else:
            targets = smooth_labels(targets, classes, recipe.epsilon)
        if loss == "soft CE":
            return soft_target_cross_entropy(net(inputs), targets)
        if loss == "soft distribution":
            return soft_distribution_info_nce(net(inputs), targets, generator=draws)
        bank = one_hot_noise(recipe.bank, eta, draws) if recipe.bank else None
        return info_nce(net(inputs), targets, noise_targets=bank)

    steps = max(1, recipe.epochs * len(x) // recipe.batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    return fit(net, step, batches(len(x), recipe.batch, steps, seed), optimizer, schedule)


def compared(
    source: Source, data: str, ways: Sequence[Recipe], alpha: float, seed: int
) -> dict[str, dict]:
    """Of each loss, soft ones also with MixUp: the way that is best on held-out rows, tested."""
    train, held, test = feature_parts(source, data, seed)
    classes, found = int(train[1].max()) + 1, {}
    for name in (*HARD, *SOFT, *(f"{loss} + MixUp" for loss in SOFT)):
        loss = name.removesuffix(" + MixUp")
        recipes = [replace(way, alpha=alpha if loss != name else 0.0) for way in ways]
        made = [trained(loss, recipe, train, classes, seed) for recipe in recipes]
        best = int(np.argmax([scores(net, *held)["top1"] for net in made]))
        found[name] = {**scores(made[best], *test), "rate": ways[best].rate}
        if name in SHOWN["fig4"] + SHOWN["fig6"]:
            found[name] |= calibration(made[best], held, test)
    return found


def scores(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Top-1, top-5 and expected calibration error, %."""
    p = outputs(net, x).softmax(1)
    best = p.topk(min(5, p.shape[1]), 1).indices == y[:, None]
    ece = expected_calibration_error(p.max(1).values, best[:, 0])
    return {"top1": 100 * float(best[:, 0].double().mean()), "ece": 100 * ece,
            "top5": 100 * float(best.any(1).double().mean())}  # fmt: skip


def calibration(net: nn.Module, held: Pair, test: Pair) -> dict:
    """Log loss, noise floor of the ECE, ECE at the T of least log loss on ``held``, its bins."""
    (z, y), (z_test, y_test) = ((outputs(net, x).double(), y) for x, y in (held, test))
    found = minimize_scalar(lambda t: float(F.cross_entropy(z / math.exp(t), y)), bounds=(-3, 3))
    wide, sharp = (
        softmax.max(1) for softmax in (z_test.softmax(1), (z_test / math.exp(found.x)).softmax(1))
    )
    right = wide.indices == y_test
    bins = reliability(wide.values, right)
    filled = bins.count > 0
    return {
        "nll": float(F.cross_entropy(z_test, y_test)),
        "floor": 100 * float(noise_floor(wide.values)),
        "scaled": 100 * expected_calibration_error(sharp.values, right),
        "bins": [
            np.where(filled, bins.confidence, 0),
            np.where(filled, bins.accuracy, 0),
            bins.count,
        ],
    }
