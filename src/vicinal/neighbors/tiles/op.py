"""The log-masses as torch operators: what autograd and torch.compile see of the tile engine.

Three walks over the pairs share one gradient: all at once (small batches), symmetric tiles (within
a batch), blocks of rows (against references). The walks look at the data (which rows are near,
which masses fit the shift), so torch.compile takes them as one operator, ``vicinal::log_masses``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.neighbors.tiles.block import (
    Pull,
    Sums,
    block_gradient,
    block_masses,
    whole_gradient,
    whole_tile,
)
from vicinal.neighbors.tiles.pairs import Kernel, Side, sides
from vicinal.neighbors.tiles.stream import stream_gradient, stream_masses
from vicinal.neighbors.tiles.symmetric import symmetric_gradient, symmetric_masses

Three = tuple[Tensor, Tensor, Tensor]


class _Problem(NamedTuple):
    """Both sides, the one side twice where there is no reference; which row each came from."""

    left: Side
    right: Side
    order: Tensor | None
    kernel: Kernel


def _problem(
    x: Tensor, y: Tensor | None, x_labels: Tensor, y_labels: Tensor | None, t: Tensor, metric: str
) -> _Problem:
    left, right = sides(x, y, x_labels, y_labels, metric)
    return _Problem(left, right, None, Kernel(metric, float(t)))


def _ascending(
    x: Tensor, labels: Tensor, mirror: Tensor | None, t: Tensor, metric: str
) -> _Problem:
    """One side, its rows ascending by hard label, as the symmetric tiles want them."""
    order = None
    if labels.ndim == 1:
        ascending, order = labels.sort(stable=True)
        # Ranks as floats: exact, and quicker to compare than integers.
        labels = ascending.unique_consecutive(return_inverse=True)[1].to(x.dtype)
        x = x[order]
    left, right = sides(x, None, labels, mirror, metric)
    return _Problem(left, right, order, Kernel(metric, float(t)))


# ------------------------------------------------------------------ tiles and blocks


@torch.library.custom_op(
    "vicinal::log_masses",
    mutates_args=(),
    schema="(Tensor x, Tensor? y, Tensor x_labels, Tensor? y_labels, Tensor t, "
    "str metric, int tile) -> (Tensor, Tensor, Tensor)",
)
def tiled_log_masses(
    x: Tensor,
    y: Tensor | None,
    x_labels: Tensor,
    y_labels: Tensor | None,
    t: Tensor,
    metric: str,
    tile: int,
) -> Three:
    """(all, own, other) log-masses, float64; for the cosine the rows come in with unit length."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        if y is None:
            p = _ascending(x, x_labels, y_labels, t, metric)
            logs = symmetric_masses(p.left, p.kernel, tile, _empty(p.left))
        else:
            p = _problem(x, y, x_labels, y_labels, t, metric)
            logs = stream_masses(p.left, p.right, p.kernel, torch.arange(len(x), device=x.device))
        if p.order is not None:
            logs = torch.empty_like(logs).index_copy_(1, p.order, logs)
        everything, own, other = logs
    return everything.clone(), own.clone(), other.clone()


@tiled_log_masses.register_fake
def _(
    x: Tensor,
    y: Tensor | None,
    x_labels: Tensor,
    y_labels: Tensor | None,
    t: Tensor,
    metric: str,
    tile: int,
) -> Three:
    everything, own, other = (x.new_empty(len(x), dtype=torch.float64) for _ in range(3))
    return everything, own, other


@torch.library.custom_op(
    "vicinal::log_masses_backward",
    mutates_args=(),
    schema="(Tensor[] grads, Tensor[] masses, Tensor x, Tensor? y, Tensor x_labels, "
    "Tensor? y_labels, Tensor t, str metric, int tile, bool learned) -> (Tensor, Tensor, Tensor)",
)
def _tiled_backward(
    grads: list[Tensor],
    masses: list[Tensor],
    x: Tensor,
    y: Tensor | None,
    x_labels: Tensor,
    y_labels: Tensor | None,
    t: Tensor,
    metric: str,
    tile: int,
    learned: bool,
) -> Three:
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        pull = _pull(grads, torch.stack(masses), x.dtype)
        if y is None:
            p = _ascending(x, x_labels, y_labels, t, metric)
            pull = pull if p.order is None else pull.part(p.order)
            sums = [symmetric_gradient(p.left, p.kernel, tile, pull)]
        else:
            p = _problem(x, y, x_labels, y_labels, t, metric)
            rows = torch.arange(len(x), device=x.device)
            sums = list(stream_gradient(p.left, p.right, p.kernel, rows, pull))
        gx, gy, slope = _gradients(sums, p, learned)
        if p.order is not None:
            gx = torch.empty_like(gx).index_copy_(0, p.order, gx)
    return gx, x.new_empty(0) if gy is None else gy, t.new_zeros(()) if slope is None else slope


@_tiled_backward.register_fake
def _(
    grads: list[Tensor],
    masses: list[Tensor],
    x: Tensor,
    y: Tensor | None,
    x_labels: Tensor,
    y_labels: Tensor | None,
    t: Tensor,
    metric: str,
    tile: int,
    learned: bool,
) -> Three:
    gy = x.new_empty(0) if y is None else torch.empty_like(y)
    return torch.empty_like(x), gy, torch.empty_like(t)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # torch's own record
    x, y, x_labels, y_labels, t, ctx.metric, ctx.tile = inputs
    ctx.present = [tensor is not None for tensor in (y, y_labels)]
    rest = (tensor for tensor in (y, y_labels) if tensor is not None)
    ctx.save_for_backward(*output, x, x_labels, t, *rest)


def _backward(ctx, *grads):  # type: ignore[no-untyped-def]
    *masses, x, x_labels, t = ctx.saved_tensors[:6]
    rest = iter(ctx.saved_tensors[6:])
    y, y_labels = (next(rest) if present else None for present in ctx.present)
    learned = ctx.needs_input_grad[4]
    gx, gy, slope = _tiled_backward(
        list(grads), masses, x, y, x_labels, y_labels, t, ctx.metric, ctx.tile, learned
    )
    return gx, None if y is None else gy, None, None, slope if learned else None, None, None


tiled_log_masses.register_autograd(_backward, setup_context=_remember)


# ------------------------------------------------------------------ all at once


class _Dense(torch.autograd.Function):
    """Small batches outside of torch.compile: no operator dispatch, log-weights kept."""

    @staticmethod
    def forward(ctx, x, y, x_labels, y_labels, t, metric):  # type: ignore[no-untyped-def]
        with torch.autocast(x.device.type, enabled=False):
            p = _problem(x, y, x_labels, y_labels, t, metric)
            pairs = whole_tile(p.left, p.right, p.kernel)
            logs = block_masses(pairs, p.left, p.right)
        ctx.problem, ctx.pairs, ctx.logs = p, pairs, logs
        ctx.save_for_backward(x, y)  # not to be read, but to be told if they change
        return logs.clone().unbind(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        p = ctx.problem
        (x, _), learned = ctx.saved_tensors, ctx.needs_input_grad[4]
        with torch.autocast(x.device.type, enabled=False):
            pull = _pull(grads, ctx.logs, x.dtype)
            if p.right is p.left:
                sums = [whole_gradient(ctx.pairs, p.left, pull)]
            else:
                sums = list(block_gradient(ctx.pairs, p.left, p.right, pull))
            gx, gy, slope = _gradients(sums, p, learned)
        return gx, gy, None, None, slope, None


def dense_log_masses(
    x: Tensor, y: Tensor | None, x_labels: Tensor, y_labels: Tensor | None, t: Tensor, metric: str
) -> Three:
    """(all, own, other) log-masses of a small batch, float64."""
    return _Dense.apply(x, y, x_labels, y_labels, t, metric)


# ------------------------------------------------------------------ masses to walks and back


def _pull(grads: Sequence[Tensor], logs: Tensor, dtype: torch.dtype) -> Pull:
    """all = log(e^own + e^other) hands its gradient to both by share; an empty mass gets none."""
    pulls = torch.exp(logs[1:] - logs[0]).mul_(grads[0]).add_(torch.stack(list(grads[1:])))
    return Pull(pulls.masked_fill_(logs[1:] == -torch.inf, 0).to(dtype), logs[1:])


def _gradients(
    sums: Sequence[Sums], p: _Problem, learned: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """∂/∂a_i = -k Σ_j M_ij (a_i - b_j) for each side, and the slope in T if it is ``learned``."""
    factor = p.kernel.scale * (1.0 if p.kernel.root else 2.0)
    grads, slope = [], None
    for each, side in zip(sums, (p.left, p.right), strict=False):
        g = each.products.addcmul_(side.rows, each.weights[:, None], value=-1).mul_(factor)
        grads.append(g)
        if learned:
            slope = _slope(g, each.weights, side, p.kernel) + (0 if slope is None else slope)
    return grads[0], grads[1] if len(grads) == 2 else None, slope


def _slope(g: Tensor, weights: Tensor, side: Side, kernel: Kernel) -> Tensor:
    """One side's part of ∂/∂T.

    The masses depend on a/√T alone (on a/T for the euclidean metric), so by Euler's theorem on
    homogeneous functions T ∂/∂T = -½ Σ ⟨a, ∂/∂a⟩ (without the half). A zero row under the cosine
    adds its constant ½/T per unit of weight.
    """
    slope = torch.linalg.vecdot(side.rows, g).sum(dtype=torch.float64)
    slope = slope * (-1.0 if kernel.root else -0.5)
    if kernel.metric == "cosine":
        zero = (side.raw == 0).all(1)
        slope = slope + weights[zero].sum(dtype=torch.float64) * kernel.scale
    return slope / kernel.temperature


def _empty(side: Side) -> Tensor:
    """(2, n): which rows have nobody of their own class, or nobody of another, beside them."""
    labels, n = side.labels, len(side.labels)
    if labels.ndim == 1:
        _, inverse, counts = labels.unique_consecutive(return_inverse=True, return_counts=True)
        return torch.stack([counts[inverse] == 1, counts[inverse] == n])
    if side.mirror is not None:  # not known beforehand: rows that turn out empty are streamed
        return torch.zeros(2, n, dtype=torch.bool, device=labels.device)
    held = labels > 0
    shared = held & (held.sum(0) > 1)
    # Two soft labels agree fully only if both are the same corner of the simplex.
    corner = labels == 1
    return torch.stack([~shared.any(1), (corner & (corner.sum(0) == n)).any(1)])
