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
