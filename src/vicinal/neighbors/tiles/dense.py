r"""Small batches whole, in a handful of calls.

Below a few hundred rows the time goes into calls, not into arithmetic. :class:`DenseMasses`
keeps the one tile of pairs for the backward pass. Where only the own class's share counts
(:func:`small_surprise`), even fewer calls do:

.. math::
   -\log \frac{\text{own}_i}{\text{own}_i + \text{other}_i}
   = \log\Bigl(1 + \frac{\sum_j p_{ij}\,[y_i \neq y_j]}{\sum_j p_{ij}\,[y_i = y_j]}\Bigr),
   \qquad p_i = \operatorname{softmax}_{j \neq i}(-d_{ij}/T)

with the slope :math:`p_{ij}` at a pair of two classes and minus the ratio times :math:`p_{ij}` at
one of the same: nothing cancels where the share is near one. Soft labels put their agreement
:math:`\langle\alpha_i, \alpha_j\rangle` in the place of the bracket. Batches that need more care
(near duplicates) are left to the masses themselves.

Where the gradient itself is to be differentiated, or under ``torch.func``, batches of any size are
formed whole as one plain formula (:func:`plain_log_masses`), with :math:`a_{ij}` how far two labels
agree, and :math:`1 - a_{ij}` for the others:

.. math:: \text{own}_i = \log \sum_{j \neq i} e^{-d_{ij}/T + \log a_{ij}}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vicinal.neighbors.derivatives import derived, is_derived_again
from vicinal.neighbors.distances import NEAR, compared_rows, ordinary_distances
from vicinal.neighbors.mass import agreement, own_log_mass
from vicinal.neighbors.product import product
from vicinal.neighbors.tiles.tile import (
    Given,
    Pairing,
    Sums,
    Upstream,
    add_sums,
    gradients,
    shares,
    tile,
    tile_masses,
    tile_slopes,
)

SMALL = 512  # rows; as many are one tile
WIDE = 1024  # columns from which products are what costs
STRIPE, COLUMNS = 128, 4096  # rows and columns taken at once there
PRODUCTS = ("sqeuclidean", "cosine")  # metrics whose log-weight is a product


# ------------------------------------------------------------------ the own class's share


class Surprise(NamedTuple):
    """-log of the own class's share, 0 for rows without a peer; who has one (None: everybody)."""

    loss: Float[Tensor, " n"] | Float[Tensor, ""]  # a scalar where the mean was asked for
    valid: Bool[Tensor, " n"] | None


def surprise_of(own: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """Of log-masses: log(1 + other / own), as log(all / own) cancels where classes are apart."""
    valid = own != -torch.inf  # NaN counts: a wrong batch must show
    lead = torch.where(valid, own - other, 0.0)
    return torch.where(valid, -F.logsigmoid(lead), 0.0), valid


class _Pairs(NamedTuple):
    slopes: Tensor  # (n, n) ∂loss_i / ∂log-weight_ij
    rows: Tensor  # (n, d) centered, or not far from it
    scale: float  # -log w = scale · ‖a - b‖², over the anchors that a mean divides by


def small_surprise(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    temperature: float | Tensor,
    metric: str,
    *,
    mean: bool = False,
) -> Surprise | None:
    """Surprise of each row of a small batch, or None: what is not plain is left to the masses.

    Wrong inputs give None too; the general way has the words for them. ``mean``: that over the rows
    with a peer instead (0 if there is none). It saves autograd a step, a tenth of the time of 16.

    >>> x, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])
    >>> small_surprise(x, labels, 1.0, "sqeuclidean")
    Surprise(loss=tensor([0.0486, 0.6931, 0.0000]), valid=tensor([ True,  True, False]))
    """
    learned = temperature if isinstance(temperature, Tensor) else None
    t = float(learned.detach()) if learned is not None and learned.numel() == 1 else temperature
    if not (isinstance(t, (int, float)) and 0 < t < math.inf and _is_plain(x, labels, metric)):
        return None
    x, scale = compared_rows(x, metric), (0.5 if metric == "cosine" else 1.0) / t
    codes = labels.detach().to(x.device, torch.long if labels.ndim == 1 else x.dtype)
    found = _find(x.detach(), codes, scale)
    if found is None:
        return None
    (loss, valid), pairs = found
    if mean:
        count = len(x) if valid is None else max(int(valid.sum()), 1)
        loss, pairs = loss.sum().div_(count), pairs._replace(scale=scale / count)

    def plain(x: Tensor, learned: Tensor | None) -> Tensor:
        by = torch.tensor(t, dtype=torch.float64) if learned is None else learned
        masses = plain_log_masses(Given(x, None, codes, None, by, metric, True))
        loss, valid = surprise_of(*masses)
        return (loss.sum() / valid.sum().clamp_min(1) if mean else loss).to(x.dtype)

    return Surprise(_Attached.apply(x, learned, (loss,), pairs, plain), valid)


def _is_plain(x: Tensor, labels: object, metric: str) -> bool:
    if not (isinstance(labels, Tensor) and labels.ndim in (1, 2) and 2 <= len(x) <= SMALL):
        return False
    soft = labels.ndim == 2
    if len(labels) != len(x) or labels.is_floating_point() is not soft or metric not in PRODUCTS:
        return False
    if soft and not bool(((labels >= 0).all(1) & ((labels.sum(1) - 1).abs() < 1e-3)).all()):
        return False
    # A zero row is at cosine distance 1 from all: no product says so. Next to zero, gradients grow
    # beyond what a float holds.
    tiny = torch.finfo(torch.float32).tiny
    return metric != "cosine" or bool((x.detach().abs().amax(1) > tiny).all())


def _find(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"] | Float[Tensor, "n c"], scale: float
) -> tuple[Surprise, _Pairs] | None:
    mean = x.mean(0)
    if x.shape[1] < WIDE:
        rows = x - mean
        squares, products = torch.linalg.vecdot(rows, rows) * scale, product(rows, rows)
    else:
        products = _half_of_the_products(x, mean)
        squares = products.diagonal() * scale
        # The slopes of a row add up to 0: its gradient needs no copy less a mean that is not large.
        large = float(mean.square().sum()) * scale > 4 * float(squares.max())
        rows = x - mean if large else x
    # s = 2k a·b - k‖b‖² - k‖a‖²
    s = products.mul_(2 * scale).sub_(squares).sub_(squares[:, None])
    s.fill_diagonal_(-torch.inf)
    info = torch.finfo(x.dtype)
    # Below a reach of 8, a product's error is a few eps of a log-weight, however near the rows.
    reach = 2 * float(squares.max())
    # -s may be twice the reach: beyond what a float holds, all of a row's neighbors would be lost.
    if not 2 * reach < info.max or (reach > 8 and float(s.amax()) > -NEAR * info.eps * reach):
        return None
    weights = torch.softmax(s, 1)
    same = shares(labels, labels, x.dtype)
    own = weights * same
    slopes = weights.sub_(own)
    mass = own.sum(1)
    ratio = slopes.sum(1).div_(mass)
    smallest = info.tiny / info.eps * len(x)
    valid = far = None
    if float(mass.amin()) < smallest:
        valid = same.fill_diagonal_(0).sum(1) > 0
        far = valid & (mass < smallest)
        ratio.masked_fill_(~valid, 0)
        slopes.mul_(valid[:, None])
    slopes.addcmul_(own, ratio[:, None], value=-1)
    loss = ratio.log1p_()
    if far is not None and bool(far.any()):
        loss[far], slopes[far] = _of_far_rows(s[far], same[far])
    return Surprise(loss, valid), _Pairs(slopes, rows, scale)


def _of_far_rows(s: Float[Tensor, "m n"], same: Float[Tensor, "m n"]) -> tuple[Tensor, Tensor]:
    """Loss and slopes of rows so far from their peers that one softmax sees only the others."""
    kinds = torch.stack([same, 1 - same]).log_().double().add_(s)
    (own, other), (to_own, to_other) = kinds.logsumexp(2), kinds.softmax(2)
    return (other - own).to(s.dtype), (to_other - to_own).to(s.dtype)


def _half_of_the_products(x: Float[Tensor, "n d"], mean: Tensor) -> Float[Tensor, "n n"]:
    """Products of all pairs of ``x - mean``: a stripe of rows with those from it on, mirrored.

    Some columns at a time: a copy of them all would be more than a processor's cache.
    """
    found = x.new_zeros(len(x), len(x))
    stripes = [slice(i, i + STRIPE) for i in range(0, len(x), STRIPE)]
    for part, shift in zip(x.split(COLUMNS, 1), mean.split(COLUMNS), strict=True):
        rows = part - shift
        for some in stripes:
            found[some, some.start :] += product(rows[some], rows[some.start :])
    for some in stripes:
        found[some.stop :, some] = found[some, some.stop :].T
    return found


class _Attached(torch.autograd.Function):
    """Hands out what was found, and its gradient in the rows and in a learned temperature."""

    @staticmethod
    def forward(ctx, x, learned, found, pairs, plain):  # type: ignore[no-untyped-def]
        ctx.pairs, ctx.plain = pairs, plain
        ctx.save_for_backward(x, learned)  # also to be told if they change
        return found[0]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, t = ctx.saved_tensors
        if is_derived_again(grad):
            return *derived(ctx.plain, [x, t], [grad]), None, None, None
        gx = _gradient(ctx.pairs, grad)
        if not ctx.needs_input_grad[1]:
            return gx, None, None, None, None
        # A function of a/√T alone: T ∂/∂T = -½ Σ ⟨a, ∂/∂a⟩ (Euler's theorem).
        slope = (ctx.pairs.rows * gx).sum(dtype=torch.float64) * -0.5
        return gx, slope.to(t).reshape(t.shape) / t.detach(), None, None, None


def _gradient(pairs: _Pairs, grad: Tensor) -> Float[Tensor, "n d"]:
    if torch.is_autocast_enabled(grad.device.type):  # asked first: to switch it off takes its time
        with torch.autocast(grad.device.type, enabled=False):
            return _gradient(pairs, grad)
    slopes, rows, scale = pairs
    # ∂/∂a_i = -2k Σ_j (M_ij + M_ji) (a_i - a_j)
    m = slopes * (grad * (2 * scale)).reshape(-1, 1)
    m = m + m.T
    if rows.shape[1] >= WIDE:  # the rows themselves among the sum: they are read once less
        m.diagonal().sub_(m.sum(1))
        return product(m, rows.T)
    return product(m, rows.T).addcmul_(rows, m.sum(1, keepdim=True), value=-1)


# ------------------------------------------------------------------ the masses themselves


class DenseMasses(torch.autograd.Function):
    """(own, other) log-masses of a small batch, float64: no operator dispatch, log-weights kept."""

    @staticmethod
    def forward(ctx, *args):  # type: ignore[no-untyped-def]  # the fields of Given
        given = Given(*args)
        with torch.autocast(given.x.device.type, enabled=False):
            left, right, kernel, selfless = pairing = Pairing.of(given)
            everyone = torch.arange(len(left.rows), device=left.rows.device)
            pairs = tile(left, right, kernel, everyone if selfless else None)
            logs = tile_masses(pairs, left, right)
        ctx.pairing, ctx.pairs, ctx.logs, ctx.options = pairing, pairs, logs, given[5:]
        ctx.save_for_backward(*given[:5])  # also to be told if they change
        return logs.clone().unbind(0)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        given = Given(*ctx.saved_tensors, *ctx.options)
        if is_derived_again(grads[0]):
            gx, gy, slope = derived_log_masses(grads, given)
            return gx, gy, None, None, slope, None, None
        left, right = ctx.pairing[:2]
        with torch.autocast(given.x.device.type, enabled=False):
            upstream = Upstream.of(grads, ctx.logs, given.x.dtype)
            m = tile_slopes(ctx.pairs.log_weights, left, right, upstream)
            sums = [Sums.zeros(left)] if right is left else [Sums.zeros(left), Sums.zeros(right)]
            m = m + m.T if right is left else m
            add_sums(m, ctx.pairs, left, right, sums[0], None if right is left else sums[1])
            gx, gy, slope = gradients(sums, ctx.pairing, ctx.needs_input_grad[4])
        return gx, gy, None, None, slope, None, None


# ------------------------------------------------------------------ one plain formula


def plain_log_masses(given: Given) -> tuple[Tensor, Tensor]:
    """(own, other) log-masses, float64.

    >>> x, labels = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1])
    >>> given = Given(x, None, labels, None, torch.tensor(1.0), "sqeuclidean", True)
    >>> plain_log_masses(given)[0].tolist()
    [-1.0, -1.0, -inf]
    """
    x, y, x_labels, y_labels, t, metric, selfless = given
    s = -ordinary_distances(x, y, metric).double() / t
    if selfless:
        s = s.masked_fill(torch.eye(*s.shape, dtype=torch.bool, device=s.device), -torch.inf)
    same = agreement(x_labels, x_labels if y_labels is None else y_labels)
    apart = ~same if same.dtype == torch.bool else 1 - same
    return own_log_mass(s, same), own_log_mass(s, apart)


def derived_log_masses(upstream: Sequence[Tensor | None], given: Given) -> list[Tensor | None]:
    """Gradients in x, y and t of what reaches the two log-masses, differentiable again."""

    def masses(x: Tensor, y: Tensor | None, t: Tensor) -> tuple[Tensor, Tensor]:
        return plain_log_masses(given._replace(x=x, y=y, t=t))

    return derived(masses, [given.x, given.y, given.t], upstream)
