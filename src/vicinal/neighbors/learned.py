r"""A space learned by the leave-one-out loss: neighborhood components analysis, from whitening on.

.. math::
   \min_{B, T} \; \frac1n \sum_i -\log \frac{\sum_{j \neq i, y_j = y_i} e^{-d_{ij}/T}}
   {\sum_{j \neq i} e^{-d_{ij}/T}} + \lambda \, \overline{(B - I)^2}, \qquad
   d_{ij} = \|z_i - z_j\|^2, \quad z_i = (x_i - \mu) S^{-1/2} Q B

(unit rows where the whitened space has them). The loss is the soft nearest neighbor loss
(Goldberger 2004; Frosst 2019), its gradient that of our own tiles. Q are the r directions in which
the whitened rows vary most: where classes lie apart, since within a class they vary alike in all.
B starts at the identity and is held near it. Rows set aside say when to stop: the loss of the rows
that are learned from only ever falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vicinal.checks import InputError
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.mass import agreement
from vicinal.neighbors.spaces import (
    LABELED,
    USUAL,
    Labels,
    Space,
    Whitening,
    class_sums,
    plain_space,
    whitened_space,
)
from vicinal.neighbors.surprise import fit_temperature
from vicinal.neighbors.tiles.dense import DenseMasses, surprise_of
from vicinal.neighbors.tiles.tile import Given

RANK = 64  # directions, or as many as there are classes
BATCH = 512  # rows that are compared at a time
STEPS = 36
CHECK = 6  # steps between two looks at the rows set aside
RATE = 0.03
PULL = 1.0  # λ
SET_ASIDE = 5  # one row in so many


class Form(NamedTuple):
    """A space that is not fitted yet: its name and what shapes it. Rows and labels make it one.

    >>> Form("unit")(torch.tensor([[3.0, 4.0]]), torch.tensor([0])).unit
    True
    """

    name: str
    whitening: Whitening = USUAL
    steps: int | None = None  # of learning; None stops where rows set aside do best

    def __call__(self, x: Float[Tensor, "n d"], labels: Labels) -> Space:
        if self.name not in LABELED:
            return plain_space(self.name, x)
        if self.name == "whitened":
            return whitened_space(x, labels, self.whitening)
        return learned_space(x, labels, self.whitening, steps=self.steps)

    def in_span(
        self, x: Float[Tensor, "n d"], span: Float[Tensor, "n r"] | None
    ) -> tuple[Form, Tensor]:
        """The same space for ``span``, the rows in coordinates of their span, where it is cheaper.

        Not where columns matter. A sphere of r directions has the shrinkage of one of d: that for
        which :math:`s/(1 - s)` times the mean variance is what it was.
        """
        columns = self.name in LABELED and self.whitening.toward == "columns"
        if span is None or span is x or columns or self.name == "standardized":
            return self, x
        (_, d), (_, r), s = x.shape, span.shape, self.whitening.shrinkage
        whitening = self.whitening._replace(shrinkage=s * r / (s * r + (1 - s) * d))
        return self._replace(whitening=whitening), span


class Start(NamedTuple):
    """The whitened space cut down to r directions, and the rows in it."""

    space: Space  # not unit
    rows: Float[Tensor, "n r"]


def learned_space(
    x: Float[Tensor, "n d"],
    labels: Labels,
    whitening: Whitening = USUAL,
    *,
    steps: int | None = None,
) -> Space:
    """The map that lowers the leave-one-out loss from the whitened space on; at 0 steps that one.

    Parameters
    ----------
    x, labels : the rows to learn from.
    whitening : what it starts at, and is held near.
    steps : how many to take; None stops where rows set aside do best.

    >>> x = torch.tensor([[0.0, 0.0], [0.1, 5.0], [1.0, 0.3], [1.1, 4.0]])
    >>> learned_space(x, torch.tensor([0, 0, 1, 1]), steps=3).matrix.shape
    torch.Size([2, 2])
    """
    steps = best_steps(x, labels, whitening) if steps is None else steps
    if steps == 0:  # nothing is learned, so nothing is cut off either
        return replace(whitened_space(x, labels, whitening), name="learned")
    start = start_of(x, labels, whitening)
    *_, (_, b) = walk(start, labels, steps)
    assert start.space.matrix is not None
    matrix = start.space.matrix @ b.to(start.space.matrix)
    return Space("learned", start.space.shift, matrix, unit=start.space.unit)


def best_steps(x: Float[Tensor, "n d"], labels: Labels, whitening: Whitening) -> int:
    """After how many steps rows that were set aside have the lowest loss among the others."""
    aside = set_aside(len(x)).to(x.device)
    if len(x) < 4 * SET_ASIDE:
        return 0
    start = start_of(x[~aside], labels[~aside], whitening)
    some = torch.linspace(0, len(start.rows) - 1, min(len(start.rows), 2 * BATCH)).long()
    few = BATCH // 2
    held, known = _cut(start.space)(x[aside][:few]), start.rows[some]
    shares = agreement(labels[aside][:few], labels[~aside][some])
    lowest, best = torch.inf, 0
    for step, b in walk(start, labels[~aside], STEPS):
        loss = _loss_among(_end(held @ b, start), _end(known @ b, start), shares)
        if loss < lowest:
            lowest, best = loss, step
        elif step >= best + 2 * CHECK:
            break
    return best


def set_aside(n: int) -> Bool[Tensor, " n"]:
    """One row in five, drawn: rows may come in an order that has to do with their class."""
    return _shuffled(n) % SET_ASIDE == 0


def start_of(x: Float[Tensor, "n d"], labels: Labels, whitening: Whitening) -> Start:
    """Whitened rows in the directions of most variance, found by two rounds of subspace iteration.

    It starts at the class means and some rows, so no draw is needed.
    """
    whitened = whitened_space(x, labels, whitening)
    rows = _cut(whitened)(x)
    counts, sums = class_sums(rows, labels)
    rank = min(max(RANK, len(counts)), rows.shape[1], len(rows))
    some = torch.linspace(0, len(rows) - 1, rank).long()
    q = torch.cat([(sums / counts[:, None]).to(rows), rows[some]])[:rank].T
    for _ in range(2):
        q = torch.linalg.qr(rows.T @ (rows @ q)).Q
    assert whitened.matrix is not None
    space = Space("learned", whitened.shift, whitened.matrix @ q, unit=whitened.unit)
    return Start(space, rows @ q)


def walk(start: Start, labels: Labels, steps: int) -> Iterator[tuple[int, Float[Tensor, "r r"]]]:
    """Adam over batches of rows; yields the step and B, first at 0, then every ``CHECK`` steps."""
    rows = start.rows
    b = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device).requires_grad_()
    first = _batch(len(rows), 0)
    temperature = _temperature(_end(rows[first], start), labels[first])
    log_t = torch.tensor(temperature).log().requires_grad_()
    moments = [(torch.zeros_like(v), torch.zeros_like(v)) for v in (b, log_t)]
    yield 0, b.detach().clone()
    for step in range(1, steps + 1):
        at = _batch(len(rows), step)
        loss = _loss(_end(rows[at] @ b, start), labels[at], log_t.exp())
        off = b - torch.eye(len(b), dtype=b.dtype, device=b.device)
        slopes = torch.autograd.grad(loss + PULL * off.square().mean(), (b, log_t))
        for value, slope, moment in zip((b, log_t), slopes, moments, strict=True):
            _adam(value, slope, moment, step)
        if step % CHECK == 0 or step == steps:
            yield step, b.detach().clone()


@torch.no_grad()
def _adam(value: Tensor, slope: Tensor, moment: tuple[Tensor, Tensor], step: int) -> None:
    """One step of Kingma and Ba; torch.optim would load its compiler, ten seconds for ten lines."""
    mean, square = moment
    mean.lerp_(slope, 0.1)
    square.lerp_(slope * slope, 0.001)
    size = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
    value.addcdiv_(mean, size, value=-RATE / (1 - 0.9**step))


def _loss(z: Tensor, labels: Labels, temperature: Tensor) -> Tensor:
    """Mean surprise of the rows that have a peer among the others; a batch is a single tile."""
    labels = labels if labels.ndim == 1 else labels.to(z.dtype)
    given = Given(z, None, labels, None, temperature.double(), "sqeuclidean", True)
    loss, valid = surprise_of(*DenseMasses.apply(*given))
    return (loss.sum() / valid.sum().clamp_min(1)).to(z.dtype)


def _loss_among(z: Tensor, others: Tensor, shares: Tensor) -> float:
    """The lowest mean surprise over temperatures of rows among others that have a peer there."""
    if not bool(((shares > 0).any(1) & (shares < 1).any(1)).any()):
        return 0.0  # no temperature matters
    return fit_temperature(_squared(z, others), shares).loss


def _end(z: Tensor, start: Start) -> Tensor:
    return unit_rows(z) if start.space.unit else z


def _batch(n: int, step: int) -> Int[Tensor, " m"]:
    """All rows where they are few, else the next ones of a shuffled deck."""
    if n <= BATCH:
        return torch.arange(n)
    return _shuffled(n)[(torch.arange(BATCH) + step * BATCH) % n]


def _shuffled(n: int) -> Int[Tensor, " n"]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def _temperature(z: Tensor, labels: Labels) -> float:
    """The best one of rows among one another."""
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    pairs = _squared(z, z), agreement(labels, labels)
    among = [each[others].view(len(z), len(z) - 1) for each in pairs]
    try:
        return fit_temperature(*among).temperature
    except InputError:  # nobody has a peer
        return 1.0


def _squared(z: Tensor, others: Tensor) -> Tensor:
    """Squared distances of few rows, from differences."""
    return torch.cdist(z, others, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _cut(space: Space) -> Space:
    """The same map without the unit rows at its end."""
    return Space(space.name, space.shift, space.matrix)
