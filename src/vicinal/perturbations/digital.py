"""Digital: contrast, elastic, pixelate, JPEG, saturate (Hendrycks & Dietterich 2019, section 3)."""

from __future__ import annotations

import io

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vicinal.perturbations.blur import smoothing_matrix
from vicinal.perturbations.draws import uniform
from vicinal.perturbations.noise import Generator, Images

# Severities 1 to 5.
CONTRAST = {"imagenet": (0.4, 0.3, 0.2, 0.1, 0.05), "cifar": (0.75, 0.5, 0.4, 0.3, 0.15)}
# Ripple, its smoothness, corner moves, in parts of the shorter side (published as parts of 244 on
# images of 224). The published severities are not in the order of how far they move pixels: strong
# affine moves give way to a fine ripple.
_WIDE = 244 / 224
ELASTIC_TRANSFORM = {
    "imagenet": (
        (2 * _WIDE, 0.7 * _WIDE, 0.1 * _WIDE),
        (2 * _WIDE, 0.08 * _WIDE, 0.2 * _WIDE),
        (0.05 * _WIDE, 0.01 * _WIDE, 0.02 * _WIDE),
        (0.07 * _WIDE, 0.01 * _WIDE, 0.02 * _WIDE),
        (0.12 * _WIDE, 0.01 * _WIDE, 0.02 * _WIDE),
    ),
    "cifar": (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
}
SATURATE = {  # factor and shift of the saturation; the first two severities take color away
    "imagenet": ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
    "cifar": ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
}
PIXELATE = {"imagenet": (0.6, 0.5, 0.4, 0.3, 0.25), "cifar": (0.95, 0.9, 0.85, 0.75, 0.65)}
JPEG_COMPRESSION = {"imagenet": (25, 18, 15, 10, 7), "cifar": (80, 65, 58, 50, 40)}


def contrast(x: Images, share: float, scale: float, generator: Generator) -> Images:
    """Each value drawn toward the mean of its channel in its image."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * share + mean


def saturate(
    x: Images, constants: tuple[float, float], scale: float, generator: Generator
) -> Images:
    """The saturation of the HSV color scaled and raised; hue and value kept.

    With V and m the largest and the smallest channel and S = (V − m)/V, a channel lies at
    V·(1 − S·(V − x)/(V − m)): only S changes. Gray has no hue; it counts as red, as published, in
    color images, and one-channel images stay as they are.
    """
    if x.shape[1] == 1:
        return x
    factor, shift = constants
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    gap = value - least
    red = torch.tensor((0.0, 1.0, 1.0), dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    depth = torch.where(gap > 0, (value - x) / gap.clamp(min=1e-30), red)
    saturation = torch.where(value > 0, gap / value.clamp(min=1e-30), 0)
    return value * (1 - (factor * saturation + shift).clamp(0, 1) * depth)


def elastic_transform(
    x: Images, constants: tuple[float, float, float], scale: float, generator: Generator
) -> Images:
    """A random affine map of three corners and a smoothed random displacement of every pixel.

    The ripple is white noise of one draw per pixel, smoothed: its strength after smoothing depends
    on the pixel's size, hence the factor side/reference that keeps it the same part of the image.
    """
    n, _, h, w = x.shape
    amount, smoothness, corner = (part * min(h, w) for part in constants)
    ripple = uniform((n, 2, h, w), x, generator) * 2 - 1
    rows = smoothing_matrix(h, smoothness, x, truncate=3, border="reflect")
    columns = smoothing_matrix(w, smoothness, x, truncate=3, border="reflect")
    reference = 224 if constants in ELASTIC_TRANSFORM["imagenet"] else 32
    ripple = amount * min(h, w) / reference * (rows @ ripple @ columns.T)
    grid = torch.stack(
        torch.meshgrid(torch.arange(h).to(x), torch.arange(w).to(x), indexing="ij"), -1
    )
    place = grid + ripple.movedim(1, -1)
    back = _affine(x, corner, generator)
    source = torch.einsum("nhwi,nij->nhwj", place, back[:, :2]) + back[:, 2, None, None]
    size = torch.tensor([h - 1, w - 1]).to(x)
    unit = (2 * source / size - 1).flip(-1)  # grid_sample wants (x, y) in [−1, 1]
    return F.grid_sample(x, unit, padding_mode="reflection", align_corners=True)


def _affine(x: Images, corner: float, generator: Generator) -> Float[Tensor, "n three two"]:
    """Maps places of the result to places of the image: the affine map of three moved corners."""
    n, _, h, w = x.shape
    arm = min(h, w) // 3
    fixed = torch.tensor([[arm, arm], [arm, -arm], [-arm, -arm]]).to(x)
    fixed = fixed + torch.tensor([h // 2, w // 2]).to(x)
    moved = fixed + corner * (uniform((n, 3, 2), x, generator) * 2 - 1)
    return torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), fixed.expand(n, -1, -1))


def pixelate(x: Images, share: float, scale: float, generator: Generator) -> Images:
    """Each pixel becomes the mean of its cell (Pillow's box filter down, then up)."""
    shares = next(row for row in PIXELATE.values() if share in row)
    rows, columns = (_cell_means(size, shares, shares.index(share), x) for size in x.shape[2:])
    return rows @ x @ columns.T


def cell_counts(size: int, shares: tuple[float, ...]) -> list[int]:
    """Cells along an axis for each severity: int(size·share), all different.

    On tiny images whole numbers would make two severities the same image, or the first the
    original; there the counts are moved by the few cells that keep them apart.

    >>> cell_counts(224, PIXELATE["imagenet"]), cell_counts(8, PIXELATE["imagenet"])
    ([134, 112, 89, 67, 56], [6, 5, 4, 3, 2])
    """
    counts = [int(size * share) for share in shares]
    for at in range(len(counts) - 2, -1, -1):
        counts[at] = max(counts[at], counts[at + 1] + 1)
    excess = max(0, counts[0] - (size - 1))
    return [count - excess for count in counts]


def _cell_means(
    size: int, shares: tuple[float, ...], severity: int, like: Tensor
) -> Float[Tensor, "size size"]:
    """The matrix of one axis.

    Pillow gives a pixel on the border of two cells to the left one on the way down and to the right
    one on the way up. Below 32 pixels, where the place of a cell would count for more than how many
    there are, each severity merges cells of the milder one.
    """
    count = cell_counts(size, shares)[severity]
    if size < 32:
        down = up = _merged(size, count)
    else:
        down = [-(-(2 * at + 1) * count // (2 * size)) - 1 for at in range(size)]
        up = [(2 * at + 1) * count // (2 * size) for at in range(size)]
    inside = (torch.tensor(up)[:, None] == torch.tensor(down)).to(like)
    return inside / inside.sum(1, keepdim=True)


def _merged(size: int, count: int) -> list[int]:
    """The cell of each pixel after merging the smallest neighbors, nearest the middle first."""
    widths = [1] * size
    while len(widths) > count:
        middle = len(widths) / 2 - 1
        at = min(range(len(widths) - 1), key=lambda i: (widths[i] + widths[i + 1], abs(i - middle)))
        widths[at : at + 2] = [widths[at] + widths[at + 1]]
    return [cell for cell, width in enumerate(widths) for _ in range(width)]


def jpeg_compression(x: Images, quality: int, scale: float, generator: Generator) -> Images:
    """Through 8 bits and Pillow's JPEG encoder at the given quality."""
    pixels = (x * 255).round().to(torch.uint8).movedim(1, -1).cpu().numpy()
    through = np.stack(
        [_jpeg(image.squeeze(-1) if x.shape[1] == 1 else image, quality) for image in pixels]
    )
    return torch.from_numpy(through.reshape(pixels.shape)).to(x).movedim(-1, 1) / 255


def _jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))
