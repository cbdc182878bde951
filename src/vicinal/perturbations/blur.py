r"""Blur: defocus, glass, motion, zoom and Gaussian (Hendrycks & Dietterich 2019, section 3).

A blur kernel is a weighted set of displacements: :math:`x'(p) = \sum_i w_i\, x(p + s\,u_i)`. The
published displacements :math:`u_i` are pixels of the image size they were made for; on a smaller
image each is multiplied by the scale :math:`s` and its weight split among the four pixels around
(:func:`splat`). Whole pixels at :math:`s = 1` are not split, so the kernel is the published one; at
any :math:`s > 0` a stronger severity still moves more light than a weaker one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_choice
from vicinal.perturbations.draws import uniform
from vicinal.perturbations.noise import Generator, Images

# Severities 1 to 5.
DEFOCUS_BLUR = {  # radius of the disk, standard deviation of the Gaussian that softens its edge
    "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
}
# Published order. It is not that of the distance to the original: a wider Gaussian smooths what the
# moves have roughened, and brings the image nearer again.
GLASS_BLUR = {  # standard deviation of the Gaussian, largest move, rounds
    "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
}
MOTION_BLUR = {  # radius, standard deviation along the path
    "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
}
ZOOM_BLUR = {  # end and step of the zoom factors, which start at 1 (np.arange's ends, as published)
    "imagenet": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "cifar": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
}
GAUSSIAN_BLUR = {"imagenet": (1.0, 2.0, 3.0, 4.0, 6.0), "cifar": (0.4, 0.6, 0.7, 0.8, 1.0)}
BORDERS_OF_SCIPY = ("nearest", "reflect")


def splat(
    moves: Float[Tensor, "b m 2"], weights: Float[Tensor, " m"]
) -> Float[Tensor, "b side side"]:
    """Kernels with the weights at displacements (dy, dx), each split among its four pixels.

    >>> splat(torch.tensor([[[0.0, 0.25]]]), torch.ones(1))[0, 1]
    tensor([0.0000, 0.7500, 0.2500])
    """
    radius = int(moves.abs().max().ceil()) or 1
    side = 2 * radius + 1
    corner = moves.floor()
    share = moves - corner
    kernels = moves.new_zeros(len(moves), side * side)
    for down in (0, 1):
        for right in (0, 1):
            part = (share[..., 0] if down else 1 - share[..., 0]) * (
                share[..., 1] if right else 1 - share[..., 1]
            )
            row = corner[..., 0] + down + radius
            column = corner[..., 1] + right + radius
            # A share of zero may point one pixel past the rim: its place does not matter.
            place = row.clamp(0, side - 1) * side + column.clamp(0, side - 1)
            kernels.scatter_add_(1, place.long(), part * weights)
    return kernels.view(-1, side, side)


def convolve(x: Images, kernels: Float[Tensor, "b side side"], border: str) -> Images:
    """Σ_u K(u) x(p + u) with one kernel for all images or one for each."""
    n, c, h, w = x.shape
    radius = kernels.shape[-1] // 2
    groups = kernels.expand(n, -1, -1).repeat_interleave(c, 0)[:, None]
    padded = F.pad(x, (radius,) * 4, mode=border).reshape(1, n * c, h + 2 * radius, w + 2 * radius)
    return F.conv2d(padded, groups, groups=n * c).view(n, c, h, w)


def smoothing_matrix(
    size: int, sigma: float, like: Tensor, *, truncate: float = 4.0, border: str = "nearest"
) -> Float[Tensor, "size size"]:
    """The Gaussian filter along one axis as a matrix, with the border rules of scipy.ndimage."""
    radius = int(truncate * sigma + 0.5)
    steps = torch.arange(-radius, radius + 1, device=like.device)
    weights = torch.exp(-0.5 * (steps.double() / sigma) ** 2) if radius else steps.double() + 1
    source = torch.arange(size, device=like.device)[:, None] + steps
    check_choice(border, "border", BORDERS_OF_SCIPY)
    if border == "nearest":
        source = source.clamp(0, size - 1)
    else:  # "reflect": … b a | a b c | c b …
        source = source.remainder(2 * size)
        source = torch.minimum(source, 2 * size - 1 - source)
    matrix = torch.zeros(size, size, dtype=torch.float64, device=like.device)
    matrix.scatter_add_(1, source, (weights / weights.sum()).expand(size, -1).contiguous())
    return matrix.to(like.dtype)


def zoom_matrix(size: int, factor: float, like: Tensor) -> Float[Tensor, "size size"]:
    """Linear interpolation that magnifies one axis about its center.

    From 32 pixels on in the published steps of whole pixels: the middle ⌈size/z⌉ are stretched to
    round(z·⌈size/z⌉), of which the middle ``size`` are kept. On 32 pixels the rounding is a good
    part of the corruption's strength. Smaller images, on which it would leave nothing of the milder
    severities, are magnified without it.
    """
    place = torch.arange(size, dtype=torch.float64, device=like.device)
    middle = (size - 1) / 2
    source = (middle + (place - middle) / factor).clamp(0, size - 1)
    if size >= 32:
        crop = math.ceil(size / factor)
        wide = round(crop * factor)
        source = (place + (wide - size) // 2) * (crop - 1) / (wide - 1) + (size - crop) // 2
    return (1 - (source[:, None] - place).abs()).clamp(min=0).to(like.dtype)


def defocus_blur(
    x: Images, constants: tuple[float, float], scale: float, generator: Generator
) -> Images:
    """A disk of light, its edge softened by a small Gaussian."""
    moves, weights = _disk(*constants)
    return convolve(x, splat((moves * scale).to(x)[None], weights.to(x)), "reflect")


def _disk(radius: float, edge: float) -> tuple[Float[Tensor, "m 2"], Float[Tensor, " m"]]:
    reach = math.ceil(radius)
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).double()
    rim = 1 if radius <= 8 else 2
    near = torch.arange(-rim, rim + 1, dtype=torch.float64)
    bell = torch.exp(-0.5 * (near / edge) ** 2)
    bell = bell / bell.sum()
    soft = F.conv2d(disk[None, None], bell[:, None] * bell[None, None, None], padding=2 * rim)[0, 0]
    place = torch.arange(len(soft), dtype=torch.float64) - len(soft) // 2
    moves = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).view(-1, 2)
    kept = soft.flatten() > 0
    return moves[kept], soft.flatten()[kept] / soft.sum()


def motion_blur(
    x: Images, constants: tuple[float, float], scale: float, generator: Generator
) -> Images:
    """A half Gaussian along a straight path, at an angle from [−45°, 45°] drawn for each image."""
    angles = (uniform((len(x),), x, generator) * 2 - 1) * (math.pi / 4)
    return along_a_path(x, angles, constants[0], constants[1], scale)


def along_a_path(
    x: Images, angles: Float[Tensor, " n"], radius: float, sigma: float, scale: float
) -> Images:
    """Σ_i exp(−i²/2σ²) x(p + i·s·direction); the border pixel is repeated.

    ``radius`` and ``sigma`` are ImageMagick's, which the published script calls.
    """
    # The path: the radius, or 3σ if that is farther, but at most the 2·radius where ImageMagick
    # ends. Within 0.3 % of its light, and a longer radius still means a longer path.
    length = min(2 * math.ceil(radius), max(math.ceil(radius), math.ceil(3 * sigma)))
    steps = torch.arange(length + 1, dtype=x.dtype, device=x.device)
    weights = torch.softmax(-0.5 * (steps / sigma) ** 2, 0)
    direction = torch.stack([angles.sin(), angles.cos()], -1)
    return convolve(x, splat(steps[:, None] * scale * direction[:, None], weights), "replicate")


def zoom_blur(
    x: Images, constants: tuple[float, float], scale: float, generator: Generator
) -> Images:
    """The mean of the image and its magnifications about the center."""
    factors = np.arange(1, *constants)
    total = x.clone()
    for factor in factors:
        rows = zoom_matrix(x.shape[2], float(factor), x)
        columns = zoom_matrix(x.shape[3], float(factor), x)
        total += rows @ x @ columns.T
    return total / (len(factors) + 1)


def glass_blur(
    x: Images, constants: tuple[float, float, int], scale: float, generator: Generator
) -> Images:
    """Blur, let pixels take the values of near ones, blur: an image through frosted glass.

    The published code means to swap pixels, but its swap of two views copies one over the other;
    the strength of the published images is that of copies, and so it is here. Its moves are drawn
    from {−δ, …, δ−1}. On scaled images a move is a uniform number from [−δs, δs], rounded up or
    down at random so that its mean is kept, and one round stands for all: r independent moves of
    reach δ spread as one of reach δ√r.
    """
    sigma, reach, rounds = constants
    if scale < 1:
        reach, rounds = reach * math.sqrt(rounds), 1
    softened = _gaussian(x, sigma * scale)
    order = _sources(x, reach * scale, rounds, scale < 1, generator)
    moved = softened.flatten(2).gather(2, order[:, None].expand(-1, x.shape[1], -1))
    return _gaussian(moved.view_as(x), sigma * scale)


def gaussian_blur(x: Images, sigma: float, scale: float, generator: Generator) -> Images:
    """The Gaussian filter."""
    return _gaussian(x, sigma * scale)


def _gaussian(x: Images, sigma: float) -> Images:
    return smoothing_matrix(x.shape[2], sigma, x) @ x @ smoothing_matrix(x.shape[3], sigma, x).T


def _sources(
    x: Images, reach: float, rounds: int, between: bool, generator: Generator
) -> Int[Tensor, "n p"]:
    """Where each pixel's new value comes from, after copies in reading order from the last one.

    ``between``: moves that are no whole numbers, rounded at random.
    """
    n, _, h, w = x.shape
    margin = math.ceil(reach)
    order = np.tile(np.arange(h * w)[:, None], (1, n))
    image = np.arange(n)
    for _ in range(rounds):
        moves = uniform((h * w, n, 2), x, generator) * 2 * reach - reach
        if between:
            moves = moves + uniform((h * w, n, 2), x, generator)
        down, right = moves.floor().long().cpu().numpy().transpose(2, 0, 1)
        other = np.arange(h * w)[:, None] + down * w + right
        last, first = (h - 1 - margin, margin) if between else (h - margin, margin + 1)
        side = slice(w - 1 - margin, margin - 1, -1) if between else slice(w - margin, margin, -1)
        for row in range(last, first - 1, -1):
            for here in range(row * w, row * w + w)[side]:
                order[here] = order[other[here], image]
    return torch.from_numpy(order.T.copy()).to(x.device)
