"""Spatter: water or mud on the lens (Hendrycks & Dietterich's extra corruptions)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy import ndimage
from torch import Tensor

from vicinal.perturbations.blur import smoothing_matrix
from vicinal.perturbations.draws import normal
from vicinal.perturbations.noise import Generator, Images

# Severities 1 to 5: the liquid's mean, deviation, smoothness, threshold; strength, or softness of
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
_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_LUMA = (0.2989, 0.587, 0.114)
_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float64)


def spatter(x: Images, constants: tuple[float, ...], scale: float, generator: Generator) -> Images:
    """Drops where smoothed noise exceeds a threshold: water adds light, mud covers."""
    mean, deviation, smoothness, threshold, last, mud = constants
    n, c, h, w = x.shape
    noise = mean + deviation * normal((n, 1, h, w), x, generator)
    # Smoothing s times as far leaves 1/s of the noise's deviation: a scaled drop is as likely.
    liquid = mean + (_smooth(noise, smoothness * scale) - mean) * scale
    color = torch.tensor(_MUD if mud else _WATER, dtype=x.dtype, device=x.device)
    if c == 1:
        color = (color * torch.tensor(_LUMA).to(x)).sum()[None]
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
    spread = max(int(below[-1] - first), 1)
    table = np.rint((below - first) * 255 / spread).clip(0, 255)
    return np.asarray(table[levels], dtype=np.float64)
