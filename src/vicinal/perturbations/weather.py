"""Weather: snow, frost, fog and brightness (Hendrycks & Dietterich 2019, section 3)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vicinal.perturbations.blur import along_a_path, path_length, zoom_matrix
from vicinal.perturbations.draws import normal, uniform
from vicinal.perturbations.noise import Generator, Images

# Severities 1 to 5.
SNOW = {  # flakes' mean, deviation, zoom, threshold; radius, sigma of the fall; share of image kept
    "imagenet": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "cifar": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
}
FROST = {  # weight of the image, weight of the frost
    "imagenet": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "cifar": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
}
FOG = {  # amount, decay of the fractal's wiggle per octave
    "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
}
BRIGHTNESS = {"imagenet": (0.1, 0.2, 0.3, 0.4, 0.5), "cifar": (0.05, 0.1, 0.15, 0.2, 0.3)}

_LUMA = (0.299, 0.587, 0.114)


def brightness(x: Images, amount: float, scale: float, generator: Generator) -> Images:
    """The value of the HSV color raised by ``amount`` and clipped; hue and saturation kept.

    With V = max over the channels, that is x·min(V + a, 1)/V; black becomes gray.
    """
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-30), raised)


def fog(x: Images, constants: tuple[float, float], scale: float, generator: Generator) -> Images:
    """A fractal haze laid over the image, then the old maximum restored."""
    amount, decay = constants
    top = x.amax((1, 2, 3), keepdim=True)
    haze = plasma(x, decay, generator)[:, None]
    return (x + amount * haze) * top / (top + amount)


def plasma(x: Images, decay: float, generator: Generator) -> Float[Tensor, "n h w"]:
    """Diamond-square heights on a torus, one map per image, in [0, 1] with mean 1/2.

    Each octave adds uniform noise of amplitude a² to the mean of the four corners, a being divided
    by ``decay`` from octave to octave. With the mean fixed no image is hazier than another by luck.
    """
    n, _, h, w = x.shape
    side = 2 ** math.ceil(math.log2(max(h, w)))
    heights = x.new_zeros(n, side, side)
    amplitude, step = 1.0, side
    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        noise = (uniform((3, *corners.shape), x, generator) * 2 - 1) * amplitude**2
        across, down = corners.roll(-1, 2), corners.roll(-1, 1)
        center = (corners + across + down + down.roll(-1, 2)) / 4 + noise[0]
        heights[:, half::step, half::step] = center
        heights[:, ::step, half::step] = (
            corners + across + center + center.roll(1, 1)
        ) / 4 + noise[1]
        heights[:, half::step, ::step] = (corners + down + center + center.roll(1, 2)) / 4 + noise[
            2
        ]
        amplitude, step = amplitude / decay, half
    heights = heights[:, :h, :w]
    heights = heights - heights.mean((1, 2), keepdim=True)
    return 0.5 + heights / (2 * heights.abs().amax((1, 2), keepdim=True))


def frost(x: Images, constants: tuple[float, float], scale: float, generator: Generator) -> Images:
    """A weighted sum of the image and ice crystals.

    The published corruption crops one of five photographs of frosted glass. They are not part of
    this library: the crystals here are drawn, one texture per image (:func:`ice`), so results on
    frost compare between models, not with tables made from the photographs.
    """
    image_weight, frost_weight = constants
    return image_weight * x + frost_weight * ice(x, generator)


def ice(x: Images, generator: Generator) -> Images:
    """Bright veins on clear glass: the ridges of two fractals, coarse and fine, faintly blue."""
    coarse, fine = (1 - (2 * plasma(x, decay, generator) - 1).abs() for decay in (1.8, 1.3))
    # Clear glass between thin veins, so that dimming the image counts as much as the ice does.
    veins = torch.maximum(coarse**24, fine**32)
    tint = (0.9, 0.96, 1.0) if x.shape[1] == 3 else (1.0,)
    return veins[:, None] * torch.tensor(tint, dtype=x.dtype, device=x.device)[:, None, None]


def snow(x: Images, constants: tuple[float, ...], scale: float, generator: Generator) -> Images:
    """Flakes falling in two opposite slants over a whitened image.

    The published noise loses deviation in its magnification, more or less so by the zoom; here the
    magnified noise has the given mean and deviation at every pixel.
    """
    mean, deviation, zoom, threshold, radius, sigma, kept = constants
    flakes = mean + deviation * _zoomed_noise(x, max(1.0, zoom * scale), scale, generator)
    flakes = torch.where(flakes < threshold, 0, flakes.clamp(0, 1))
    angles = -(uniform((len(x),), x, generator) + 0.5) * (math.pi / 2)
    fallen = along_a_path(flakes, angles, radius, sigma, scale)
    h, w = x.shape[2:]
    top, left = (fallen.shape[2] - h) // 2, (fallen.shape[3] - w) // 2
    fallen = fallen[:, :, top : top + h, left : left + w]
    luma = torch.tensor(_LUMA if x.shape[1] == 3 else (1.0,), dtype=x.dtype, device=x.device)
    gray = torch.einsum("nchw,c->nhw", x, luma)[:, None]
    whitened = kept * x + (1 - kept) * torch.maximum(x, gray * 1.5 + 0.5)
    return whitened + fallen + fallen.flip(2, 3)


def _zoomed_noise(
    x: Images, zoom: float, scale: float, generator: Generator
) -> Float[Tensor, "n 1 tall wide"]:
    """Standard normal noise magnified about the center, on a sky from which flakes fall in."""
    sky = math.ceil(scale * max(path_length(c[4], c[5]) for row in SNOW.values() for c in row))
    tall, wide = x.shape[2] + 2 * sky, x.shape[3] + 2 * sky
    rows, columns = zoom_matrix(tall, zoom, x), zoom_matrix(wide, zoom, x)
    noise = normal((len(x), 1, tall, wide), x, generator)
    return F.normalize(rows, dim=1) @ noise @ F.normalize(columns, dim=1).T
