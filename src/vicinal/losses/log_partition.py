r"""Row-wise log-sum-exp of a matrix product: the core of InfoNCE, supervised contrastive and
N-pairs.

.. math:: \ell_i = \log \sum_j e^{q_i \cdot k_j + b_j}

Autograd would keep several copies of the ``(n, m)`` scores. The gradient needs only their
exponentials
:math:`E` and row sums :math:`Z`, since scaling rows commutes with the product:

.. math:: \nabla_{q_i} = \tfrac{g_i}{Z_i} (E K)_i, \quad
          \nabla_K = E^\top (\tfrac{g}{Z} \odot Q), \quad \nabla_b = E^\top \tfrac{g}{Z}

so the forward writes one buffer in place and the backward is two products. Above ``BLOCK`` entries
the rows go in blocks and the exponentials are computed again in the backward: memory stays
``O(BLOCK)`` whatever n and m are.

Mixed targets, :math:`(1-\epsilon)(\lambda_j e_{a_j} + (1-\lambda_j) e_{b_j}) + \epsilon\xi`, need
two columns of the scores each, and no ``(n, c)`` target:

.. math:: \langle\alpha_j, s_i\rangle = (1-\epsilon)(\lambda_j z_{i a_j} + (1-\lambda_j) z_{i b_j})
          + \epsilon \langle\xi, z_i\rangle - c_j

The smoothing term is the same for every j: among the batch's own targets it cancels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vicinal.neighbors.derivatives import check_pairs, derived, is_derived_again, is_functional
from vicinal.neighbors.mass import log_mass

from .targets import MixedTargets

BLOCK = 1 << 22  # entries of one block of scores: 16 MB in float32


def log_partition(
    queries: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    bias: Float[Tensor, " m"] | None = None,
    *,
    diagonal: str = "keep",
) -> Float[Tensor, " n"]:
    """``log Σ_j exp(q_i·k_j + b_j)`` for each row; ``-inf`` where there is nothing to sum.

    ``diagonal="exclude"`` leaves out j = i; ``"subtract"`` returns the sum less the own score
    ``q_i·k_i + b_i``, the loss of an anchor whose target is its own key.

    >>> q, k = torch.zeros(2, 3), torch.ones(5, 3)
    >>> log_partition(q, k).exp()
    tensor([5., 5.])
    """
    bias = keys.new_zeros(len(keys)) if bias is None else bias
    if is_functional():
        return _plain(queries, keys, bias, diagonal)
    return _LogPartition.apply(queries, keys, bias, diagonal, max(1, BLOCK // len(keys)))


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, bias: Tensor, diagonal: str, rows: int
    ) -> Tensor:
        out, weights, total = [], queries, queries
        for i in range(0, len(queries), rows):
            scores = _scores(queries[i : i + rows], keys, bias, i if diagonal == "exclude" else -1)
            own = scores.diagonal(i).clone() if diagonal == "subtract" else 0.0
            weights, total, top = exponentials(scores, 1)
            out.append(total.log() + top - own)
        kept = [weights, total] if len(out) == 1 else []
        ctx.save_for_backward(queries, keys, bias, *kept)
        ctx.diagonal, ctx.rows = diagonal, rows
        return torch.cat(out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = upstream
        queries, keys, bias, *kept = ctx.saved_tensors
        if is_derived_again(g):
            formula = functools.partial(_plain, diagonal=ctx.diagonal)
            return *derived(formula, [queries, keys, bias], [g]), None, None
        wanted = ctx.needs_input_grad
        grad_q = torch.empty_like(queries) if wanted[0] else None
        grad_k = torch.zeros_like(keys) if wanted[1] else None
        grad_b = torch.zeros_like(bias) if wanted[2] else None
        for i in range(0, len(queries), ctx.rows):
            q = queries[i : i + ctx.rows]
            first = i if ctx.diagonal == "exclude" else -1
            weights, total = kept or exponentials(_scores(q, keys, bias, first), 1)[:2]
            share = torch.where(total == 0, 0, g[i : i + ctx.rows] / total)
            if grad_q is not None:
                grad_q[i : i + ctx.rows] = torch.mm(weights, keys).mul_(share[:, None])
            if grad_k is not None:
                grad_k += weights.T @ (q * share[:, None])
            if grad_b is not None:
                grad_b += weights.T @ share
        if ctx.diagonal == "subtract":
            n = len(queries)
            if grad_q is not None:
                grad_q.addcmul_(g[:, None], keys[:n], value=-1)
            if grad_k is not None:
                grad_k[:n] -= g[:, None] * queries
            if grad_b is not None:
                grad_b[:n] -= g
        return grad_q, grad_k, grad_b, None, None


def _plain(queries: Tensor, keys: Tensor, bias: Tensor, diagonal: str) -> Tensor:
    """The same by ordinary operations, all scores at once: to be differentiated again."""
    check_pairs(len(queries), len(keys))
    scores = torch.addmm(bias, queries, keys.T)
    if diagonal == "subtract":
        return log_mass(scores) - scores.diagonal()
    if diagonal == "exclude":
        oneself = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(oneself, float("-inf"))
    return log_mass(scores)


def _scores(q: Tensor, keys: Tensor, bias: Tensor, start: int) -> Tensor:
    """A block of ``q·k + b``; its rows begin at ``start``, and -inf stands on their diagonal."""
    scores = torch.addmm(bias, q, keys.T)
    if start >= 0:
        scores.diagonal(start).fill_(float("-inf"))
    return scores


def exponentials(scores: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """e^(s - top), written over the scores; their sums along ``dim``, 0 for a sum of nothing; tops.

    In place, where ``log_mass`` keeps copies for autograd: here the gradient is written out.
    """
    top = scores.amax(dim, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    return weights, weights.sum(dim), top.squeeze(dim)


def in_blocks(losses: Callable[[int, int], Tensor], anchors: int, width: int) -> Tensor:
    """``losses(start, stop)`` of consecutive anchors, concatenated along the last axis.

    For losses that need a row of ``width`` pairs for each anchor: a block's pairs are computed
    again in the backward instead of being kept.

    >>> in_blocks(lambda start, stop: torch.arange(start, stop), 3, 10)
    tensor([0, 1, 2])
    """
    rows = max(1, BLOCK // width)
    if anchors <= rows or is_functional():  # which allows no checkpoints
        return losses(0, anchors)
    parts = [
        checkpoint(losses, i, min(i + rows, anchors), use_reentrant=False)
        for i in range(0, anchors, rows)
    ]
    return torch.cat(parts, -1)


# ------------------------------------------------------------------ mixed targets
# Their scores are kept transposed, one row per target: picking columns of ``z`` copies whole rows.


def mixed_log_sum(
    z: Float[Tensor, "n c"], targets: MixedTargets, eta: Tensor | None, *, subtract: bool = False
) -> Float[Tensor, " n"]:
    """``log Σ_j exp⟨α_j, s_i⟩`` over the targets; less the own score if they are the batch's."""
    share, rest = _shares(targets, z.dtype)
    keys = targets.a, targets.b, share, rest, _bias(targets, eta, z.dtype), subtract
    if is_functional():
        found = _plain_mixed(z, *keys)
    else:
        found = _MixedLogPartition.apply(z, *keys, max(1, BLOCK // len(targets)))
    return found if subtract else found + _smoothing(z, targets, eta)


def mixed_own(z: Float[Tensor, "n c"], targets: MixedTargets, eta: Tensor | None) -> Tensor:
    """``⟨α_i, s_i⟩``."""
    share, rest = _shares(targets, z.dtype)
    a = z.gather(1, targets.a[:, None])[:, 0]
    b = z.gather(1, targets.b[:, None])[:, 0]
    return share * a + rest * b + _bias(targets, eta, z.dtype) + _smoothing(z, targets, eta)


def mixed_weights(targets: MixedTargets, zero: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
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


class _MixedLogPartition(torch.autograd.Function):
    """As above: keep exponentials and row sums, or compute them again."""

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
            scores = _mixed_scores(z[i : i + rows], a, b, share, rest, bias)
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
        keys = a, b, share, rest, bias
        if is_derived_again(g):
            return *derived(lambda z: _plain_mixed(z, *keys, ctx.subtract), [z], [g]), *[None] * 7
        grad = torch.empty_like(z)
        for i in range(0, len(z), ctx.rows):
            weights, total = kept or exponentials(_mixed_scores(z[i : i + ctx.rows], *keys), 0)[:2]
            columns = weights.new_zeros(z.shape[1], weights.shape[1])
            columns.index_add_(0, a, weights * share[:, None])
            columns.index_add_(0, b, weights * rest[:, None])
            grad[i : i + ctx.rows] = columns.mul_(g[i : i + ctx.rows] / total).T
        if ctx.subtract:
            grad.scatter_add_(1, a[:, None], -(g * share)[:, None])
            grad.scatter_add_(1, b[:, None], -(g * rest)[:, None])
        return grad, None, None, None, None, None, None, None


def _plain_mixed(
    z: Tensor, a: Tensor, b: Tensor, share: Tensor, rest: Tensor, bias: Tensor, subtract: bool
) -> Float[Tensor, " n"]:
    """The same by ordinary operations, all scores at once: to be differentiated again."""
    check_pairs(len(z), len(a))
    scores = z.index_select(1, a) * share + z.index_select(1, b) * rest + bias
    return log_mass(scores) - (scores.diagonal() if subtract else 0.0)


def _mixed_scores(
    z: Tensor, a: Tensor, b: Tensor, share: Tensor, rest: Tensor, bias: Tensor
) -> Float[Tensor, "m n"]:
    """One row per target: ``share·z[:, a] + rest·z[:, b] + bias``."""
    columns = z.T.contiguous()
    scores = columns.index_select(0, a).mul_(share[:, None])
    scores.addcmul_(columns.index_select(0, b), rest[:, None])
    return scores.add_(bias[:, None])
