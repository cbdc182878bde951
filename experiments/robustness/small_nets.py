"""Small convolutional nets on digits and FashionMNIST, plain or with entangled hidden layers."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from vicinal.losses.layerwise import LayerwiseLoss
from vicinal.losses.snnl import SoftNearestNeighborLoss
from vicinal.neighbors import optimal_temperature

LOSSES = ("cross-entropy", "entangled")
WEIGHT = 0.05  # of each layer's SNNL
HIDDEN = ("0.1", "0.3", "0.6")  # after each ReLU or tanh


@dataclass(frozen=True)
class Parts:
    """Disjoint rows: to train on, to vote, to calibrate credibility, to test."""

    train: tuple[Tensor, Tensor]
    support: tuple[Tensor, Tensor]
    calib: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def parts_of(name: str, sizes: tuple[int, int, int, int], data: Path | None, seed: int) -> Parts:
    """A seeded split. Digits are bundled (8 x 8); FashionMNIST is read from ``data``."""
    if name == "digits":
        images, labels = load_digits(return_X_y=True)
        x, y = images.reshape(-1, 8, 8) / 16, labels
    else:
        folder = Path(data) / "fashion_mnist"
        x = _idx(folder / "train-images-idx3-ubyte.gz") / 255
        y = _idx(folder / "train-labels-idx1-ubyte.gz")
    order = np.random.default_rng(seed).permutation(len(x))[: sum(sizes)]
    ends = np.cumsum(sizes)[:-1]
    rows = [
        (torch.tensor(x[at][:, None], dtype=torch.float32), torch.tensor(y[at], dtype=torch.long))
        for at in np.split(order, ends)
    ]
    return Parts(*rows)


def _idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = struct.unpack(f">{dims}I", raw[4 : 4 + 4 * dims])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def small_net(size: int, seed: int) -> nn.Sequential:
    """(trunk, last layer): two strided convolutions and a 32-dimensional embedding."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        side, stride = (8, 1) if size == 8 else (14, 2)
        kernel = 3 if size == 8 else 5
        trunk = nn.Sequential(
            nn.Conv2d(1, 8, kernel, stride, padding=kernel // 2), nn.ReLU(),
            nn.Conv2d(8, 16, kernel, 2, padding=kernel // 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * ((side + 1) // 2) ** 2, 32), nn.Tanh(),
        )  # fmt: skip
        return nn.Sequential(trunk, nn.Linear(32, 10))


def train(
    net: nn.Sequential, rows: tuple[Tensor, Tensor], loss: str, steps: int, seed: int
) -> nn.Sequential:
    """Cross-entropy; ``entangled`` also maximizes the SNNL of each hidden layer.

    The temperature of a layer is the one of least loss, found anew every ten steps: with a fixed
    one the net would shrink the layer until every distance is small against it.
    """
    x, y = rows
    draws = torch.Generator().manual_seed(seed)
    temperatures = {name: torch.ones(()) for name in HIDDEN}
    entangle = LayerwiseLoss(
        {name: SoftNearestNeighborLoss(t, entangle="max") for name, t in temperatures.items()},
        layers=dict.fromkeys(HIDDEN, WEIGHT),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(steps):
        batch = torch.randint(len(x), (128,), generator=draws)
        with entangle.watch(net) as activations:
            value = F.cross_entropy(net(x[batch]), y[batch])
        if loss == "entangled":
            if step % 10 == 0:
                for name, rows_ in activations.items():
                    best = optimal_temperature(rows_.detach().flatten(1), y[batch])
                    temperatures[name].fill_(best)
            value = value + entangle(activations, y[batch])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return net.eval()


def hidden(net: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """The hidden layers' activations as rows."""
    found = {}
    with torch.no_grad():
        for at, module in enumerate(net[0]):
            x = module(x)
            if f"0.{at}" in HIDDEN:
                found[f"0.{at}"] = x.flatten(1)
    return found
