"""One tile of pairs: log-weights of some rows against some columns, and their labels.

The tile engine (:mod:`~vicinal.neighbors.tiles.masses`) walks over tiles; this file fills one. All
metrics share the product 2 a·b - ‖a‖² - ‖b‖² of centered rows; the cosine is half of it, of unit
rows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vicinal.neighbors.distances import NEAR, center, repair_near

Index = slice | Tensor
Own = Tensor | Literal["diagonal"] | None


class Side(NamedTuple):
    """Rows of one side of the pairs: as they came, centered, their squared lengths, labels."""

    raw: Tensor  # (n, d)
    rows: Tensor  # (n, d) centered
    squares: Tensor  # (n,) ‖row‖², plus 1 for a zero row under the cosine
    labels: Tensor  # (n,) integers or (n, c) soft
    longest: float  # an upper bound of the squares, of the whole side
    mirror: Tensor | None = None  # (n, c) what labels meet on the other side, if not labels

    def part(self, index: Index) -> Side:
        mirror = None if self.mirror is None else self.mirror[index]
        raw, rows, squares, labels = (field[index] for field in self[:4])
        return Side(raw, rows, squares, labels, self.longest, mirror)

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


class Tile(NamedTuple):
    """Log-weights minus the shift; the euclidean metric's distances; the near pairs (p, 2)."""

    log_weights: Tensor
    distances: Tensor | None
    near: Tensor
    scratch: Tensor  # of the tile's shape, free to use


def sides(
    x: Tensor, y: Tensor | None, x_labels: Tensor, y_labels: Tensor | None, metric: str
) -> tuple[Side, Side]:
    """Both sides, centered together; the second is the first itself where ``y`` is None.

    Then ``y_labels`` may hold what the labels are multiplied with, for agreements beyond ⟨α, α⟩.
    """
    a, b = center(x, y)
    squares = _squares(x, a, metric)
    left = Side(x, a, squares, x_labels, float(squares.max()), y_labels if y is None else None)
    if y is None or y_labels is None:
        return left, left
    squares = _squares(y, b, metric)
    return left, Side(y, b, squares, y_labels, float(squares.max()))


def _squares(raw: Tensor, rows: Tensor, metric: str) -> Tensor:
    squares = torch.linalg.vecdot(rows, rows)
    # 1 - cos = ½‖u - v‖² for unit rows, and 1 for a zero row: ½(‖u - v‖² + [u=0] + [v=0]).
    return squares + (raw == 0).all(1).to(rows.dtype) if metric == "cosine" else squares


def tile(left: Side, right: Side, kernel: Kernel, buffers: Tensor, own_column: Own = None) -> Tile:
    """Log-weights of the pairs ``left`` × ``right``, written into the first of the ``buffers``.

    ``own_column`` tells the column at which each row meets itself; that pair weighs nothing.
    """
    shape = len(left.rows), len(right.rows)
    s, d, scratch = (buffer[: shape[0] * shape[1]].view(shape) for buffer in buffers)
    if kernel.root:
        return _root_tile(left, right, kernel, (s, d, scratch), own_column)
    k = kernel.scale
    # s = 2k a·b - k‖b‖² - (k‖a‖² + shift)
    bias = (right.squares * -k).expand(shape)
    torch.addmm(bias, left.rows * (2 * k), right.rows.T, out=s)
    s.sub_((left.squares * k).add_(kernel.shift)[:, None])
    _put(s, own_column, -torch.inf)
    return Tile(s, None, _repair(s, left, right, kernel), scratch)


def _root_tile(
    left: Side,
    right: Side,
    kernel: Kernel,
    out: tuple[Tensor, Tensor, Tensor],
    own_column: Own,
) -> Tile:
    s, d, scratch = out
    torch.addmm(right.squares.expand(d.shape), left.rows * -2, right.rows.T, out=d)
    d.add_(left.squares[:, None]).clamp_min_(0)
    _put(d, own_column, torch.inf)
    near = repair_near(d, left.raw, right.raw, left.squares, right.squares)
    d.sqrt_()
    return Tile(torch.mul(d, -kernel.scale, out=s).sub_(kernel.shift), d, near, scratch)


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


def _put(tile: Tensor, column: Own, value: float) -> None:
    if isinstance(column, Tensor):
        tile.scatter_(1, column[:, None], value)
    elif column == "diagonal":
        tile.fill_diagonal_(value)


def agreement(left: Side, right: Side) -> Tensor:
    """How far two labels agree: 1 or 0 for hard ones, ⟨α_i, α_j⟩ for soft ones."""
    if left.soft:
        met = right.labels if right.mirror is None else right.mirror
        return (left.labels @ met.T).clamp_(0, 1)
    return equal_labels(left.labels, right.labels, left.rows.dtype)


def equal_labels(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where two hard labels are the same, else 0: written as floats, never through booleans.

    A mask that other floats are multiplied with costs a tenth of a boolean one to fill by.
    """
    same = torch.empty(len(left), len(right), dtype=dtype, device=left.device)
    return torch.eq(left[:, None], right, out=same)


def new_buffers(rows: int, columns: int, like: Tensor) -> Tensor:
    """Room for a tile thrice, allocated once: touching fresh pages costs more than exp."""
    return like.new_empty(3, rows * columns)
