r"""How much weight surrounds each point, and how much of it is of its own class.

For point :math:`i` with weights :math:`w_{ij} = e^{-d_{ij}/T}` and labels :math:`y`:

.. math::
   \text{all}_i = \log \sum_{j \neq i} w_{ij}, \qquad
   \text{own}_i = \log \sum_{j \neq i} w_{ij}\,[y_i = y_j], \qquad
   \text{other}_i = \log \sum_{j \neq i} w_{ij}\,[y_i \neq y_j]

Soft labels :math:`\alpha` agree in part: :math:`\langle\alpha_i, \alpha_j\rangle` takes the place
of the bracket. Beyond a small batch nothing of size n × n is kept: weights are formed tile by tile,
added up, and formed again in the backward pass, each unordered pair once. The result is the exact
log-sum-exp at every scale and temperature.
"""

from __future__ import annotations

from typing import NamedTuple

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
)
from vicinal.neighbors.distances import METRICS, unit_rows
from vicinal.neighbors.tiles.op import dense_log_masses, tiled_log_masses

Labels = Int[Tensor, " n"] | Float[Tensor, "n c"]

TILE = 512
DENSE_BELOW = 512  # rows; as many are one block


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

    Differentiable (once) in ``x``, ``reference`` and ``temperature``; memory grows with n, not n².
    An empty mass is -inf and has no gradient. With ``reference`` nothing is left out: a row that is
    in both meets itself.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> masses = log_masses(x, torch.tensor([0, 0, 1]))
    >>> masses.own  # -1², -1², and nobody
    tensor([-1., -1., -inf])
    >>> masses.other
    tensor([-9.0000, -4.0000, -3.9933])
    """
    precise = precise_log_masses(x, labels, temperature, metric, reference, reference_labels)
    dtype = torch.float64 if torch.float64 in (x.dtype, getattr(reference, "dtype", None)) else None
    return LogMasses(*(mass.to(dtype or torch.float32) for mass in precise))


def precise_log_masses(
    x: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    metric: str,
    reference: Tensor | None,
    reference_labels: Tensor | None,
) -> LogMasses:
    """:func:`log_masses` in float64, for those who subtract them: large ones cancel in float32."""
    check_choice(metric, "metric", METRICS)
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
        _check_same_kind(labels, reference_labels)
    small = max(x.shape[0], (x if reference is None else reference).shape[0]) <= DENSE_BELOW
    tile = 0 if small else TILE
    return masses_by_tiles(x, labels, reference, reference_labels, temperature, metric, tile)


def masses_by_tiles(
    x: Tensor,
    labels: Tensor,
    reference: Tensor | None,
    reference_labels: Tensor | None,
    temperature: float | Tensor,
    metric: str,
    tile: int,
) -> LogMasses:
    """:func:`precise_log_masses` of checked inputs; ``tile`` 0 takes all pairs at once.

    Without a reference, ``reference_labels`` may hold the columns that soft labels are multiplied
    with, for an agreement other than their inner product.
    """
    t = torch.as_tensor(temperature, dtype=torch.float64, device=x.device)
    if t.numel() != 1:
        raise InputError(f"`temperature` must be one number, got shape {tuple(t.shape)}.")
    if not torch.compiler.is_compiling():
        check_positive(float(t.detach()), "temperature")
    if metric == "cosine":
        x, reference = unit_rows(x), None if reference is None else unit_rows(reference)
    arguments = x, reference, labels, reference_labels, t.reshape(()), metric
    if tile == 0 and not torch.compiler.is_compiling():
        return LogMasses(*dense_log_masses(*arguments))
    return LogMasses(*tiled_log_masses(*arguments, tile or TILE))


def _labels(labels: Tensor, name: str, x: Tensor) -> Tensor:
    labels = torch.as_tensor(labels, device=x.device)
    check_labels(labels, name, len(x))
    if labels.ndim == 1:
        return labels.long()
    if not torch.compiler.is_compiling():
        check_distributions(labels, name)
    return labels.detach().to(x.dtype)


def _check_same_kind(labels: Tensor, reference_labels: Tensor) -> None:
    if labels.shape[1:] != reference_labels.shape[1:]:
        raise InputError(
            "`labels` and `reference_labels` must be of one kind, got shapes "
            f"{tuple(labels.shape)} and {tuple(reference_labels.shape)}. Pass integers for both, "
            "or soft labels with the same classes for both."
        )
