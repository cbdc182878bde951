r"""How much weight surrounds each point, and how much of it is of its own class.

For point :math:`i` with weights :math:`w_{ij} = e^{-d_{ij}/T}` and labels :math:`y`:

.. math::
   \text{all}_i = \log \sum_{j \neq i} w_{ij}, \qquad
   \text{own}_i = \log \sum_{j \neq i} w_{ij}\,[y_i = y_j], \qquad
   \text{other}_i = \log \sum_{j \neq i} w_{ij}\,[y_i \neq y_j]

All is own and other together, so these two are what is computed.
Soft labels :math:`\alpha` agree in part: :math:`\langle\alpha_i, \alpha_j\rangle` takes the place
of the bracket. Beyond a small batch nothing of size n × n is kept: weights are formed tile by tile,
added up, and formed again in the backward pass, each unordered pair once. The result is the exact
log-sum-exp at every scale and temperature. The walks look at the data (which rows are near, which
masses fit the shift), so torch.compile takes them as one operator, ``vicinal::log_masses``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    check_choice,
    check_distributions,
    check_labels,
    check_positive,
    check_same_width,
    is_traced,
    label_tensor,
)
from vicinal.neighbors.derivatives import is_derived_again, is_functional
from vicinal.neighbors.distances import METRICS, compared_rows
from vicinal.neighbors.mass import log_mass
from vicinal.neighbors.tiles.dense import (
    SMALL,
    DenseMasses,
    derived_log_masses,
    plain_log_masses,
)
from vicinal.neighbors.tiles.tile import Given, Pairing, Upstream, gradients
from vicinal.neighbors.tiles.walk import (
    stream_masses,
    stream_sums,
    symmetric_masses,
    symmetric_sums,
)

Labels = Int[Tensor, " n"] | Float[Tensor, "n c"]

TILE = 512


class LogMasses(NamedTuple):
    """log Σ w over all others, over the own class, over the other classes; -inf if empty."""

    all: Float[Tensor, " n"]
    own: Float[Tensor, " n"]
    other: Float[Tensor, " n"]


def log_masses(
    x: Float[Tensor, "n d"],
    labels: Labels,
    *,
    temperature: float | Tensor = 1.0,
    metric: str = "sqeuclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Labels | None = None,
) -> LogMasses:
    """Log-masses around each row of ``x`` among the other rows, or among all rows of ``reference``.

    Differentiable to any order in ``x``, ``reference`` and ``temperature``. Memory grows with n,
    not n², but for derivatives beyond the first. An empty mass is -inf and has no gradient.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    temperature:
        T of the weights :math:`e^{-d/T}`: a number, or a tensor that may learn.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    reference:
        Other rows ``(m, d)`` to look among. Nothing is left out there: a row that is in both meets
        itself.
    reference_labels:
        Their labels, of the kind of ``labels``.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> masses = log_masses(x, torch.tensor([0, 0, 1]))
    >>> masses.own  # -1², -1², and nobody
    tensor([-1., -1., -inf])
    >>> masses.other
    tensor([-9.0000, -4.0000, -3.9933])
    """
    own, other = precise_log_masses(x, labels, temperature, metric, reference, reference_labels)
    both = log_mass(torch.stack([own, other], 1))
    dtype = torch.float64 if torch.float64 in (x.dtype, getattr(reference, "dtype", None)) else None
    return LogMasses(*(mass.to(dtype or torch.float32) for mass in (both, own, other)))


def precise_log_masses(
    x: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    metric: str,
    reference: Tensor | None,
    reference_labels: Tensor | None,
    exclude_self: bool = False,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(own, other) of :func:`log_masses`, in float64: large ones that are subtracted would cancel.

    ``exclude_self``: the reference begins with the rows themselves, and nobody meets himself.
    ``tile``: go by tiles of so many rows; 0: all at once.
    """
    check_choice(metric, "metric", METRICS)
    check_positive(temperature, "temperature")
    x = as_matrix(x, "x", finite=False)
    labels = _labels(labels, "labels", x)
    if (reference is None) != (reference_labels is None):
        raise InputError("`reference` and `reference_labels` go together: pass both or neither.")
    if reference is not None and reference_labels is not None:
        reference = as_matrix(reference, "reference", finite=False)
        check_same_width(x, reference, "x", "reference")
        dtype = torch.promote_types(x.dtype, reference.dtype)
        x, reference = x.to(dtype), reference.to(dtype)
        reference_labels = _labels(reference_labels, "reference_labels", reference)
        check_same_kind(labels, reference_labels)
    t = torch.as_tensor(temperature, dtype=torch.float64, device=x.device)
    if t.numel() != 1:
        raise InputError(f"`temperature` must be one number, got shape {tuple(t.shape)}.")
    x, y = compared_rows(x, metric), None if reference is None else compared_rows(reference, metric)
    if tile is None:
        tile = 0 if max(len(x), len(x if y is None else y)) <= SMALL else TILE
    selfless = y is None or exclude_self
    given = Given(x, y, labels, reference_labels, t.reshape(()), metric, selfless)
    if is_functional():
        return plain_log_masses(given)
    if tile == 0 and not is_traced():
        return DenseMasses.apply(*given)
    if y is not None or labels.ndim == 2:
        return _tiled(tile or TILE, *given)
    # Rows of a class side by side: most tiles are of one kind.
    ascending, order = labels.sort(stable=True)
    given = given._replace(x=x.index_select(0, order), x_labels=ranks(ascending).to(x.dtype))
    own, other = _tiled(tile or TILE, *given)
    place = order.argsort()
    return own[place], other[place]


def ranks(ascending: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Sorted integers as 0, 1, …: small ones are exact as floats, which compare quicker."""
    return torch.cat([torch.zeros_like(ascending[:1]), (ascending.diff() != 0).cumsum(0)])


def _labels(labels: Tensor, name: str, x: Tensor) -> Tensor:
    labels = check_labels(label_tensor(labels, name).to(x.device), name, len(x))
    if labels.ndim == 1:
        return labels.long()
    if not is_traced():
        check_distributions(labels, name)
    return labels.detach().to(x.dtype)


def check_same_kind(labels: Tensor, reference_labels: Tensor) -> None:
    if labels.shape[1:] != reference_labels.shape[1:]:
        raise InputError(
            "`labels` and `reference_labels` must be of one kind, got shapes "
            f"{tuple(labels.shape)} and {tuple(reference_labels.shape)}. Pass integers for both, "
            "or soft labels with the same classes for both."
        )


# ------------------------------------------------------------------ the operator

_GIVEN = (
    "Tensor x, Tensor? y, Tensor x_labels, Tensor? y_labels, Tensor t, str metric, bool selfless"
)


@torch.library.custom_op(
    "vicinal::log_masses",
    mutates_args=(),
    schema=f"(int tile, {_GIVEN}) -> (Tensor, Tensor)",
)
def _tiled(tile: int, *given: Any) -> tuple[Tensor, Tensor]:
    """(own, other) log-masses, float64; without a reference hard labels ascend."""
    with torch.no_grad(), torch.autocast(given[0].device.type, enabled=False):
        pairing = Pairing.of(Given(*given))
        alone = pairing.left is pairing.right
        logs = symmetric_masses(pairing, tile) if alone else stream_masses(pairing)
    return logs[0].clone(), logs[1].clone()


@torch.library.custom_op(
    "vicinal::log_masses_backward",
    mutates_args=(),
    schema="(Tensor[] grads, Tensor[] masses, bool learned, int tile, "
    f"{_GIVEN}) -> (Tensor, Tensor, Tensor)",
)
def _tiled_backward(
    grads: list[Tensor], masses: list[Tensor], learned: bool, tile: int, *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    x, t = given[0], given[4]
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        upstream = Upstream.of(grads, torch.stack(masses), x.dtype)
        pairing = Pairing.of(Given(*given))
        alone = pairing.left is pairing.right
        sums = symmetric_sums(pairing, tile, upstream) if alone else stream_sums(pairing, upstream)
        gx, gy, slope = gradients(sums, pairing, learned)
    return gx, x.new_empty(0) if gy is None else gy, t.new_zeros(()) if slope is None else slope


@_tiled.register_fake
def _(tile: int, x: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    own, other = (x.new_empty(len(x), dtype=torch.float64) for _ in range(2))
    return own, other


@_tiled_backward.register_fake
def _(
    grads: object, masses: object, learned: bool, tile: int, *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    x, y, t = given[0], given[1], given[4]
    gy = x.new_empty(0) if y is None else torch.empty_like(y)
    return torch.empty_like(x), gy, torch.empty_like(t)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # torch's own record
    ctx.tile, *tensors, metric, selfless = inputs
    ctx.options = metric, selfless
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, *grads):  # type: ignore[no-untyped-def]
    masses, tensors = ctx.saved_tensors[:2], ctx.saved_tensors[2:]
    given, learned = Given(*tensors, *ctx.options), ctx.needs_input_grad[5]
    if is_derived_again(grads[0]):
        gx, gy, slope = derived_log_masses(grads, given)
    else:
        gx, gy, slope = _tiled_backward(list(grads), list(masses), learned, ctx.tile, *given)
        gy, slope = None if given.y is None else gy, slope if learned else None
    return None, gx, gy, None, None, slope, None, None


_tiled.register_autograd(_backward, setup_context=_remember)
