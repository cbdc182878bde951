r"""A map that keeps neighbors: t-SNE of a neighbor graph in two dimensions, linear in its rows.

With y_i the place of row i on the map, and each of its k nearest rows wanted equally,

    p_ij = (1/2n) ([j ∈ kNN(i)] + [i ∈ kNN(j)]) / k
    q_ij = w_ij / Z,   w_ij = 1 / (1 + |y_i - y_j|²),   Z = Σ_{i≠j} w_ij
    KL(p‖q) has the gradient   4 Σ_j (p_ij - q_ij) w_ij (y_i - y_j)

(van der Maaten & Hinton 2008). The even p of the graph, instead of a Gaussian of some perplexity,
is what the map is then measured by: it keeps more of the k. The first part of the gradient
is a sum over edges. The second, over all pairs, is a convolution with w², done on a grid by FFT
(Linderman et al. 2019): mass is spread to 4 × 4 grid points by cubic interpolation and read there;
few rows are cheaper pair by pair.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import pad

PAIRWISE = 500  # rows up to which all pairs cost less than the grid
GRID = 0.5  # distance of grid points; the kernel w has width 1
FEWEST = 32  # grid points along a side
STRETCH = 1.02  # the grid's gap is a power of it: a map that hardly grows keeps its grid
EXAGGERATED = 0.25  # of the steps attract this much more, to sort out who is near whom at all
EXAGGERATION = 12.0
LONGEST = 5.0  # step of one row
SIZES = sorted(2**a * 3**b * 5**c for a in range(3, 13) for b in (0, 1, 2) for c in (0, 1))


def neighbor_map(
    neighbors: Int[Tensor, "n k"], start: Float[Tensor, "n 2"], *, steps: int = 300
) -> Float[Tensor, "n 2"]:
    """Places of n rows in the plane, near their ``neighbors`` and far from other rows.

    Parameters
    ----------
    neighbors : the k nearest other rows of each row.
    start : a rough layout that tells where large groups go: two linear directions, say.
    steps : of gradient descent with momentum.

    Example:
        >>> z = torch.cat([torch.randn(40, 5), torch.randn(40, 5) + 9])
        >>> near = torch.cdist(z, z).topk(6, largest=False).indices[:, 1:]
        >>> places = neighbor_map(near, z[:, :2])
        >>> bool((torch.cdist(places, places)[:40, :40].max() < 100))
        True
    """
    n, strength, neighbors = len(neighbors), 1 / (2 * neighbors.numel()), neighbors.int()
    places = start.float() - start.float().mean(0)
    places = places / places.std(0).max().clamp_min(1e-30) * 1e-4
    speed, gain, rate = torch.zeros_like(places), torch.ones_like(places), 4 * n / EXAGGERATION
    for step in range(steps):
        early = step < EXAGGERATED * steps
        pull = strength * (EXAGGERATION if early else 1.0)
        slope = 4 * (pull * attraction(places, neighbors) - repulsion(places))
        gain = torch.where(slope * speed < 0, gain + 0.2, gain * 0.8).clamp_min(0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gain * slope
        # A few rows may be flung so far apart that no grid holds them: no step is longer than this.
        speed = speed * (LONGEST / speed.norm(dim=1, keepdim=True)).clamp_max(1.0)
        places = places + speed
        places = places - places.mean(0)
    return places


def attraction(places: Float[Tensor, "n 2"], neighbors: Int[Tensor, "n k"]) -> Float[Tensor, "n 2"]:
    """Σ_j w_ij (y_i - y_j) over the edges of i, those to its neighbors and those from others."""
    to = neighbors.reshape(-1)
    across, up = (
        (x.index_select(0, to).view_as(neighbors) - x[:, None]).square_() for x in places.T.clone()
    )
    w = across.add_(up).add_(1).reciprocal_()
    edges, ends = sparse_rows(neighbors, w, len(places)), pad(places, (1, 0), value=1.0).numpy()
    near, *pulls = (edges @ ends + edges.T @ ends).T
    return places * torch.from_numpy(near)[:, None] - torch.from_numpy(np.stack(pulls, 1))


def repulsion(places: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """Σ_j w_ij² (y_i - y_j) / Z over all other rows."""
    return (pairwise if len(places) <= PAIRWISE else by_grid)(places)


def pairwise(places: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """:func:`repulsion`, pair by pair."""
    across, up = (axis[:, None] - axis for axis in places.T)
    w = across.square_().add_(up.square_()).add_(1).reciprocal_().fill_diagonal_(0)
    z = w.sum().clamp_min(1e-30)
    w.square_()
    return (places * w.sum(1, keepdim=True) - w @ places) / z


def by_grid(places: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """:func:`repulsion`, by convolution on a grid."""
    index, share, side, gap = on_grid(places)
    n, spread = len(places), sparse_rows(index, share, side**2)
    weight, push = transforms(side, gap)
    charges = torch.from_numpy(spread.T @ pad(places, (1, 0), value=1.0).numpy()).T
    mass = torch.fft.rfft(charges.reshape(3, side, side), 2 * side)
    mass = torch.fft.fft(mass, 2 * side, dim=1)
    # Σ_ij w_ij needs no way back (Parseval); all but the outer columns stand for two.
    power = (mass[0].real.square() + mass[0].imag.square()) * weight
    total = (2 * power.sum() - power[:, 0].sum() - power[:, -1].sum()) / (4 * side**2)
    field = torch.fft.irfft(torch.fft.ifft(mass * push, dim=1)[:, :side], 2 * side)[:, :, :side]
    near, *pulls = torch.from_numpy(spread @ field.reshape(3, -1).T.contiguous().numpy()).T
    z = (total - n).clamp_min(1e-30)  # w_ii = 1 is no pair
    return (places * near[:, None] - torch.stack(pulls, 1)) / z


@lru_cache(maxsize=1)
def transforms(side: int, gap: float) -> tuple[Float[Tensor, "h w"], Complex[Tensor, "h w"]]:
    """Of w and w² on a grid twice as wide; they are even, so their transforms are real."""
    apart = torch.cat([torch.arange(side), torch.arange(-side, 0)]) * gap
    w = (1 + apart[:, None].square() + apart.square()).reciprocal()
    weight, push = torch.fft.rfft2(torch.stack([w, w.square()])).real
    return weight.contiguous(), push.to(torch.complex64)  # real times complex would convert it


def sparse_rows(columns: Int[Tensor, "n e"], values: Float[Tensor, "n e"], width: int) -> csr_array:
    """A matrix of n rows with e entries each."""
    n, e = values.shape
    starts = np.arange(0, n * e + 1, e, dtype=np.int32)
    return csr_array((values.numpy().ravel(), columns.numpy().ravel(), starts), shape=(n, width))


def on_grid(
    places: Float[Tensor, "n 2"],
) -> tuple[Int[Tensor, "n 16"], Float[Tensor, "n 16"], int, float]:
    """The 16 grid points around each place, its share at each, points along a side, their gap."""
    above = places.T.contiguous()  # axis by axis, and rows last: so sums and products are quick
    above = above - above.amin(1, keepdim=True)
    span = float(above.max())
    wanted = 2 * max(FEWEST, math.ceil(STRETCH * span / GRID) + 4)
    side = next((size for size in SIZES if size >= wanted), SIZES[-1]) // 2
    gap = STRETCH ** math.ceil(math.log(span / (side - 4), STRETCH)) if span > 0 else 1.0
    at = above / gap + 1
    corner = at.floor().clamp_max_(side - 3)
    t = at - corner
    before, after, last = t + 1, t - 1, t - 2
    both, left, right = t * after, before * after, before * t
    shares = (both * last / -6, left * last / 2, right * last / -2, right * after / 6)
    x, y = torch.stack(shares, 1)  # Lagrange's cubics through the points at -1, 0, 1 and 2
    steps = torch.arange(4, dtype=torch.int32)
    first = ((corner[0] - 1) * side + (corner[1] - 1)).int()
    index = first[:, None] + (steps[:, None] * side + steps).reshape(-1)
    return index, (x[:, None] * y).view(16, -1).T.contiguous(), side, gap
