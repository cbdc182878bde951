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
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float64)


def spatter(x: Images, constants: tuple[float, ...], scale: float, generator: Generator) -> Images:
    """Drops where smoothed noise exceeds a threshold: water adds light, mud covers.

    Mud (severities 4 and 5) is as strong as published. Water is a variant: its drops shine from a
    plainer outline, 1.2 to 2.4 times as bright as published at 32 pixels; compare it between your
    own models only.
    """
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
    """Where a drop shines: the equalized distance to its outline, embossed and softened.

    The outline is the drop's own border pixels; the published one is that of Canny's detector.
    """
    wet = drop.cpu().numpy() > 0
    outline = wet & ~ndimage.binary_erosion(wet, border_value=1)
    if not outline.any():
        return torch.zeros_like(drop)
    distance = np.minimum(ndimage.distance_transform_edt(~outline), 20)
    levels = np.rint(ndimage.uniform_filter(distance, 3, mode="mirror")).astype(np.int64)
    embossed = ndimage.correlate(_equalized(levels), _EMBOSS, mode="mirror").clip(0, 255)
    soft = np.rint(ndimage.uniform_filter(embossed, 3, mode="mirror"))
    return torch.from_numpy(soft).to(drop)


def _equalized(levels: np.ndarray) -> np.ndarray:
    """Each level replaced by the share of pixels below it, in 0 to 255."""
    counts = np.bincount(levels.ravel(), minlength=256)
    below = counts.cumsum()
    first = counts[np.flatnonzero(counts)[0]]
    spread = max(int(below[-1] - first), 1)
    table = np.rint((below - first) * 255 / spread).clip(0, 255)
    return np.asarray(table[levels], dtype=np.float64)
