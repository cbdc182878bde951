"""A job with known answers: bundled digits, some labels made wrong, some inputs that are no digits.

A small network learns from one part of scikit-learn's digits. A second part is the support, a few
of its labels replaced at random; the third part is the query, with letters mixed in that belong to
no class. What was planted is kept, so that the audit can say how much was found and missed.
"""

from __future__ import annotations

import dataclasses
import string
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from torch import Tensor, nn

from vicinal.audits.audit import audit
from vicinal.audits.record import Audit
from vicinal.audits.sections import Planted
from vicinal.audits.settings import About, AuditSettings
from vicinal.neighbors.search.resumable import Progress

TRAIN, SUPPORT = 600, 700
WRONG_LABELS, LETTERS = 35, 40
EMBEDDING = "embedding"


@dataclass(frozen=True)
class Demonstration:
    """The sets as images ``(n, 1, 8, 8)`` and labels; where the planted rows are."""

    model: nn.Module
    support: Float[Tensor, "n 1 8 8"]
    support_labels: NDArray[np.int64]
    query: Float[Tensor, "m 1 8 8"]
    query_labels: NDArray[np.int64]  # -1: no digit, no label
    wrong: NDArray[np.int64]  # support rows whose label was replaced
    foreign: NDArray[np.int64]  # query rows that are letters


def demonstration(seed: int = 0, epochs: int = 25) -> Demonstration:
    """Everything seeded: the same seed gives the same network, plants and numbers."""
    rng = np.random.default_rng(seed)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = digits.target.astype(np.int64)
    train, support, query = np.split(rng.permutation(len(images)), [TRAIN, TRAIN + SUPPORT])

    given = labels[support].copy()
    wrong = np.sort(rng.permutation(len(support))[:WRONG_LABELS])
    given[wrong] = (given[wrong] + rng.integers(1, 10, WRONG_LABELS)) % 10

    mixed = torch.cat([images[query], letters(LETTERS, rng)])
    truth = np.concatenate([labels[query], np.full(LETTERS, -1)])
    shuffle = rng.permutation(len(mixed))
    return Demonstration(
        model=trained(images[train], torch.from_numpy(labels[train]), seed, epochs),
        support=images[support],
        support_labels=given,
        query=mixed[shuffle],
        query_labels=truth[shuffle],
        wrong=wrong,
        foreign=np.flatnonzero(truth[shuffle] == -1),
    )


def audited(planted: Demonstration, seed: int = 0, progress: Progress | None = None) -> Audit:
    """The audit of the demonstration, with what it found of what was planted."""
    labels = [None if label < 0 else int(label) for label in planted.query_labels]
    found = audit(
        planted.model,
        (planted.support, torch.from_numpy(planted.support_labels)),
        (planted.query, torch.from_numpy(planted.query_labels)),
        settings=AuditSettings(seed=seed, embedding=EMBEDDING),
        about=About(
            name="demo",
            support_name="digits (support)",
            query_name="digits and letters (query)",
            support_ids=[f"digit {row}" for row in range(len(planted.support))],
            query_ids=[f"{'letter' if y is None else 'digit'} {i}" for i, y in enumerate(labels)],
            model="vicinal.audits.demo:network",
            command="vicinal demo",
        ),
        progress=progress,
    )
    suspects = {suspect.row for suspect in found.labels.suspects} if found.labels else set()
    away = ("unfamiliar", "isolated")
    flagged = {row for row, verdict in enumerate(found.cases.verdict) if verdict in away}
    wrong, foreign = set(planted.wrong.tolist()), set(planted.foreign.tolist())
    return dataclasses.replace(
        found,
        planted=(
            Planted("wrong labels", len(wrong), len(wrong & suspects), len(suspects)),
            Planted("letters among the digits", len(foreign), len(foreign & flagged), len(flagged)),
        ),
    )


def trained(x: Tensor, y: Tensor, seed: int, epochs: int) -> nn.Module:
    """A small convolutional network, trained in seconds; the caller's random state is kept.

    In float64, rounded at the end: training magnifies what machines round otherwise, and the
    demonstration should say the same on all of them.
    """
    x = x.double()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = network().double()
        optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-4)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows], label_smoothing=0.05).backward()
                optimizer.step()
    return net.float().eval()


def letters(count: int, rng: np.random.Generator) -> Float[Tensor, "n 1 8 8"]:
    """Capital letters that look like no digit, drawn, tilted and shrunk to the digits' 8 x 8."""
    font = ImageFont.load_default(size=30)
    alphabet = [c for c in string.ascii_uppercase if c not in "BDGIJLOQSUZ"]
    drawn = []
    for _ in range(count):
        image = Image.new("L", (40, 40))
        place = tuple(20 + rng.uniform(-2, 2, 2))
        letter = alphabet[int(rng.integers(len(alphabet)))]
        ImageDraw.Draw(image).text(place, letter, fill=255, font=font, anchor="mm")
        small = image.rotate(rng.uniform(-12, 12)).resize((8, 8), Image.Resampling.BOX)
        pixels = np.clip(np.asarray(small) / 255 * 1.4, 0, 1)
        drawn.append(np.round(pixels * 16) / 16)  # the digits have 17 shades of gray
    return torch.from_numpy(np.stack(drawn)).float()[:, None]


def network() -> nn.Sequential:
    """The network of the demonstration, untrained."""
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 16, 3, padding=1),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(16, 32, 3, stride=2, padding=1),
        "relu2": nn.ReLU(),
        "flatten": nn.Flatten(),
        EMBEDDING: nn.Linear(512, 32),
        "relu3": nn.ReLU(),
        "classes": nn.Linear(32, 10),
    }
    return nn.Sequential(OrderedDict(layers))
