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

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

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
    return _LogPartition.apply(queries, keys, bias, diagonal, max(1, BLOCK // len(keys)))


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, bias: Tensor, diagonal: str, rows: int
    ) -> Tensor:
        out, exponentials, total = [], None, []
        for i in range(0, len(queries), rows):
            scores = _scores(queries[i : i + rows], keys, bias, i if diagonal == "exclude" else -1)
            own = scores.diagonal(i).clone() if diagonal == "subtract" else 0.0
            top = scores.amax(1).clamp_min(torch.finfo(scores.dtype).min)  # finite if all is -inf
            exponentials = scores.sub_(top[:, None]).exp_()
            total.append(exponentials.sum(1))
            out.append(total[-1].log() + top - own)
        kept = [exponentials, total[0]] if len(out) == 1 else []
        ctx.save_for_backward(queries, keys, bias, *kept)
        ctx.diagonal, ctx.rows = diagonal, rows
        return torch.cat(out)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = upstream
        queries, keys, bias, *kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        grad_q = torch.empty_like(queries) if wanted[0] else None
        grad_k = torch.zeros_like(keys) if wanted[1] else None
        grad_b = torch.zeros_like(bias) if wanted[2] else None
        for i in range(0, len(queries), ctx.rows):
            q = queries[i : i + ctx.rows]
            exponentials, total = kept or _again(
                q, keys, bias, i if ctx.diagonal == "exclude" else -1
            )
            share = torch.where(total == 0, 0, g[i : i + ctx.rows] / total)
            if grad_q is not None:
                grad_q[i : i + ctx.rows] = torch.mm(exponentials, keys).mul_(share[:, None])
            if grad_k is not None:
                grad_k += exponentials.T @ (q * share[:, None])
            if grad_b is not None:
                grad_b += exponentials.T @ share
        if ctx.diagonal == "subtract":
            n = len(queries)
            if grad_q is not None:
                grad_q.addcmul_(g[:, None], keys[:n], value=-1)
            if grad_k is not None:
                grad_k[:n] -= g[:, None] * queries
            if grad_b is not None:
                grad_b[:n] -= g
        return grad_q, grad_k, grad_b, None, None


def _scores(q: Tensor, keys: Tensor, bias: Tensor, start: int) -> Tensor:
    """A block of ``q·k + b``; its rows begin at ``start``, and -inf stands on their diagonal."""
    scores = torch.addmm(bias, q, keys.T)
    if start >= 0:
        scores.diagonal(start).fill_(float("-inf"))
    return scores


def _again(q: Tensor, keys: Tensor, bias: Tensor, start: int) -> tuple[Tensor, Tensor]:
    scores = _scores(q, keys, bias, start)
    top = scores.amax(1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    exponentials = scores.sub_(top).exp_()
    return exponentials, exponentials.sum(1)
