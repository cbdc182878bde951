r"""Pairwise distances that are right where a matrix product is not.

.. math:: \|a - b\|^2 = \|a\|^2 + \|b\|^2 - 2\,a \cdot b

is one matrix product, and loses every digit when :math:`\|a-b\| \ll \|a\|`. Three repairs keep it
exact: the data is centered first (distances do not move), negative results are clamped, and pairs
closer than rounding can tell, :math:`d^2 < c\,\epsilon\,(\|a\|^2+\|b\|^2)`, are computed again from
the difference itself, in value and in gradient. The cosine distance is half the squared distance of
unit rows, so it is exact for nearly parallel rows as well.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.checks import InputError, as_matrix, check_choice, check_same_width
from vicinal.neighbors.derivatives import check_pairs, derived, is_derived_again, is_functional

METRICS = ("sqeuclidean", "euclidean", "cosine")

# A product's d² is off by a few eps·(‖a‖²+‖b‖²); from this many on, its relative error is < 1 %.
NEAR = 1024.0
_GATHER = 1 << 22  # elements of differences formed at a time


def pairwise_distances(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None, metric: str = "sqeuclidean"
) -> Float[Tensor, "n m"]:
    r"""Distances of every row of ``x`` to every row of ``y`` (to ``x`` itself without ``y``).

    ``sqeuclidean`` :math:`\|a-b\|^2`, ``euclidean`` :math:`\|a-b\|`, ``cosine``
    :math:`1-\cos(a,b)`; a zero row has cosine distance 1 to every other. Without ``y`` the diagonal
    is exactly 0. Differentiable to any order, with gradient 0 where a distance is 0; half precision
    is computed in float32; NaN stays NaN.

    >>> pairwise_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), metric="euclidean")
    tensor([[0., 5.],
            [5., 0.]])
    """
    check_choice(metric, "metric", METRICS)
    x = as_matrix(x, "x", finite=False)
    if y is not None:
        y = as_matrix(y, "y", finite=False)
        check_same_width(x, y, "x", "y")
        x, y = _same_dtype(x, y)
    x, y = compared_rows(x, metric), None if y is None else compared_rows(y, metric)
    return ordinary_distances(x, y, metric) if is_functional() else _pairwise(x, y, metric)


def neighbor_distances(
    x: Float[Tensor, "n d"], neighbors: Float[Tensor, "n k d"], metric: str = "sqeuclidean"
) -> Float[Tensor, "n k"]:
    """Distances of each row to its own ``k`` neighbors, from the differences, without a product.

    >>> x = torch.tensor([[0.0, 0.0]])
    >>> neighbor_distances(x, torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    tensor([[25.,  0.]])
    """
    check_choice(metric, "metric", METRICS)
    x = as_matrix(x, "x", finite=False)
    if neighbors.ndim != 3 or neighbors.shape[::2] != x.shape:
        raise InputError(
            f"`neighbors` must be (n, k, d) with n, d = {tuple(x.shape)} from `x`, got shape "
            f"{tuple(neighbors.shape)}. Gather it with support[indices]."
        )
    x, neighbors = _same_dtype(x, neighbors)
    difference = compared_rows(x, metric)[:, None] - compared_rows(neighbors, metric)
    if metric == "euclidean":  # not the root of the square: at 0 its gradient is 0
        return torch.linalg.vector_norm(difference, dim=2)
    if metric == "sqeuclidean":
        return difference.square().sum(2)
    lost = zero_rows(x)[:, None].to(x.dtype) + zero_rows(neighbors)
    return in_unit(difference.square().sum(2) + lost, metric)


def unit_rows(x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
    """Rows scaled to length one; a zero row stays zero and gets gradient zero.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    # The largest entry goes out first, so squares neither overflow nor vanish. The direction does
    # not depend on a row's scale: as a constant it leaves the gradient exact.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    # A zero row becomes one of ones, which has a length to divide by in every derivative.
    scaled = torch.addcdiv(zero.to(x.dtype), x, largest.masked_fill(zero, 1.0))
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return torch.where(zero, torch.zeros_like(x), scaled / length)


# ------------------------------------------------------------------ what a metric means
# Every metric is read off squared distances of the rows it compares: the rows themselves, or for
# the cosine unit rows, 1 - cos = ½‖u - v‖². A zero row has no direction: it is at cosine distance 1
# from every other, as if orthogonal to it, so ½(‖u - v‖² + [u=0] + [v=0]).


def compared_rows(x: Tensor, metric: str) -> Tensor:
    """What is compared by squared distance: unit rows for the cosine, else the rows."""
    return unit_rows(x) if metric == "cosine" else x


def zero_rows(x: Tensor) -> Tensor:
    """Which rows are all zero; one with NaN is not."""
    return ~x.any(-1)


def squared_lengths(rows: Tensor, compared: Tensor, metric: str) -> Tensor:
    """‖row‖² of centered ``rows``, and 1 more for a zero row under the cosine."""
    squares = torch.linalg.vecdot(rows, rows)
    return squares + zero_rows(compared) if metric == "cosine" else squares


def in_unit(squared: Tensor, metric: str) -> Tensor:
    """Squared distances of compared rows in the metric's unit."""
    if metric == "euclidean":
        return squared.sqrt()
    return squared * 0.5 if metric == "cosine" else squared


def squared_unit(distances: Tensor, metric: str) -> Tensor:
    """The inverse of :func:`in_unit`."""
    if metric == "euclidean":
        return distances.square()
    return distances * 2 if metric == "cosine" else distances


def plain_distances(distances: Tensor, metric: str) -> Tensor:
    """Distances in the metric's unit, but unsquared: what weighted votes are defined on."""
    return distances.sqrt() if metric == "sqeuclidean" else distances


def _same_dtype(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return x.to(dtype), y.to(dtype)


def ordinary_distances(x: Tensor, y: Tensor | None, metric: str) -> Tensor:
    """Distances of compared rows by ordinary operations, for derivatives of any order.

    From the differences while these are few, else a product in float64. What rounding leaves of a
    length (float32 rows differ by more) counts as none: a root has no slope there.
    """
    other, noise = x if y is None else y, x.new_zeros(())
    check_pairs(len(x), len(other))
    if x.numel() * len(other) <= _GATHER:
        d2 = (x[:, None] - other).square().sum(2)
    else:
        shift = other.detach().double().mean(0)
        a, b = x.double() - shift, other.double() - shift
        size = a.square().sum(1)[:, None] + b.square().sum(1)
        d2, noise = size - 2 * a @ b.T, 64 * torch.finfo(torch.float64).eps * size.detach()
    if metric == "cosine":
        d2 = d2 + zero_rows(x)[:, None].to(x.dtype) + zero_rows(other)
    none = d2 <= noise if metric == "euclidean" else torch.zeros_like(d2, dtype=torch.bool)
    if y is None:
        none = none | torch.eye(len(x), dtype=torch.bool, device=x.device)
    return in_unit(d2.masked_fill(none, 1), metric).masked_fill(none, 0).to(x.dtype)


# ------------------------------------------------------------------ the operator
# An operator, because repairing near pairs depends on the data: torch.compile takes it whole.


@torch.library.custom_op(
    "vicinal::pairwise", mutates_args=(), schema="(Tensor x, Tensor? y, str metric) -> Tensor"
)
def _pairwise(x: Tensor, y: Tensor | None, metric: str) -> Tensor:
    """Distances; for ``cosine`` the rows come in with unit length (or zero)."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        a, b = center(x, y)
        other = x if y is None else y
        squares = squared_lengths(a, x, metric), squared_lengths(b, other, metric)
        d = torch.mm(a, b.T).mul_(-2).add_(squares[0][:, None]).add_(squares[1]).clamp_min_(0)
        if y is None:
            d.fill_diagonal_(torch.inf)  # neither near nor repaired
        repair_near(d, x, other, *squares)
        d = in_unit(d, metric)
        if y is None:
            d.fill_diagonal_(0)
    return d


@_pairwise.register_fake
def _(x: Tensor, y: Tensor | None, metric: str) -> Tensor:
    return x.new_empty(x.shape[0], (x if y is None else y).shape[0])


@torch.library.custom_op(
    "vicinal::pairwise_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor d, Tensor x, Tensor? y, str metric) -> (Tensor, Tensor)",
)
def _pairwise_backward(
    grad: Tensor, d: Tensor, x: Tensor, y: Tensor | None, metric: str
) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        a, b = center(x, y)
        # As a function of d²: ∂d²/∂a = 2(a - b), ∂√d²/∂a = (a - b)/√d², half for the cosine.
        if metric == "euclidean":
            g = (grad / d).masked_fill_(d == 0, 0)
        else:
            g = grad * (1.0 if metric == "cosine" else 2.0)
        squared, other = squared_unit(d, metric), x if y is None else y
        if y is None:
            g.fill_diagonal_(0)
            squared = squared.clone().fill_diagonal_(torch.inf)
        pairs = near_pairs(
            squared, squared_lengths(a, x, metric), squared_lengths(b, other, metric)
        )
        ga, gb = near_gradient(g, pairs, x, other)
        ga.add_(a * g.sum(1)[:, None]).addmm_(g, b, alpha=-1)
        gb.add_(b * g.sum(0)[:, None]).addmm_(g.T, a, alpha=-1)
    return (ga.add_(gb), ga.new_empty(0)) if y is None else (ga, gb)


@_pairwise_backward.register_fake
def _(grad: Tensor, d: Tensor, x: Tensor, y: Tensor | None, metric: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if y is None else torch.empty_like(y)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # torch's own record
    x, y, ctx.metric = inputs
    ctx.self_distances = y is None
    ctx.save_for_backward(output, x, *(() if y is None else (y,)))


def _gradient(ctx, grad):  # type: ignore[no-untyped-def]
    d, x, *rest = ctx.saved_tensors
    y = rest[0] if rest else None
    if is_derived_again(grad):
        return *derived(lambda x, y: ordinary_distances(x, y, ctx.metric), [x, y], [grad]), None
    gx, gy = _pairwise_backward(grad, d, x, y, ctx.metric)
    return gx, None if ctx.self_distances else gy, None


_pairwise.register_autograd(_gradient, setup_context=_remember)


# ------------------------------------------------------------------ near pairs


def center(x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
    if y is None:
        a = x - x.mean(0)
        return a, a
    shift = (x.sum(0) + y.sum(0)) / (len(x) + len(y))
    return x - shift, y - shift


def repair_near(d2: Tensor, x: Tensor, y: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
    """Recompute in place the squared distances that rounding has spoiled; say which (pairs, 2).

    ``x``, ``y`` are the rows as they came (centering rounds, and near rows differ exactly);
    ``x2``, ``y2`` the squared lengths that went into ``d2``. Entries of +inf are left alone.
    """
    pairs = near_pairs(d2, x2, y2)
    i, j = pairs.unbind(1)
    if len(pairs) * 8 > d2.numel():  # so many that every difference is cheaper than gathering
        direct = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        d2[i, j] = direct.square_()[i, j]
        return pairs
    for p, q in _gathers(pairs, x):
        d2[p, q] = (x[p] - y[q]).square_().sum(1)
    return pairs


def near_gradient(g: Tensor, pairs: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j g_ij (x_i - y_j) and its mirror over ``pairs``, which are then zeroed in ``g``.

    A weight of 1/d times a difference that rounding has spoiled is noise of size eps·‖x‖/d, so
    near pairs take their difference directly.
    """
    gx, gy = torch.zeros_like(x), torch.zeros_like(y)
    for i, j in _gathers(pairs, x):
        step = (x[i] - y[j]).mul_(g[i, j, None])
        gx.index_add_(0, i, step)
        gy.index_add_(0, j, step, alpha=-1)
        g[i, j] = 0
    return gx, gy


def near_pairs(d2: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
    """Where d² < c·eps·(‖x‖² + ‖y‖²): the (pairs, 2) positions a product cannot resolve."""
    share = NEAR * torch.finfo(d2.dtype).eps
    if not bool(d2.amin() < share * (x2.max() + y2.max())):  # one cheap pass, mostly the only one
        return torch.empty(0, 2, dtype=torch.long, device=d2.device)
    return (d2 < share * (x2[:, None] + y2)).nonzero()


def _gathers(pairs: Tensor, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(p[:, 0], p[:, 1]) for p in pairs.split(max(_GATHER // rows.shape[1], 1))]
