r"""The leave-one-out loss of neighbors as a function of β = 1/T, and its slopes, block by block.

Rows come in blocks, from cached distances or formed on the way; each row brings all its neighbors,
so every sum over neighbors is complete within a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.neighbors.distances import compared_rows, in_unit, repair_near, squared_lengths
from vicinal.neighbors.newton import Slope

BLOCK = 1 << 17  # distances weighed at a time: they stay in the cache
TILE = 1 << 20  # distances of a data set to itself formed at a time


class Gaps(NamedTuple):
    """How much farther each neighbor of some rows is than the row's nearest."""

    gaps: Tensor  # (n, k)
    share: Tensor  # (n, k) of the row's label that the neighbor has
    peer: Tensor  # (n,) the gap of the nearest neighbor that has any
    weight: Tensor  # (n,) 0 for a row without such a neighbor


def block_rows(width: int) -> int:
    """Rows of so many distances that are weighed at a time."""
    return max(1, BLOCK // width)


def slopes(rows: Iterable[Gaps], beta: float) -> Slope:
    """f, f' = E_own[d] - E_all[d] and f'' = Var_all[d] - Var_own[d] at β, in one pass."""
    total = torch.zeros(4, dtype=torch.float64)
    for gaps, share, peer, weight in rows:
        all_, own = _weights(gaps, share, peer, beta)
        mass, own_mass = all_.sum(1), own.sum(1)
        loss = beta * peer + mass.log() - own_mass.log()
        far, own_far = all_.mul_(gaps), own.mul_(gaps)
        mean, own_mean = far.sum(1) / mass, own_far.sum(1) / own_mass
        square = far.mul_(gaps).sum(1) / mass - mean.square()
        own_square = own_far.mul_(gaps).sum(1) / own_mass - own_mean.square()
        terms = torch.stack([loss, own_mean - mean, square - own_square, torch.ones_like(loss)])
        total += (terms @ weight).double().cpu()
    f, g, h = (total[:3] / total[3]).tolist()
    return Slope(f, g, h)


def losses(rows: Iterable[Gaps], betas: Sequence[float]) -> list[float]:
    """f at several β, each block of distances formed once."""
    total, count = torch.zeros(len(betas), dtype=torch.float64), 0.0
    for gaps, share, peer, weight in rows:
        for i, beta in enumerate(betas):
            all_, own = _weights(gaps, share, peer, beta)
            loss = beta * peer + all_.sum(1).log() - own.sum(1).log()
            total[i] += float(loss @ weight)
        count += float(weight.sum())
    return (total / count).tolist()


def _weights(gaps: Tensor, share: Tensor, peer: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Weights relative to the nearest, and of peers relative to the nearest peer.

    Each sum holds a term of order 1, so neither can underflow, however far the peers are. (What is
    nearer than the nearest peer is no peer: its clamped weight meets a share of 0.)
    """
    all_ = gaps * -beta
    own = (all_ + (beta * peer)[:, None]).clamp_max_(0).exp_().mul_(share)
    return all_.exp_(), own


def gaps_of(distances: Tensor, share: Tensor, weight: Tensor) -> Gaps:
    gaps = distances - distances.amin(1, keepdim=True)
    peer = gaps.masked_fill(share <= 0, torch.inf).amin(1)
    alone = peer.isinf()
    if bool(alone.any()):  # any finite stand-in will do, its weight is 0
        share = share.masked_fill(alone[:, None], 1.0)
        peer, weight = peer.masked_fill(alone, 0.0), weight.masked_fill(alone, 0.0)
    return Gaps(gaps, share, peer, weight)


# ------------------------------------------------------------------ every row against all others


class AllOthers:
    """Blocks of rows with their distances to all others, formed anew each time they are gone
    through: memory stays linear in the number of rows."""

    def __init__(self, x: Tensor, labels: Tensor, metric: str, picked: Tensor) -> None:
        self.labels, self.metric, self.picked = labels, metric, picked
        self.base = compared_rows(x, metric)
        self.centered = self.base - self.base.mean(0)
        self.squares = squared_lengths(self.centered, self.base, metric)

    def __iter__(self) -> Iterator[Gaps]:
        n = len(self.base)
        step = block_rows(n)
        for rows in self.picked.split(max(64, TILE // n)):
            others = torch.arange(n, device=rows.device) != rows[:, None]
            distances = self._distances(rows, ~others)[others].view(len(rows), n - 1)
            share = _common(self.labels[rows], self.labels, distances.dtype)
            share = share[others].view(len(rows), n - 1)
            weight = distances.new_ones(len(rows))
            for i in range(0, len(rows), step):
                part = slice(i, i + step)
                yield gaps_of(distances[part], share[part], weight[part])

    def _distances(self, rows: Tensor, self_: Tensor) -> Tensor:
        squares = self.squares[rows]
        d = torch.addmm(self.squares, self.centered[rows], self.centered.T, alpha=-2)
        d = d.add_(squares[:, None]).clamp_min_(0).masked_fill_(self_, torch.inf)
        repair_near(d, self.base[rows], self.base, squares, self.squares)
        return in_unit(d, self.metric)


def _common(mine: Tensor, theirs: Tensor, dtype: torch.dtype) -> Tensor:
    """The share of label that rows have in common: 0 or 1 for hard labels, <α_i, α_j> for soft."""
    if mine.ndim == 1:
        return (mine[:, None] == theirs).to(dtype)
    return mine.to(dtype) @ theirs.to(dtype).T


def shared(labels: Tensor, indices: Tensor) -> Tensor:
    """The share of label of each row with its neighbors ``indices``; bool for hard labels."""
    if labels.ndim == 1:
        return labels[indices] == labels[:, None]
    step = max(1, TILE // (indices.shape[1] * labels.shape[1]))
    parts = [
        torch.einsum("nc,nkc->nk", labels[i : i + step], labels[indices[i : i + step]])
        for i in range(0, len(labels), step)
    ]
    return torch.cat(parts).clamp(0, 1)


def peers(labels: Tensor) -> Tensor:
    """How many others share each row's label (the sum of shares, for soft labels)."""
    if labels.ndim == 1:
        _, place, counts = labels.unique(return_inverse=True, return_counts=True)
        return counts[place].double() - 1
    soft = labels.double()
    return (soft @ soft.sum(0) - soft.square().sum(1)).clamp_min(0)
