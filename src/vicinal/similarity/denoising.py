r"""Self-denoising: how much a network averages away the noise of its labels (section 6.3).

At a minimum of the squared loss, ``Σ_j (ŷ_j - ỹ_j) k^I(x_j, x_i) = 0``: around each input the
predictions average to what the noisy labels average to, with weights
``k^IN_ij = k^I_ij / Σ_j k^I_ij``. So for label noise of deviation σ the noise left at i is
``σ ‖k^IN_i‖₂``:

* factor ``‖k^IN_i‖₂``: 1/√N if all N inputs are alike, 1 if each stands alone;
* shift ``ŷ_i - E_k[ŷ]``: how far the prediction is from its neighborhood's average;
* bound ``√2 C E_k √(1 - k^C)``: what the shift may be at most, if f is C-Lipschitz in the
  normalized gradient.

For d outputs ``k^I = Tr K / d``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vicinal.checks import InputError, as_tensor
from vicinal.similarity.block import Block
from vicinal.similarity.blocks import Blocks, pairs
from vicinal.similarity.kernel import GradientKernel, settled


@dataclass(frozen=True)
class Denoising:
    """One row per sample. Rows whose weights do not sum to something positive are no averages.

    Those rows are marked False in ``averaged`` and carry what a sample by itself would: factor 1,
    no shift, no bound.
    """

    factor: Float[Tensor, " n"]
    shift: Float[Tensor, "n d"]
    bound: Float[Tensor, " n"]
    averaged: Bool[Tensor, " n"]
    mass: Float[Tensor, " n"]
    lipschitz: float


@settled
def denoising(
    kernel: GradientKernel,
    data: Any,
    predictions: Any = None,
    *,
    lipschitz: float | None = None,
    positive_part: bool = False,
) -> Denoising:
    """Denoising factor, shift and bound of every sample of ``data``, in tiles.

    Parameters
    ----------
    kernel
        The similarities of a model.
    data
        Inputs, alone or with targets, or a data set.
    predictions
        ŷ, ``(n, d)``; None: f itself.
    lipschitz
        The constant C; None: the largest ``‖ŷ_i - ŷ_j‖ / √(2 - 2 k^C)`` seen, the smallest C these
        data allow.
    positive_part
        Weights max(k^I, 0), for kernels with many negative values (contrasts across classes).

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> same = torch.ones(4, 2)
    >>> denoising(GradientKernel(model), same).factor
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    blocks = kernel.blocks(data, "raw", share=0.8)
    sums = _Sums(_predictions(blocks, predictions))
    for one, other in pairs(blocks, blocks):
        inner, cosine = _kernels(kernel, one, other)
        inner = inner.clamp_min(0) if positive_part else inner
        sums.add(one, other, inner, cosine)
        if other.start > one.start:
            sums.add(other, one, inner.T, cosine.T)
    return sums.record(lipschitz)


class _Sums:
    """Σ_j of what the three quantities need, row by row, in float64."""

    def __init__(self, y: Float[Tensor, "n d"]) -> None:
        self.y, self.kind = y.double(), y.dtype
        self.mass, self.squares, self.spread = self.y.new_zeros(3, len(y))
        self.average = torch.zeros_like(self.y)
        self.steepest = 0.0

    def add(self, one: Block, other: Block, inner: Tensor, cosine: Tensor) -> None:
        rows, columns = slice(one.start, one.stop), slice(other.start, other.stop)
        inner = inner.double()
        away = (1 - cosine.double()).clamp_min(0).sqrt()
        self.mass[rows] += inner.sum(1)
        self.squares[rows] += inner.square().sum(1)
        self.average[rows] += inner @ self.y[columns]
        self.spread[rows] += (inner.abs() * away).sum(1)
        far = away > 1e-3  # nearer pairs say nothing about C but rounding
        if bool(far.any()):
            steepness = torch.cdist(self.y[rows], self.y[columns])[far] / (sqrt(2) * away[far])
            self.steepest = max(self.steepest, float(steepness.max()))

    def record(self, lipschitz: float | None) -> Denoising:
        averaged = self.mass > 0
        mass = torch.where(averaged, self.mass, torch.ones_like(self.mass))
        constant = self.steepest if lipschitz is None else float(lipschitz)
        factor = torch.where(averaged, self.squares.sqrt() / mass, torch.ones_like(mass))
        shift = (self.y - self.average / mass[:, None]) * averaged[:, None]
        bound = sqrt(2) * constant * self.spread / mass * averaged
        kind = self.kind
        return Denoising(
            factor.to(kind), shift.to(kind), bound.to(kind), averaged, self.mass.to(kind), constant
        )


def _kernels(kernel: GradientKernel, one: Block, other: Block) -> tuple[Tensor, Tensor]:
    """k^I and k^C of two raw blocks."""
    inner = kernel.tile(one, other)
    left, right = one.formed("unit"), other.formed("unit")
    unscaled = one.scale is None and other.scale is None
    if unscaled and left.scale is not None and right.scale is not None:
        return inner, inner * left.scale[:, None] * right.scale[None]
    return inner / one.gram.shape[-1], kernel.tile(left, right)


def _predictions(blocks: Blocks, predictions: Any) -> Float[Tensor, "n d"]:
    if predictions is None:
        return torch.cat([block.outputs for block in blocks])
    y = as_tensor(predictions, "predictions")
    if len(y) != blocks.count:
        raise InputError(
            f"`predictions` must hold one row for each of the {blocks.count} samples of `data`, "
            f"got shape {tuple(y.shape)}."
        )
    return (y if y.is_floating_point() else y.float()).reshape(len(y), -1)
