"""Rows of the query as pixels in [0, 1], and what is done to them: corruptions, then FGSM.

A model that takes other inputs (normalized by channel) is given them back as an affine map of the
pixels, read off the range of each channel in the data: exact wherever black and white occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from vicinal.audits.entangled_layers import compact
from vicinal.audits.model import AskedModel
from vicinal.audits.network import picked
from vicinal.capture import device_of, listening
from vicinal.checks import InputError
from vicinal.perturbations import corrupt, fgsm

SEVERITIES = (1, 3, 5)
EPSILONS = (2 / 255, 8 / 255, 32 / 255)
SMALL_SIDE = 64  # pixels up to which CIFAR's constants, made for 32, are the fitting ones
CHUNK = 64  # images perturbed at a time
ROOM = 1 << 28  # bytes of the clean images
RANGE_ROWS = 512


class Pixels(nn.Module):
    """A model, or one of its layers, as a function of pixels in [0, 1].

    ``low`` and ``high``: the inputs that stand for black and white, by channel.
    """

    low: Tensor
    span: Tensor

    def __init__(self, model: nn.Module, low: Tensor, high: Tensor, layer: str | None = None):
        super().__init__()
        self.model, self.layer = model, layer
        self.register_buffer("low", low)
        self.register_buffer("span", high - low)

    def inputs(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        return self.low.to(x) + x * self.span.to(x)

    def pixels(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        return ((inputs - self.low) / self.span).clamp(0, 1)

    def of(self, layer: str) -> Pixels:
        """The same up to one layer."""
        return Pixels(self.model, self.low, self.low + self.span, layer)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """Where ``x`` is, wherever the model is."""
        inputs = self.inputs(x).to(device_of(self.model) or x.device)
        if self.layer is None:
            output: Tensor = self.model(inputs)
            return output.to(x.device)
        with listening(self.model, [self.layer], lambda _, output: compact(output)) as kept:
            self.model(inputs)
            return kept[self.layer].to(x.device)


class Sample(NamedTuple):
    """Some rows of a set, as pixels, with their codes, and the model that takes pixels."""

    rows: NDArray[np.int64]
    x: Float[Tensor, "n c h w"]
    codes: Int[Tensor, " n"]
    net: Pixels

    @property
    def constants(self) -> str:
        return "cifar" if min(self.x.shape[2:]) <= SMALL_SIDE else "imagenet"


class Perturbed(NamedTuple):
    name: str
    kind: str  # "clean", "corruption", "attack"
    level: float | None
    x: Float[Tensor, "n c h w"]

    @property
    def strongest(self) -> bool:
        return self.level in (SEVERITIES[-1], EPSILONS[-1])


def sample_of(source: AskedModel, rows: NDArray[np.int64], codes: Int[Tensor, " m"]) -> Sample:
    """These rows of the query as pixels, as many as there is room for; ``codes`` of all rows."""
    first = images(picked(source.test, rows[:1]))
    rows = rows[: max(1, ROOM // (4 * first[0].numel()))]
    given = images(picked(source.test, rows))
    net = Pixels(source.model, *_range(given, source.train))
    return Sample(rows, net.pixels(given), codes[torch.from_numpy(rows)], net)


def images(x: Any) -> Float[Tensor, "n c h w"]:
    """The inputs, if they are images; if not, a sentence that says what they are."""
    shape = tuple(getattr(x, "shape", ()))
    if not isinstance(x, Tensor) or len(shape) != 4 or shape[1] not in (1, 3):
        raise InputError(f"inputs of shape {shape[1:]} are no images (c, h, w) of 1 or 3 channels")
    if min(shape[2:]) < 8:
        raise InputError(f"images of {shape[2]} x {shape[3]} pixels are too small to corrupt")
    if not x.is_floating_point():
        raise InputError(f"images of {x.dtype} have no gradient: a model of floats is needed")
    return x.detach().cpu()


def _range(x: Tensor, train: Any) -> tuple[Tensor, Tensor]:
    """Which inputs stand for black and white: 0 and 1, or each channel's range in the data."""
    if float(x.min()) >= 0 and float(x.max()) <= 1:
        return x.new_zeros(x.shape[1], 1, 1), x.new_ones(x.shape[1], 1, 1)
    both = torch.cat([x, images(picked(train, np.arange(RANGE_ROWS)))])
    low, high = (end[:, None, None] for end in both.transpose(0, 1).flatten(1).aminmax(dim=1))
    return low, torch.where(high > low, high, low + 1)


def perturbations(
    sample: Sample,
    corruptions: Sequence[str],
    columns: Int[Tensor, " c"] | None,
    head: Any,
    layer: str,
    seed: int,
) -> Iterator[Perturbed]:
    """Clean, corrupted at each severity, attacked at each ε.

    A corruption draws the same numbers at every severity. FGSM climbs the loss of the model's own
    output, whose columns are those of the classes; without such an output, of the neighbor ``head``
    on ``layer``.
    """
    yield Perturbed("clean", "clean", None, sample.x)
    for at, name in enumerate(corruptions):
        for severity in SEVERITIES:
            draws = torch.Generator().manual_seed(seed + at)
            parts = [
                corrupt(part, name, severity, constants=sample.constants, generator=draws)
                for part in sample.x.split(CHUNK)
            ]
            yield Perturbed(name, "corruption", float(severity), torch.cat(parts))
    model: nn.Module = sample.net
    y = sample.codes if columns is None else columns[sample.codes]
    if columns is None:
        model = nn.Sequential(sample.net.of(layer), head.module())
    for epsilon in EPSILONS:
        moved = fgsm(model, sample.x, y, epsilon, batch_size=CHUNK)
        yield Perturbed("fgsm", "attack", epsilon, moved)
