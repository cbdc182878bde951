"""Weather: snow, frost, fog, brightness and spatter (Hendrycks & Dietterich 2019, section 3)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.perturbations.blur import along_a_path, zoom_matrix
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
    """A weighted sum of the image and ice.

    The published corruption crops one of five photographs of frosted glass. They are not part of
    this library: the ice here is drawn (:func:`ice`), as bright and as rough as theirs, so that it
    changes an image as much; what it hides is not the same.
    """
    image_weight, frost_weight = constants
    return image_weight * x + frost_weight * ice(x, generator)


def ice(x: Images, generator: Generator) -> Images:
    """Veins on frosted glass: the ridges of two fractals, faintly blue, one pane per image.

    The published photographs have, crop by crop, a mean brightness of 0.64 ± 0.15 and a deviation
    within the crop of 0.09; so do these.
    """
    coarse, fine = (1 - (2 * plasma(x, decay, generator) - 1).abs() for decay in (1.8, 1.3))
    veins = torch.maximum(coarse**2, fine**4)
    rough = (veins - veins.mean((1, 2), keepdim=True)) / veins.std((1, 2), keepdim=True)
    level = 0.64 + 0.15 * math.sqrt(3) * (uniform((len(x), 1, 1), x, generator) * 2 - 1)
    tint = (0.9, 1.015, 1.085) if x.shape[1] == 3 else (1.0,)
    pane = (level + 0.09 * rough)[:, None] * torch.tensor(tint).to(x)[:, None, None]
    return pane.clamp(0, 1)


def snow(x: Images, constants: tuple[float, ...], scale: float, generator: Generator) -> Images:
    """Flakes falling in two opposite slants over a whitened image."""
    mean, deviation, zoom, threshold, radius, sigma, kept = constants
    n, _, h, w = x.shape
    zoom = max(1.0, zoom * scale)
    noise = mean + deviation * normal((n, 1, h, w), x, generator)
    flakes = zoom_matrix(h, zoom, x) @ noise @ zoom_matrix(w, zoom, x).T
    flakes = torch.where(flakes < threshold, 0, flakes.clamp(0, 1))
    angles = -(uniform((n,), x, generator) + 0.5) * (math.pi / 2)
    fallen = along_a_path(flakes, angles, radius, sigma, scale)
    luma = torch.tensor(_LUMA if x.shape[1] == 3 else (1.0,), dtype=x.dtype, device=x.device)
    gray = torch.einsum("nchw,c->nhw", x, luma)[:, None]
    whitened = kept * x + (1 - kept) * torch.maximum(x, gray * 1.5 + 0.5)
    return whitened + fallen + fallen.flip(2, 3)
