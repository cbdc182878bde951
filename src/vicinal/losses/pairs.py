r"""Anchors and what they are compared with: log-weights :math:`s_{ij} = -d(x_i, y_j)/T` of pairs.

For ``cosine`` and ``sqeuclidean`` a log-weight is a product, :math:`q_i \cdot k_j + b_j + r_i`, so
its sums over a class are linear in class sums, and its log-sum-exp is :func:`.log_partition`. The
row term
:math:`r_i` cancels in every softmax and is kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vicinal.checks import check_choice, check_positive
from vicinal.neighbors.derivatives import check_pairs, derived, is_derived_again, is_functional
from vicinal.neighbors.distances import METRICS, pairwise_distances, unit_rows
from vicinal.neighbors.mass import own_log_mass

from .conventions import class_ids
from .log_partition import exponentials, in_blocks, log_partition
from .met import Met


@dataclass(frozen=True)
class Product:
    """Log-weights ``q·k + b + r``."""

    q: Float[Tensor, "n d"]
    k: Float[Tensor, "m d"]
    bias: Float[Tensor, " m"]
    row: Float[Tensor, " n"]


@dataclass(frozen=True)
class Pairs(Met):
    """Anchors and whom they meet, with the log-weights of the pairs."""

    temperature: float | Tensor
    product: Product | None  # None for the euclidean distance, which is no product

    @classmethod
    def weighed(
        cls,
        x: Any,
        labels: Any,
        temperature: float | Tensor,
        metric: str,
        reference: Any = None,
        reference_labels: Any = None,
        exclude_self: bool = False,
    ) -> Pairs:
        check_choice(metric, "metric", METRICS)
        check_positive(temperature, "temperature")
        met = Met.of(x, labels, reference, reference_labels, exclude_self, soft=True)
        product = _product(met.x, met.y, temperature, metric)
        return cls(**vars(met), temperature=temperature, product=product)

    def log_weights(self, start: int, stop: int) -> Float[Tensor, "b m"]:
        """A block of ``s_ij``, but for the row term where it is a product."""
        if self.product is None:
            return pairwise_distances(self.x[start:stop], self.y, "euclidean") / -self.temperature
        return torch.addmm(self.product.bias, self.product.q[start:stop], self.product.k.T)

    def same(self, start: int, stop: int) -> Tensor:
        """Which pairs share a class (bool), or how much of it (soft labels); 0 for oneself."""
        return self.without_self(self.agreement(start, stop), start, 0)

    def spread_and_pull(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of each anchor: log Σ e^s over the others, Σ w·s over its positives, and Σ w."""
        if self.product is not None and self.labels.ndim == 1:
            return self._by_class_sums(self.product)
        spread, pull, count = in_blocks(self._spread_and_pull, len(self.x), len(self.y))
        row = 0.0 if self.product is None else self.product.row
        return spread + row, pull + count * row, count

    def _by_class_sums(self, p: Product) -> tuple[Tensor, Tensor, Tensor]:
        n = len(self.x)
        alone = self.y is self.x
        ids = class_ids(self.labels if alone else torch.cat([self.labels, self.y_labels]))
        own, theirs = ids[:n], ids[-len(self.y) :]
        classes = len(ids)  # at most; static, unlike the number of classes
        keys = p.k.new_zeros(classes, p.k.shape[1]).index_add(0, theirs, p.k)[own]
        biases = p.bias.new_zeros(classes).index_add(0, theirs, p.bias)[own]
        count = p.k.new_zeros(classes).index_add(0, theirs, torch.ones_like(p.bias))[own]
        if self.selfless:
            keys, biases, count = keys - p.k[:n], biases - p.bias[:n], count - 1
        diagonal = "exclude" if self.selfless else "keep"
        spread = log_partition(p.q, p.k, p.bias, diagonal=diagonal) + p.row
        pull = torch.linalg.vecdot(p.q, keys) + biases + count * p.row
        return spread, pull, count

    def _spread_and_pull(self, start: int, stop: int) -> Float[Tensor, "3 b"]:
        s, w = self.log_weights(start, stop), self.same(start, stop).to(self.x.dtype)
        # A lone anchor has nobody to meet: it is not valid, and its own pair keeps the sum finite.
        others = self.without_self(s, start, float("-inf")) if len(self.y) > 1 else s
        return torch.stack([others.logsumexp(1), (w * s).sum(1), w.sum(1)])

    def push(self, start: int, stop: int) -> Float[Tensor, "2 b"]:
        """Σ_p w log(1 + Σ_neg e^(s_ij - s_ip)) and Σ_p w of a block of anchors."""
        s, same = self.log_weights(start, stop), self.same(start, stop)
        negatives = ~same if same.dtype == torch.bool else 1 - same
        negatives = self.without_self(negatives, start, 0)
        push = _plain_push if is_functional() else _Push.apply
        return torch.stack([push(s, same, negatives), same.sum(1, dtype=s.dtype)])

    def log_mass_of_negatives(self) -> Float[Tensor, " n"]:
        """log Σ over other classes of e^s; -inf where there are none."""

        def block(start: int, stop: int) -> Tensor:
            s, same = self.log_weights(start, stop), self.same(start, stop).to(self.x.dtype)
            return own_log_mass(s, self.without_self(1 - same, start, 0))

        row = 0.0 if self.product is None else self.product.row
        return in_blocks(block, len(self.x), len(self.y)) + row

    def pushed_by(self, negatives: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """:meth:`push` where the log mass of the negatives is already known."""

        def block(start: int, stop: int) -> Tensor:
            s, same = self.log_weights(start, stop), self.same(start, stop).to(self.x.dtype)
            if self.product is not None:
                s = s + self.product.row[start:stop, None]
            none = negatives[start:stop] == float("-inf")
            known = negatives[start:stop].masked_fill(none, 0)[:, None]
            terms = -F.logsigmoid(s - known).masked_fill(none[:, None], 0)
            return torch.stack([(terms * same).sum(1), same.sum(1)])

        total, count = in_blocks(block, len(self.x), len(self.y))
        return total, count


def pulled(spread: Tensor, pull: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The spread less the mean over the positives, and which anchors have one."""
    valid = count > 0
    return spread.masked_fill(~valid, 0) - pull / count.masked_fill(~valid, 1), valid


def _product(x: Tensor, y: Tensor, temperature: float | Tensor, metric: str) -> Product | None:
    if metric == "euclidean":
        return None
    if metric == "cosine":
        u = unit_rows(x)
        v = u if y is x else unit_rows(y)
        row = (u.new_ones(()) / -temperature).expand(len(u))
        return Product(u / temperature, v, v.new_zeros(len(v)), row)
    center = y.detach().mean(0)  # distances do not move, and rounding is that of the spread alone
    a = x - center
    b = a if y is x else y - center
    return Product(
        a * (2 / temperature), b, b.square().sum(1) / -temperature, a.square().sum(1) / -temperature
    )


class _Push(torch.autograd.Function):
    """``Σ_p w_p softplus(log Σ_neg v e^s - s_p)`` of each row, its gradient taken on the way."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        if negatives.dtype == torch.bool:
            n = s.masked_fill(~negatives, float("-inf"))
        else:
            n = s + negatives.log()
        weights, total, top = exponentials(n, 1)
        total = total[:, None]
        gap = s - (total.log() + top[:, None])  # +inf where there is no negative: nothing to push
        losses = (F.logsigmoid(gap) * positives).sum(1).neg_()
        if ctx.needs_input_grad[0]:
            pulled = gap.neg_().sigmoid_().mul_(positives)
            share = pulled.sum(1, keepdim=True).div_(total.masked_fill(total == 0, 1))
            ctx.save_for_backward(s, positives, negatives, weights.mul_(share).sub_(pulled))
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None]:
        s, positives, negatives, gradient = ctx.saved_tensors
        if is_derived_again(upstream[0]):
            found = derived(lambda s: _plain_push(s, positives, negatives), [s], upstream)
            return found[0], None, None
        return gradient * upstream[0][:, None], None, None


def _plain_push(s: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The same by ordinary operations: to be differentiated again."""
    check_pairs(*s.shape)
    gap = s - own_log_mass(s, negatives)[:, None]
    return -(F.logsigmoid(gap) * positives).sum(1)
