"""The pairs of one block whole: from log-weights to masses, and from masses back to gradients.

A small batch is one block, kept for the backward pass: below a few hundred rows the time goes into
calls, not into arithmetic. Larger sets come block by block (:mod:`vicinal.neighbors.tiles.stream`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.neighbors.distances import near_gradient
from vicinal.neighbors.tiles.pairs import Kernel, Own, Side, Tile, agreement, new_buffers, tile


class Pull(NamedTuple):
    """What reaches the log-masses (own, other) from above, and the log-masses themselves."""

    grads: Tensor  # (2, n)
    logs: Tensor  # (2, n) float64, -inf where empty; the gradient is 0 there

    def part(self, index: Tensor) -> Pull:
        return Pull(self.grads[:, index], self.logs[:, index])


class Sums(NamedTuple):
    """Σ_j M_ij b_j and Σ_j M_ij for each row: all that the gradient of a row needs."""

    products: Tensor  # (n, d)
    weights: Tensor  # (n,)

    @staticmethod
    def zeros(side: Side) -> Sums:
        return Sums(torch.zeros_like(side.rows), torch.zeros_like(side.squares))


def whole_tile(left: Side, right: Side, kernel: Kernel) -> Tile:
    """All pairs of a small batch at once."""
    own_column: Own = "diagonal" if right is left else None
    return tile(
        left, right, kernel, new_buffers(len(left.rows), len(right.rows), left.rows), own_column
    )


def block_masses(pairs: Tile, left: Side, right: Side) -> Tensor:
    """Log-masses (3, n), all, own and other, exact whatever the scale; -inf if empty.

    They are float64: where a log-mass is large, float32 would round away what the masses differ by.
    """
    s = pairs.log_weights
    top = s.amax(1, keepdim=True)
    top.masked_fill_(top == -torch.inf, 0)
    e = torch.sub(s, top, out=pairs.scratch).exp_()
    same = agreement(left, right)
    own = (e * same).sum(1)
    other = e.mul_(same.neg_().add_(1)).sum(1)
    sums = torch.stack([own + other, own, other])
    logs = sums.log().double().add_(top[:, 0])
    # Masses far below the row's top lose digits, or all: those rows take the top of each kind.
    info = torch.finfo(s.dtype)
    smallest = info.tiny / info.eps * s.shape[1]
    if float(sums.amin()) < smallest:
        weak = (sums < smallest).any(0)
        same = agreement(left.part(weak), right)
        shares = torch.stack([same, 1 - same]).log_().add_(s[weak])
        exact = shares.double().logsumexp(2)
        logs[1:, weak] = torch.where(sums[1:, weak] < smallest, exact, logs[1:, weak])
    return logs


def pulled_weights(s: Tensor, left: Side, right: Side, pull: Pull) -> Tensor:
    """∂/∂s_ij of what is pulled: softmax weights within the own class and within the others."""
    logs = pull.logs.masked_fill(pull.logs == -torch.inf, 0).to(s.dtype)
    (own, other), (own_grad, other_grad) = logs[:, :, None], pull.grads[:, :, None]
    if left.soft:
        same = agreement(left, right)
        m = (s - own).add_(same.log()).exp_()
        rest = (s - other).add_((1 - same).log_()).exp_()
        if _rounded(logs):
            m, rest = m / _total(m), rest / _total(rest)
        return m.mul_(own_grad).add_(rest.mul_(other_grad))
    # Each pair is of one kind: one exponential serves both masses.
    same = agreement(left, right)
    apart = 1 - same
    m = (same * own).addcmul_(apart, other)
    m = torch.sub(s, m, out=m).exp_()
    if _rounded(logs):
        own_grad = own_grad / _total(m * same)
        other_grad = other_grad / _total(m * apart)
    return m.mul_(same.mul_(own_grad).addcmul_(apart, other_grad))


def _rounded(logs: Tensor) -> bool:
    """Are the log-masses so large that e^(s - log mass) no longer adds up to one?"""
    return float(logs.abs().amax()) * torch.finfo(logs.dtype).eps > 2e-6


def _total(weights: Tensor) -> Tensor:
    total = weights.sum(1, keepdim=True)
    return total.masked_fill_(total == 0, 1)


def block_gradient(pairs: Tile, left: Side, right: Side, pull: Pull) -> tuple[Sums, Sums]:
    """Gradient sums of the rows and of the columns."""
    m, steps = _block_weights(pairs, left, right, pull)
    rows, columns = Sums(m @ right.rows, m.sum(1)), Sums(m.T @ left.rows, m.sum(0))
    if steps is not None:
        rows.products.sub_(steps[0])
        columns.products.sub_(steps[1])
    return rows, columns


def whole_gradient(pairs: Tile, side: Side, pull: Pull) -> Sums:
    """Gradient sums of rows that are columns as well."""
    m, steps = _block_weights(pairs, side, side, pull)
    m = m + m.T
    sums = Sums(m @ side.rows, m.sum(1))
    if steps is not None:
        sums.products.sub_(steps[0]).sub_(steps[1])
    return sums


def _block_weights(
    pairs: Tile, left: Side, right: Side, pull: Pull
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    m = pulled_weights(pairs.log_weights, left, right, pull)
    if pairs.distances is not None:
        m.div_(pairs.distances).masked_fill_(pairs.distances == 0, 0)
    return m, near_gradient(m, pairs.near, left.raw, right.raw) if len(pairs.near) else None
