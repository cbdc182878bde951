"""One tile of pairs: log-weights of rows against columns, their masses, and gradients back.

All metrics share the product 2 a·b - ‖a‖² - ‖b‖² of centered rows; the cosine is half of it, of
unit rows. A small batch is one tile (:mod:`~vicinal.neighbors.tiles.dense`), larger ones are walked
over (:mod:`~vicinal.neighbors.tiles.walk`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.neighbors.distances import (
    NEAR,
    center,
    near_gradient,
    repair_near,
    squared_lengths,
    zero_rows,
)
from vicinal.neighbors.product import product

Index = slice | Tensor


class Side(NamedTuple):
    """Rows of one side of the pairs: as they came, centered, their squared lengths, labels."""

    raw: Tensor  # (n, d)
    rows: Tensor  # (n, d) centered
    squares: Tensor  # (n,) ‖row‖², plus 1 for a zero row under the cosine
    labels: Tensor  # (n,) integers or (n, c) soft
    longest: float  # an upper bound of the squares, of the whole side

    @classmethod
    def of(cls, raw: Tensor, rows: Tensor, labels: Tensor, metric: str) -> Side:
        squares = squared_lengths(rows, raw, metric)
        return cls(raw, rows, squares, labels, float(squares.max()))

    def part(self, index: Index) -> Side:
        raw, rows, squares, labels = (field[index] for field in self[:4])
        return Side(raw, rows, squares, labels, self.longest)

    @property
    def soft(self) -> bool:
        return self.labels.ndim == 2


class Kernel(NamedTuple):
    """exp(-d/T - shift), with d² = ‖a - b‖² the only thing a product can give."""

    metric: str
    temperature: float
    shift: float = 0.0

    @property
    def root(self) -> bool:
        return self.metric == "euclidean"

    @property
    def scale(self) -> float:
        """-log w = scale · d², but for the euclidean distance, where it is scale · d."""
        return (0.5 if self.metric == "cosine" else 1.0) / self.temperature


class Given(NamedTuple):
    """Rows as they are compared (unit ones for the cosine) and what they are compared by."""

    x: Tensor
    y: Tensor | None  # the reference; None: the rows meet one another
    x_labels: Tensor
    y_labels: Tensor | None
    t: Tensor
    metric: str
    selfless: bool  # row i of what is met is row i itself: nobody meets himself


class Pairing(NamedTuple):
    """Who meets whom: both sides, the one side twice where there is no reference; the kernel."""

    left: Side
    right: Side
    kernel: Kernel
    selfless: bool

    @classmethod
    def of(cls, given: Given) -> Pairing:
        """Both sides centered together."""
        x, y, x_labels, y_labels, t, metric, selfless = given
        a, b = center(x, y)
        left = right = Side.of(x, a, x_labels, metric)
        if y is not None and y_labels is not None:
            right = Side.of(y, b, y_labels, metric)
        return cls(left, right, Kernel(metric, float(t)), selfless)


# ------------------------------------------------------------------ log-weights


class Tile(NamedTuple):
    """Log-weights minus the shift; the euclidean metric's distances; the near pairs (p, 2)."""

    log_weights: Tensor
    distances: Tensor | None
    near: Tensor


def tile(left: Side, right: Side, kernel: Kernel, own_column: Tensor | None) -> Tile:
    """Log-weights of the pairs ``left`` × ``right``.

    ``own_column`` tells the column at which each row meets itself; that pair weighs nothing.
    """
    k = kernel.scale
    if kernel.root:
        d = product(left.rows * -2, right.rows, right.squares)
        d.add_(left.squares[:, None]).clamp_min_(0)
        if own_column is not None:
            d.scatter_(1, own_column[:, None], torch.inf)
        near = repair_near(d, left.raw, right.raw, left.squares, right.squares)
        d.sqrt_()
        return Tile((d * -k).sub_(kernel.shift), d, near)
    # s = 2k a·b - k‖b‖² - (k‖a‖² + shift)
    s = product(left.rows * (2 * k), right.rows, right.squares * -k)
    s.sub_((left.squares * k).add_(kernel.shift)[:, None])
    if own_column is not None:
        s.scatter_(1, own_column[:, None], -torch.inf)
    return Tile(s, None, _repair(s, left, right, kernel))


def _repair(s: Tensor, left: Side, right: Side, kernel: Kernel) -> Tensor:
    """Near pairs of a squared metric; a look at the largest weight mostly tells there are none."""
    # reach bounds scale·(‖a‖² + ‖b‖²). Below 8, a product's error is a few eps of a log-weight.
    reach = 2 * kernel.scale * max(left.longest, right.longest)
    eps = torch.finfo(s.dtype).eps
    if reach > 8 and float(s.amax()) + kernel.shift > -NEAR * eps * reach:
        d2 = s.add_(kernel.shift).mul_(-1 / kernel.scale)
        near = repair_near(d2, left.raw, right.raw, left.squares, right.squares)
        d2.mul_(-kernel.scale).sub_(kernel.shift)
        return near
    return torch.empty(0, 2, dtype=torch.long, device=s.device)


def shares(labels: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    """How far two labels agree: 1 or 0 for hard ones, ⟨α_i, α_j⟩ for soft ones.

    Floats for hard ones too: a tenth of a boolean mask's cost.
    """
    if labels.ndim == 2:
        return torch.mm(labels, others.T).clamp_(0, 1)
    same = torch.empty(len(labels), len(others), dtype=dtype, device=labels.device)
    return torch.eq(labels[:, None], others, out=same)


def tile_masses(pairs: Tile, left: Side, right: Side) -> Tensor:
    """Log-masses (2, n), own and other, exact whatever the scale; -inf if empty.

    They are float64: where a log-mass is large, float32 would round away what the masses differ by.
    """
    s = pairs.log_weights
    top = s.amax(1, keepdim=True)
    top.masked_fill_(top == -torch.inf, 0)
    e = (s - top).exp_()
    same = shares(left.labels, right.labels, s.dtype)
    sums = torch.stack([(e * same).sum(1), e.mul_(same.neg_().add_(1)).sum(1)])
    logs = sums.log().double().add_(top[:, 0])
    # Masses far below the row's top lose digits, or all: those rows take the top of each kind.
    info = torch.finfo(s.dtype)
    smallest = info.tiny / info.eps * s.shape[1]
    if float(sums.amin()) < smallest:
        weak = (sums < smallest).any(0)
        same = shares(left.labels[weak], right.labels, s.dtype)
        exact = torch.stack([same, 1 - same]).log_().add_(s[weak]).double().logsumexp(2)
        logs[:, weak] = torch.where(sums[:, weak] < smallest, exact, logs[:, weak])
    return logs


# ------------------------------------------------------------------ gradients


class Upstream(NamedTuple):
    """The gradient that reaches the log-masses (own, other), and the log-masses themselves."""

    grads: Tensor  # (2, n)
    logs: Tensor  # (2, n) float64, -inf where empty

    @classmethod
    def of(cls, grads: Sequence[Tensor], logs: Tensor, dtype: torch.dtype) -> Upstream:
        """An empty mass hands nothing on."""
        return cls(torch.stack(list(grads)).masked_fill_(logs == -torch.inf, 0).to(dtype), logs)

    def part(self, index: Index) -> Upstream:
        return Upstream(self.grads[:, index], self.logs[:, index])


class Sums(NamedTuple):
    """Σ_j M_ij b_j and Σ_j M_ij for each row: all that the gradient of a row needs."""

    products: Tensor  # (n, d)
    weights: Tensor  # (n,)

    @staticmethod
    def zeros(side: Side) -> Sums:
        return Sums(torch.zeros_like(side.rows), torch.zeros_like(side.squares))

    def part(self, index: slice) -> Sums:
        return Sums(self.products[index], self.weights[index])


def tile_slopes(s: Tensor, left: Side, right: Side, upstream: Upstream) -> Tensor:
    """M_ij, the gradient in s_ij: softmax weights within the own class and within the others."""
    logs = upstream.logs.masked_fill(upstream.logs == -torch.inf, 0).to(s.dtype)
    (own, other), (own_grad, other_grad) = logs[:, :, None], upstream.grads[:, :, None]
    # Are the log-masses so large that e^(s - log mass) no longer adds up to one?
    rounded = float(logs.abs().amax()) * torch.finfo(logs.dtype).eps > 2e-6
    same = shares(left.labels, right.labels, s.dtype)
    if left.soft:
        m = (s - own).add_(same.log()).exp_()
        rest = (s - other).add_((1 - same).log_()).exp_()
        if rounded:
            m, rest = m / _total(m), rest / _total(rest)
        return m.mul_(own_grad).add_(rest.mul_(other_grad))
    # Each pair is of one kind: one exponential serves both masses.
    apart = 1 - same
    m = (same * own).addcmul_(apart, other)
    m = torch.sub(s, m, out=m).exp_()
    if rounded:
        own_grad, other_grad = own_grad / _total(m * same), other_grad / _total(m * apart)
    return m.mul_(same.mul_(own_grad).addcmul_(apart, other_grad))


def _total(weights: Tensor) -> Tensor:
    total = weights.sum(1, keepdim=True)
    return total.masked_fill_(total == 0, 1)


def add_sums(
    m: Tensor, pairs: Tile, left: Side, right: Side, rows: Sums, columns: Sums | None
) -> None:
    """Add what a tile's slopes ``m`` give to its rows and, unless it is its own mirror, columns."""
    if pairs.distances is not None:
        m.div_(pairs.distances)
        if not float(pairs.distances.amin()) > 0:  # a mask costs as much as two exponentials
            m.masked_fill_(pairs.distances == 0, 0)
    if len(pairs.near):
        steps = near_gradient(m, pairs.near, left.raw, right.raw)
        rows.products.sub_(steps[0])
        if columns is not None:
            columns.products.sub_(steps[1])
    rows.products.add_(product(m, right.rows.T))
    rows.weights.add_(m.sum(1))
    if columns is not None:
        columns.products.add_(product(m.T, left.rows.T))
        columns.weights.add_(m.sum(0))


def gradients(
    sums: Sequence[Sums], pairing: Pairing, learned: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """∂/∂a_i = -k Σ_j M_ij (a_i - b_j) for each side, and the slope in T if it is ``learned``.

    The masses depend on a/√T alone (on a/T for the euclidean metric), so by Euler's theorem on
    homogeneous functions T ∂/∂T = -½ Σ ⟨a, ∂/∂a⟩ (without the half). A zero row under the cosine
    adds its constant ½/T per unit of weight.
    """
    kernel, grads, slope = pairing.kernel, [], None
    for each, side in zip(sums, pairing[:2], strict=False):
        g = each.products.addcmul_(side.rows, each.weights[:, None], value=-1)
        grads.append(g.mul_(kernel.scale * (1.0 if kernel.root else 2.0)))
        if learned:
            euler = torch.linalg.vecdot(side.rows, g).sum(dtype=torch.float64)
            euler = euler * (-1.0 if kernel.root else -0.5)
            if kernel.metric == "cosine":
                lost = each.weights[zero_rows(side.raw)].sum(dtype=torch.float64)
                euler = euler + lost * kernel.scale
            slope = euler / kernel.temperature + (0 if slope is None else slope)
    return grads[0], grads[1] if len(grads) == 2 else None, slope
