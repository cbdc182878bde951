r"""From the kernel matrix K(x, x') to similarities that mean something by themselves.

========================== =========================================================== =======
``K(x, x')``                ``∇f_i(x) · ∇f_j(x')``                                      eq. 3
``K^C(x, x')``              ``K(x, x)^-½ K(x, x') K(x', x')^-½``                        eq. 4
``k^C(x, x')``              ``Tr K^C / r``                                              eq. 5
distance                    ``1 - D / √r``, ``D = ‖K^C - Id‖_F``                         C.3
distance2                   ``1 - D² / 2r = k^C + ½ (1 - ‖K^C‖² / r)``                   C.3
rotation                    ``max_R Tr(K^C R) / r`` over rotations; 2-D: closed form     C.4
subspace                    ``‖K^C‖²_F / r``                                            C.4
========================== =========================================================== =======

The paper divides by d. Where K(x, x) is singular (log-probabilities: always), its inverse root is
taken on its range and r is its rank, the geometric mean of the two samples' ranks; so
``k^C(x, x) = 1`` still holds, and a sample without any gradient is similar to nothing (0, not NaN).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

SUMMARIES = ("trace", "matrix", "distance", "distance2", "rotation", "subspace")


class InverseRoot(NamedTuple):
    """``K^-½`` on the range of K, in float64, and the rank."""

    root: Float[Tensor, "n d d"]
    rank: Int[Tensor, " n"]


def whiten(
    gram: Float[Tensor, "n d d"], *, precision: torch.dtype, deficiency: int = 0
) -> InverseRoot:
    """The inverse square root of every K(x, x), by float64 eigenvalues.

    Eigenvalues below ``d · eps · λ_max`` are rounding: eps of the sums, which have float32 at
    least, or the square of that of gradients of half ``precision``. The ``deficiency`` smallest are
    known to be zero.

    >>> whiten(torch.tensor([[[4.0]], [[0.0]]]), precision=torch.float32).root.flatten().tolist()
    [0.5, 0.0]
    """
    summed = torch.finfo(torch.promote_types(precision, torch.float32)).eps
    eps = max(summed, torch.finfo(precision).eps ** 2)
    s, vectors = inverse_roots(gram.double(), eps, deficiency)
    return InverseRoot((vectors * s[:, None, :]) @ vectors.mT, (s > 0).sum(1))


def inverse_roots(
    gram: Float[Tensor, "n d d"], eps: float, deficiency: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"]]:
    """``λ^-½`` on the range and 0 elsewhere, and the eigenvectors, in ascending order of λ."""
    d = gram.shape[-1]
    values, vectors = torch.linalg.eigh(gram) if d > 1 else (gram[:, 0], torch.ones_like(gram))
    kept = (values > d * eps * values[:, -1:]) & (values > 0)
    kept[:, :deficiency] = False
    return torch.where(kept, values, torch.ones_like(values)).rsqrt() * kept, vectors


def pair_rank(left: Int[Tensor, " n"], right: Int[Tensor, " m"]) -> Float[Tensor, "n m"]:
    """√(r r'), and 1 where either is 0: nothing is divided by zero."""
    return (left[:, None].double() * right[None].double()).sqrt().clamp_min(1.0)


def summarize(
    matrix: Float[Tensor, "n m d d"], summary: str, rank: Float[Tensor, "n m"]
) -> Float[Tensor, "n m"]:
    """One number for each K^C: see the table above.

    >>> quarter_turn = torch.tensor([[[[0.0, -1.0], [1.0, 0.0]]]])
    >>> two = torch.full((1, 1), 2.0)
    >>> [summarize(quarter_turn, name, two).item() for name in ("trace", "rotation")]
    [0.0, 1.0]
    """
    rank = rank.to(matrix.dtype)
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    if summary == "trace":
        return trace / rank
    if summary == "rotation":
        return rotation_match(matrix) / rank
    squared = matrix.square().sum((-2, -1))
    if summary == "subspace":
        return squared / rank
    away = (squared - 2 * trace + rank).clamp_min(0)  # D²; rounding may take it below 0
    empty = squared == 0  # no gradient on one side: similar to nothing
    found = 1 - away / (2 * rank) if summary == "distance2" else 1 - (away / rank).sqrt()
    return torch.where(empty & (away == rank), torch.zeros_like(found), found)


def rotation_match(matrix: Float[Tensor, "n m d d"]) -> Float[Tensor, "n m"]:
    """``max Tr(M R)`` over rotations R: the singular values, the last with the sign of det M.

    For d = 2 this is ``√(‖M‖² + 2 det M)`` (appendix C.4).
    """
    d = matrix.shape[-1]
    if d == 1:
        return matrix[..., 0, 0]
    if d == 2:
        even = matrix[..., 0, 0] + matrix[..., 1, 1]
        odd = matrix[..., 0, 1] - matrix[..., 1, 0]
        return torch.hypot(even, odd)
    values = torch.linalg.svdvals(matrix)
    sign = torch.linalg.det(matrix).sign()
    mirrored = values[..., -1] * torch.where(sign < 0, -1.0, 1.0)
    return values[..., :-1].sum(-1) + mirrored
