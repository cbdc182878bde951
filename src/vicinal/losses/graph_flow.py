r"""How much weight runs between labels on the complete graph, and its gradient, in one walk.

.. math::
   \mathrm{flow}_\mu = \sum_\nu e^{-\alpha d_{\mu\nu}} a_{\mu\nu}, \qquad
   \nabla_\mu \sum_\nu u_\nu\, \mathrm{flow}_\nu
   = -\alpha \sum_\nu (u_\mu + u_\nu)\, e^{-\alpha d_{\mu\nu}} a_{\mu\nu}
     \frac{f_\mu - f_\nu}{d_{\mu\nu}}

with :math:`a` how far two labels are apart, ½‖y - z‖². Each unordered pair is formed once, tile by
tile, in linear memory. Where the sum is asked for, one number reaches all nodes (u = 1 times it):
the walk that finds the value finds the gradient with it, and nothing is formed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import is_traced
from vicinal.neighbors.derivatives import derived, is_derived_again, is_functional
from vicinal.neighbors.distances import (
    NEAR,
    center,
    near_gradient,
    ordinary_distances,
    repair_near,
    unit_rows,
)
from vicinal.neighbors.product import product

TILE = 512
EDGES = 1 << 18  # numbers of differences formed at a time


def graph_flow(x: Tensor, labels: Tensor, alpha: float, normalize: bool, total: bool) -> Tensor:
    """Weight between labels at each node, of rows scaled to length one if asked, or its sum.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> graph_flow(x, torch.tensor([0, 1, 1]), 1.0, False, False)  # e^0 + e^-2, e^0, e^-2
    tensor([1.1353, 1.0000, 0.1353])
    """
    if is_functional():
        return _plain(x, labels, alpha, normalize, total)
    if torch.compiler.is_compiling():
        nodes = _walked(unit_rows(x) if normalize else x, labels, alpha)
        return nodes.sum() if total else nodes
    slopes = total and x.requires_grad and torch.is_grad_enabled()
    return _Flow.apply(x, labels, alpha, normalize, total, slopes)


def _plain(x: Tensor, labels: Tensor, alpha: float, normalize: bool, total: bool) -> Tensor:
    """All pairs at once by ordinary operations, for derivatives of any order."""
    rows = unit_rows(x) if normalize else x
    weights = torch.exp(-alpha * ordinary_distances(rows, None, "euclidean"))
    nodes = (weights * apart(labels, labels)).sum(1).to(x.dtype)
    return nodes.sum() if total else nodes


def apart(labels: Tensor, others: Tensor) -> Float[Tensor, "n m"]:
    """½‖y - z‖² of all pairs: for hard labels, are they of two classes? (booleans)."""
    if labels.ndim == 1:
        return labels[:, None] != others
    squares = labels.square().sum(1)[:, None] + others.square().sum(1)
    return torch.addmm(squares, labels, others.T, beta=0.5, alpha=-1).clamp_min_(0)


class _Flow(torch.autograd.Function):
    """Rows to unit rows, the walk, and back."""

    @staticmethod
    def forward(ctx, x, labels, alpha, normalize, total, slopes):  # type: ignore[no-untyped-def]
        rows, inverse = _directions(x) if normalize else (x, None)
        unit = inverse is not None and bool(inverse.all())  # a zero row stays one
        found = _whole(rows, labels, alpha, slopes) if unit and total else None
        flow, steps = found or _walk(rows, labels, alpha, None, slopes)
        ctx.save_for_backward(x, labels, rows, inverse, steps)
        ctx.options = alpha, normalize, total
        return flow.sum() if total else flow

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, labels, rows, inverse, steps = ctx.saved_tensors
        alpha, normalize, total = ctx.options
        nothing = None, None, None, None, None
        if is_derived_again(grad):
            (gx,) = derived(lambda x: _plain(x, labels, *ctx.options), [x], [grad])
            return gx, *nothing
        if total:
            g = steps * grad
        else:
            with torch.autocast(x.device.type, enabled=False):
                g = _walk(rows, labels, alpha, grad, True)[1]
        if normalize:  # what is along the row does not turn it
            along = (rows * g).sum(1, keepdim=True)
            g = g.addcmul_(rows, along, value=-1).mul_(inverse)
        return g, *nothing


def _directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows, and one over the lengths; 0 of a zero row."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    low, high = torch.aminmax(length)
    if float(low) > 1e-15 and float(high) < 1e15:
        inverse = length.reciprocal_()
        return x * inverse, inverse
    rows = unit_rows(x)
    length = torch.linalg.vecdot(rows, x)[:, None]
    return rows, torch.where(length == 0, 0, 1 / length)


# ------------------------------------------------------------------ few rows, many rows


def _whole(
    rows: Tensor, labels: Tensor, alpha: float, slopes: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Flow and gradient of few unit rows in few calls; None: there is something to take care of.

    What a row's gradient has along the row itself is left out: it turns nothing.
    """
    if len(rows) > TILE or labels.ndim == 2:
        return None
    d = product(rows, rows).mul_(-2).add_(2)
    d.masked_fill_(labels[:, None] == labels, torch.inf)  # pairs of one class weigh nothing
    if not float(d.amin()) > 2 * NEAR * torch.finfo(d.dtype).eps:
        return None
    d.sqrt_()
    w = (d * -alpha).exp_()
    return w.sum(), product(w.div_(d), rows.T).mul_(2 * alpha) if slopes else None


class _Nodes(NamedTuple):
    """Rows as they came, centered, their squared lengths, labels; their flow and gradient sums."""

    raw: Tensor  # (n, d)
    rows: Tensor  # (n, d)
    squares: Tensor  # (n,)
    labels: Tensor  # (n,) or (n, c)
    upstream: Tensor  # (n,)
    flow: Tensor  # (n,)
    products: Tensor  # (n, d) Σ_ν M_µν f_ν
    weights: Tensor  # (n,) Σ_ν M_µν


def _walk(
    x: Tensor, labels: Tensor, alpha: float, upstream: Tensor | None, slopes: bool, size: int = TILE
) -> tuple[Tensor, Tensor | None]:
    """Flow (n,) and, if asked, the gradient (n, d) of ⟨upstream, flow⟩; None: of the sum."""
    rows, _ = center(x, None)
    squares = torch.linalg.vecdot(rows, rows)
    u = torch.ones_like(squares) if upstream is None else upstream
    sums = torch.zeros_like(squares), torch.zeros_like(rows), torch.zeros_like(squares)
    all_nodes = _Nodes(x, rows, squares, labels, u, *sums)
    parts = [
        _Nodes(*(field[start : start + size] for field in all_nodes))
        for start in range(0, len(x), size)
    ]
    for p, left in enumerate(parts):
        for right in parts[p:]:
            _add_tile(left, right, alpha, slopes)
    flow, products, weights = sums
    if not slopes:
        return flow, None
    return flow, products.addcmul_(rows, weights[:, None], value=-1).mul_(alpha)


def _add_tile(left: _Nodes, right: _Nodes, alpha: float, slopes: bool) -> None:
    """Add what runs along the edges between two parts to both; within one part, once."""
    between = apart(left.labels, right.labels)
    d = product(left.rows * -2, right.rows, right.squares)
    d.add_(left.squares[:, None]).clamp_min_(0)
    if between.dtype == torch.bool:
        d.masked_fill_(~between, torch.inf)  # pairs of one class weigh nothing
    elif right is left:
        d.fill_diagonal_(torch.inf)
    near = repair_near(d, left.raw, right.raw, left.squares, right.squares)
    d.sqrt_()
    w = (d * -alpha).exp_()
    w = w if between.dtype == torch.bool else w.mul_(between)
    left.flow.add_(w.sum(1))
    if right is not left:
        right.flow.add_(w.sum(0))
    if not slopes:
        return
    m = w.div_(d).mul_(left.upstream[:, None] + right.upstream)
    if not float(d.amin()) > 0:
        m.masked_fill_(d == 0, 0)  # no direction where there is no distance
    if len(near):
        steps = near_gradient(m, near, left.raw, right.raw)
        left.products.sub_(steps[0])
        if right is not left:
            right.products.sub_(steps[1])
    left.products.add_(product(m, right.rows.T))
    left.weights.add_(m.sum(1))
    if right is not left:
        right.products.add_(product(m.T, left.rows.T))
        right.weights.add_(m.sum(0))


# ------------------------------------------------------------------ for torch.compile


@torch.library.custom_op(
    "vicinal::graph_flow",
    mutates_args=(),
    schema="(Tensor x, Tensor labels, float alpha) -> Tensor",
)
def _walked(x: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """The walk looks at the data (who is near whom): one operator."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        return _walk(x, labels, alpha, None, False)[0]


@torch.library.custom_op(
    "vicinal::graph_flow_backward",
    mutates_args=(),
    schema="(Tensor upstream, Tensor x, Tensor labels, float alpha) -> Tensor",
)
def _walked_back(upstream: Tensor, x: Tensor, labels: Tensor, alpha: float) -> Tensor:
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        found = _walk(x, labels, alpha, upstream, True)[1]
    assert found is not None
    return found


@_walked.register_fake
def _(x: Tensor, labels: Tensor, alpha: float) -> Tensor:
    return x.new_empty(x.shape[0])


@_walked_back.register_fake
def _(upstream: Tensor, x: Tensor, labels: Tensor, alpha: float) -> Tensor:
    return torch.empty_like(x)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # torch's own record
    x, labels, ctx.alpha = inputs
    ctx.save_for_backward(x, labels)


def _back(ctx, grad):  # type: ignore[no-untyped-def]
    return _walked_back(grad, *ctx.saved_tensors, ctx.alpha), None, None


_walked.register_autograd(_back, setup_context=_remember)


# ------------------------------------------------------------------ a few edges of each node


def edge_lengths(x: Tensor, indices: Int[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """How far each row is from those it has edges to; gradient 0 at a length of 0.

    >>> edge_lengths(torch.tensor([[0.0], [3.0]]), torch.tensor([[1], [0]]))
    tensor([[3.],
            [3.]])
    """
    return _all_lengths(x, indices) if is_traced() else _Lengths.apply(x, indices)


def _all_lengths(x: Tensor, indices: Tensor) -> Tensor:
    # index_select, not x[…]: its backward adds rows, where indexing's scatters numbers.
    near = x.index_select(0, indices.flatten()).view(*indices.shape, -1)
    return torch.linalg.vector_norm(near - x[:, None], dim=2)


class _Lengths(torch.autograd.Function):
    """Edges by the block: their differences stay in a processor's cache, and are not kept."""

    @staticmethod
    def forward(ctx, x, indices):  # type: ignore[no-untyped-def]
        lengths = torch.cat([torch.linalg.vector_norm(d, dim=2) for _, d in _steps(x, indices)])
        ctx.save_for_backward(x, indices, lengths)
        return lengths

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, indices, lengths = ctx.saved_tensors
        if is_derived_again(grad):
            return *derived(lambda x: _all_lengths(x, indices), [x], [grad]), None
        slopes = (grad / lengths).masked_fill_(lengths == 0, 0)
        gx = torch.zeros_like(x)
        for part, steps in _steps(x, indices):  # from a row to its neighbors
            steps.mul_(slopes[part, :, None])
            gx[part] -= steps.sum(1)
            gx.index_add_(0, indices[part].flatten(), steps.flatten(0, 1))
        return gx, None


def _steps(x: Tensor, indices: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Differences (rows, k, d) to the neighbors of some rows at a time."""
    k, d = indices.shape[1], x.shape[1]
    height = max(EDGES // (k * d), 1)
    for start in range(0, len(x), height):
        part = slice(start, start + height)
        yield part, x.index_select(0, indices[part].flatten()).view(-1, k, d).sub_(x[part, None])
