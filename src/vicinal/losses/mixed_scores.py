r"""Scores of mixed targets, two columns each: InfoNCE without an ``(n, c)`` target.

For :math:`\alpha_j = (1-\epsilon)(\lambda_j e_{a_j} + (1-\lambda_j) e_{b_j}) + \epsilon\xi`

.. math:: \langle\alpha_j, s_i\rangle = (1-\epsilon)(\lambda_j z_{i a_j} + (1-\lambda_j) z_{i b_j})
          + \epsilon \langle\xi, z_i\rangle - c_j

and the smoothing term is the same for every j: among the batch's own targets it cancels. The scores
are kept transposed, one row per target, so that picking columns of ``z`` copies whole rows.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.neighbors.derivatives import check_pairs, derived, is_derived_again, is_functional
from vicinal.neighbors.mass import log_mass

from .log_partition import BLOCK, exponentials
from .targets import MixedTargets


def in_batch(z: Float[Tensor, "n c"], targets: MixedTargets, eta: Tensor | None) -> Tensor:
    """``log Σ_j exp⟨α_j, s_i⟩ - ⟨α_i, s_i⟩`` over the batch's own targets."""
    return _log_partition(z, targets, eta, subtract=True)


def log_sum(z: Float[Tensor, "n c"], keys: MixedTargets, eta: Tensor | None) -> Tensor:
    """``log Σ_j exp⟨α_j, s_i⟩`` over any mixed targets."""
    return _log_partition(z, keys, eta, subtract=False) + _smoothing(z, keys, eta)


def own(z: Float[Tensor, "n c"], targets: MixedTargets, eta: Tensor | None) -> Tensor:
    """``⟨α_i, s_i⟩``."""
    share, rest = _shares(targets, z.dtype)
    a = z.gather(1, targets.a[:, None])[:, 0]
    b = z.gather(1, targets.b[:, None])[:, 0]
    return share * a + rest * b + _bias(targets, eta, z.dtype) + _smoothing(z, targets, eta)


def class_weights(targets: MixedTargets, zero: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """``Σ_j α_j``."""
    share, rest = _shares(targets, zero.dtype)
    weights = zero.scatter_add(0, targets.a, share).scatter_add(0, targets.b, rest)
    if targets.epsilon == 0:
        return weights
    xi = 1 / len(zero) if targets.noise is None else targets.noise.to(zero)
    return weights + targets.epsilon * len(targets) * xi


def _shares(targets: MixedTargets, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    lam = targets.lam.to(dtype)
    return (1 - targets.epsilon) * lam, (1 - targets.epsilon) * (1 - lam)


def _bias(targets: MixedTargets, eta: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The noise's part of the two classes, ``-Σ α log η`` with 0 log 0 = 0."""
    share, rest = _shares(targets, dtype)
    if eta is None:
        return torch.zeros_like(share)
    log_eta = torch.where(eta > 0, eta, 1).log()
    return -(share * log_eta[targets.a] + rest * log_eta[targets.b])


def _smoothing(z: Tensor, targets: MixedTargets, eta: Tensor | None) -> Tensor:
    """``ε ⟨ξ, s_i⟩``: the part of a score that no target of the set changes."""
    if targets.epsilon == 0:
        return z.new_zeros(())
    s = z if eta is None else z - eta.log()
    # The mean as a product: a sum of scores near the end of their range would overflow.
    xi = s.new_full((s.shape[1],), 1 / s.shape[1]) if targets.noise is None else targets.noise
    return targets.epsilon * torch.mv(s, xi.to(s))


def _log_partition(
    z: Tensor, targets: MixedTargets, eta: Tensor | None, *, subtract: bool
) -> Float[Tensor, " n"]:
    share, rest = _shares(targets, z.dtype)
    bias = _bias(targets, eta, z.dtype)
    if is_functional():
        return _plain(z, targets.a, targets.b, share, rest, bias, subtract)
    rows = max(1, BLOCK // len(targets))
    return _MixedLogPartition.apply(z, targets.a, targets.b, share, rest, bias, subtract, rows)


class _MixedLogPartition(torch.autograd.Function):
    """As in :mod:`.log_partition`: keep exponentials and row sums, or compute them again."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        a: Tensor,
        b: Tensor,
        share: Tensor,
        rest: Tensor,
        bias: Tensor,
        subtract: bool,
        rows: int,
    ) -> Tensor:
        out: list[Tensor] = []
        kept: list[Tensor] = []
        for i in range(0, len(z), rows):
            scores = _scores(z[i : i + rows], a, b, share, rest, bias)
            own = scores.diagonal(-i).clone() if subtract else 0.0
            *kept, top = exponentials(scores, 0)
            out.append(kept[1].log() + top - own)
        ctx.save_for_backward(z, a, b, share, rest, bias, *(kept if len(out) == 1 else []))
        ctx.subtract, ctx.rows = subtract, rows
        return torch.cat(out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = upstream
        z, a, b, share, rest, bias, *kept = ctx.saved_tensors
        if is_derived_again(g):
            keys = a, b, share, rest, bias, ctx.subtract
            return *derived(lambda z: _plain(z, *keys), [z], [g]), *[None] * 7
        grad = torch.empty_like(z)
        for i in range(0, len(z), ctx.rows):
            part = z[i : i + ctx.rows]
            weights, total = kept or exponentials(_scores(part, a, b, share, rest, bias), 0)[:2]
            columns = weights.new_zeros(z.shape[1], weights.shape[1])
            columns.index_add_(0, a, weights * share[:, None])
            columns.index_add_(0, b, weights * rest[:, None])
            grad[i : i + ctx.rows] = columns.mul_(g[i : i + ctx.rows] / total).T
        if ctx.subtract:
            grad.scatter_add_(1, a[:, None], -(g * share)[:, None])
            grad.scatter_add_(1, b[:, None], -(g * rest)[:, None])
        return grad, None, None, None, None, None, None, None


def _plain(
    z: Tensor, a: Tensor, b: Tensor, share: Tensor, rest: Tensor, bias: Tensor, subtract: bool
) -> Float[Tensor, " n"]:
    """The same by ordinary operations, all scores at once: to be differentiated again."""
    check_pairs(len(z), len(a))
    scores = z.index_select(1, a) * share + z.index_select(1, b) * rest + bias
    return log_mass(scores) - (scores.diagonal() if subtract else 0.0)


def _scores(
    z: Tensor, a: Tensor, b: Tensor, share: Tensor, rest: Tensor, bias: Tensor
) -> Float[Tensor, "m n"]:
    """One row per target: ``share·z[:, a] + rest·z[:, b] + bias``."""
    columns = z.T.contiguous()
    scores = columns.index_select(0, a).mul_(share[:, None])
    scores.addcmul_(columns.index_select(0, b), rest[:, None])
    return scores.add_(bias[:, None])
