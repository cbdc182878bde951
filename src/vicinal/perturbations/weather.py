"""Weather: snow, frost, fog, brightness and spatter (Hendrycks & Dietterich 2019, section 3)."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from scipy import ndimage
from torch import Tensor

from vicinal.perturbations.blur import along_a_path, smoothing_matrix, zoom_matrix
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
# The liquid's mean, deviation, smoothness, threshold; strength, or softness of
# its edge; whether it is mud.
SPATTER = {
    "imagenet": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "cifar": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
}

_LUMA = (0.299, 0.587, 0.114)
_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_GRAY = (0.2989, 0.587, 0.114)
_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float64)


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
        upper = (corners + across + center + center.roll(1, 1)) / 4 + noise[1]
        left = (corners + down + center + center.roll(1, 2)) / 4 + noise[2]
        heights[:, ::step, half::step], heights[:, half::step, ::step] = upper, left
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


def spatter(x: Images, constants: tuple[float, ...], scale: float, generator: Generator) -> Images:
    """Drops where smoothed noise exceeds a threshold: water adds light, mud covers."""
    mean, deviation, smoothness, threshold, last, mud = constants
    n, c, h, w = x.shape
    noise = mean + deviation * normal((n, 1, h, w), x, generator)
    # Smoothing s times as far leaves 1/s of the noise's deviation: a scaled drop is as likely.
    liquid = mean + (_smooth(noise, smoothness * scale) - mean) * scale
    color = torch.tensor(_MUD if mud else _WATER, dtype=x.dtype, device=x.device)
    if c == 1:
        color = (color * torch.tensor(_GRAY).to(x)).sum()[None]
    if mud:
        cover = _smooth((liquid > threshold).to(x), last * scale)
        cover = torch.where(cover < 0.8, 0, cover)
        return x * (1 - cover) + color[:, None, None] * cover
    drops = (torch.where(liquid < threshold, 0, liquid) * 255).clamp(0, 255).floor()
    light = torch.stack([drop * _relief(drop) for drop in drops[:, 0]])[:, None]
    most = light.amax((1, 2, 3), keepdim=True)
    return x + color[:, None, None] * last * torch.where(most > 0, light / most.clamp(min=1), 0)


def _smooth(x: Images, sigma: float) -> Images:
    return smoothing_matrix(x.shape[2], sigma, x) @ x @ smoothing_matrix(x.shape[3], sigma, x).T


def _relief(drop: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Where a drop shines: the equalized distance to its outline, embossed and softened."""
    outline = _outline(drop.cpu().numpy().astype(np.int64))
    if not outline.any():
        return torch.zeros_like(drop)
    distance = np.minimum(ndimage.distance_transform_edt(~outline), 20)
    # whole numbers by leaving out the rest (a mean of nine may lie a rounding below one)
    levels = (ndimage.uniform_filter(distance, 3, mode="mirror") + 1e-6).astype(np.int64)
    embossed = ndimage.correlate(_equalized(levels), _EMBOSS, mode="mirror").clip(0, 255)
    soft = np.rint(ndimage.uniform_filter(embossed, 3, mode="mirror"))
    return torch.from_numpy(soft).to(drop)


def _outline(levels: np.ndarray, low: int = 50, high: int = 150) -> np.ndarray:
    """Edges after Canny: where the slope is larger than on both sides of it, above ``high``, or
    above ``low`` and joined to such.
    """
    across, down = (ndimage.correlate(levels, k, mode="nearest") for k in (_SOBEL, _SOBEL.T))
    x, y = np.abs(across), np.abs(down)
    slope = x + y
    padded, (h, w) = np.pad(slope, 1), slope.shape

    def beyond(i: int, j: int) -> np.ndarray:
        return padded[1 + i : 1 + i + h, 1 + j : 1 + j + w]

    rising = (slope > beyond(-1, -1)) & (slope > beyond(1, 1))
    falling = (slope > beyond(-1, 1)) & (slope > beyond(1, -1))
    peak = np.where((across ^ down) >= 0, rising, falling)  # the slope's own diagonal
    upright = (slope > beyond(-1, 0)) & (slope >= beyond(1, 0))
    peak = np.where(y > x * np.tan(3 * np.pi / 8), upright, peak)
    level = (slope > beyond(0, -1)) & (slope >= beyond(0, 1))
    peak = np.where(y < x * np.tan(np.pi / 8), level, peak) & (slope > low)
    joined, _ = ndimage.label(peak, np.ones((3, 3)))
    return np.isin(joined, np.unique(joined[peak & (slope > high)]))


def _equalized(levels: np.ndarray) -> np.ndarray:
    """Each level replaced by the share of pixels below it, in 0 to 255."""
    counts = np.bincount(levels.ravel(), minlength=256)
    below = counts.cumsum()
    first = counts[np.flatnonzero(counts)[0]]
    table = np.rint((below - first) * 255 / max(int(below[-1] - first), 1)).clip(0, 255)
    return np.asarray(table[levels], dtype=np.float64)
