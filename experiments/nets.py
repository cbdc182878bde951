"""The nets, small enough for two cores: nothing but builders of ``nn.Module``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initial weights (and dropout) drawn from ``seed``; the global generator is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(
    side: int, channels: int = 1, width: int = 16, fc: int = 64, out: int = 10
) -> nn.Sequential:
    """Two convolutions, a hidden layer, logits; each ReLU (names 1, 3, 6) is a layer to look at."""
    kernel, stride = (3, 1) if side < 16 else (5, 2)
    after = ((side + stride - 1) // stride + 1) // 2
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, kernel // 2), nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel, 2, kernel // 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * width * after**2, fc), nn.ReLU(), nn.Linear(fc, out),
    )  # fmt: skip


def madry(side: int, channels: int) -> nn.Sequential:
    """Two padded convolutions with pools and two linear layers; ReLUs are 1, 4, 8."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2 * channels * (side // 4) ** 2, 8 * channels), nn.ReLU(),
        nn.Linear(8 * channels, 10),
    )  # fmt: skip


def pooled_cnn(side: int, w: int) -> nn.Sequential:
    """Two convolutions with average pools, two linear layers, PReLU: the net of netsimilarity."""
    return nn.Sequential(
        nn.Conv2d(1, w, 5, padding=2), nn.AvgPool2d(2), nn.PReLU(),
        nn.Conv2d(w, 2 * w, 5, padding=2), nn.AvgPool2d(2), nn.PReLU(), nn.Flatten(),
        nn.Linear(2 * w * (side // 4) ** 2, 8 * w), nn.PReLU(), nn.Linear(8 * w, 10),
    )  # fmt: skip


def convolutions(x: Tensor, out: int, width: int) -> nn.Sequential:
    """Three convolutions with batch norm, strided but for the first on 8 px, and a linear layer."""
    widths, side = (x.shape[1], width, 2 * width, 4 * width), x.shape[-1]
    layers: list[nn.Module] = []
    for at, (a, b) in enumerate(pairwise(widths)):
        stride = 1 if at == 0 and side < 16 else 2
        layers += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16 * width, out))


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut; pre-activation, or as in the CIFAR-10 ResNets."""

    def __init__(self, into: int, width: int, stride: int):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(into), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(into, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        plain = into == width and stride == 1
        self.short = nn.Identity() if plain else nn.Conv2d(into, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        return self.conv2(F.relu(self.bn2(self.conv1(h)))) + self.short(h)


def res8(channels: int, width: int = 16, out: int = 10, stem: int = 1) -> nn.Sequential:
    """A pre-activation ResNet of three blocks (names 1, 2, 3); ``stem`` is the first stride."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stem, 1, bias=False),
        Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
        nn.BatchNorm2d(4 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * width, out),
    )  # fmt: skip


def preact_resnet18(channels: int, out: int = 10) -> nn.Sequential:
    """The paper's size: four groups of two blocks (names 1 to 4); the images are normalized."""
    widths = pairwise((64, 64, 128, 256, 512))
    groups = [nn.Sequential(Block(a, b, 1 if a == b else 2), Block(b, b, 1)) for a, b in widths]
    stem = nn.Sequential(
        nn.BatchNorm2d(channels, affine=False), nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
    )
    end = (nn.BatchNorm2d(512), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(stem, *groups, *end, nn.Linear(512, out))


class OptionA(nn.Module):
    """A block of the published CIFAR-10 ResNets: the shortcut subsamples and pads with zeros."""

    def __init__(self, into: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(into, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.stride, self.pad = stride, (width - into) // 2

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        short = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(h + short)


class CifarResNet(nn.Module):
    """ResNet-20 (``n=3``) or -56 (``n=9``), names as published; takes images in 0..1."""

    def __init__(self, n: int = 3):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for at, (into, width, stride) in enumerate([(16, 16, 1), (16, 32, 2), (32, 64, 2)], 1):
            rest = [OptionA(width, width, 1) for _ in range(n - 1)]
            setattr(self, f"layer{at}", nn.Sequential(OptionA(into, width, stride), *rest))
        self.linear = nn.Linear(64, 10)
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def embed(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1((x - self.mean) / self.std)))
        return self.layer3(self.layer2(self.layer1(h))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.embed(x))
