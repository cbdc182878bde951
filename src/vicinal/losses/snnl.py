r"""Soft nearest neighbor loss: how entangled are the classes of a batch?

.. math::
   \ell = -\frac{1}{|V|} \sum_{i \in V} \log
   \frac{\sum_{j \neq i,\, y_j = y_i} e^{-d_{ij}/T}}{\sum_{k \neq i} e^{-d_{ik}/T}}

(Frosst et al. 2019), over the anchors V that have a peer. Low: points sit by their own class. High:
classes are spread over each other; at large T the loss is that of chance. It is also the
leave-one-out log-loss of a NED classifier. Soft labels weigh the numerator by
:math:`\langle\alpha_i, \alpha_j\rangle`.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vicinal.checks import InputError, check_choice, is_traced
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.tiles.dense import Surprise, small_surprise, surprise_of
from vicinal.neighbors.tiles.masses import Labels, precise_log_masses

from .conventions import (
    REDUCTIONS,
    as_rows,
    check_own_rows,
    full_precision,
    keep_valid,
    leaves_range,
)
from .schedules import (
    Relative,
    Schedule,
    check_refits,
    check_temperature,
    mean_distance,
    reached_temperature,
)

ENTANGLE = ("min", "max")


class SoftNearestNeighborTerms(NamedTuple):
    """The loss of each anchor, 0 where it has no peer, and which anchors have one."""

    loss: Float[Tensor, " n"]
    valid: Bool[Tensor, " n"]


def soft_nearest_neighbor_terms(
    x: Float[Tensor, "n d"],
    labels: Labels,
    *,
    temperature: float | Tensor = 1.0,
    metric: str = "sqeuclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Labels | None = None,
) -> SoftNearestNeighborTerms:
    """-log of the own class's share of the weight around each anchor, and whether it has a peer.

    Parameters
    ----------
    x, labels, temperature, metric, reference, reference_labels:
        As in :func:`soft_nearest_neighbor_loss`.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> soft_nearest_neighbor_terms(x, torch.tensor([0, 0, 1])).valid
    tensor([ True,  True, False])
    """
    references = reference, reference_labels
    loss, valid = _surprise(x, labels, temperature, metric, references, reduction="none")
    if valid is None:
        valid = torch.ones_like(loss, dtype=torch.bool)
    return SoftNearestNeighborTerms(loss, valid)


@full_precision
def _surprise(
    x: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    metric: str,
    references: tuple[Tensor | None, Tensor | None],
    weight: Tensor | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Surprise:
    """The loss, and which anchors have a peer (None: every one)."""
    x, mean = as_rows(x, "x"), weight is None and reduction == "mean"
    alone = not exclude_self and all(reference is None for reference in references)
    if alone and not is_traced():
        plain = small_surprise(x, labels, temperature, metric, mean=mean)
        if plain is not None:
            return plain if mean else _reduced(*plain, weight, reduction)
    if exclude_self:
        check_own_rows(len(x), references[0])
    far = any(leaves_range(t) for t in (x, references[0]) if t is not None)
    rows = x.double() if far else x  # and the reference with it
    masses = precise_log_masses(rows, labels, temperature, metric, *references, exclude_self)
    loss, valid = surprise_of(*masses)
    return _reduced(keep_valid(loss.to(x.dtype), valid, x), valid, weight, reduction)


def soft_nearest_neighbor_loss(
    x: Float[Tensor, "n d"],
    labels: Labels,
    *,
    temperature: float | Tensor = 1.0,
    metric: str = "sqeuclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Labels | None = None,
    weight: Float[Tensor, " n"] | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Soft nearest neighbor loss (Frosst et al. 2019), natural log.

    Exact at any scale, in memory linear in n.

    Parameters
    ----------
    x:
        Rows ``(n, d)`` of any layer.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    temperature:
        T of the weights: a number, or a tensor that may learn.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    reference, reference_labels:
        Other rows to look among, instead of the batch's own; nothing is left out there.
    weight:
        One number for each anchor; the mean divides by the weight of those that have a peer.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    reduction:
        ``"mean"`` over the anchors that have a peer (0 if none has), ``"sum"`` or ``"none"``.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> soft_nearest_neighbor_loss(x, torch.tensor([0, 0, 1, 1]))
    tensor(0.3833)
    """
    check_choice(reduction, "reduction", REDUCTIONS)
    among = reference, reference_labels
    return _surprise(x, labels, temperature, metric, among, weight, exclude_self, reduction).loss


def _weight(weight: Tensor, loss: Tensor) -> Tensor:
    weight = torch.as_tensor(weight, dtype=loss.dtype, device=loss.device)
    if weight.shape != loss.shape:
        raise InputError(
            f"`weight` must hold one number for each of the {len(loss)} rows, got shape "
            f"{tuple(weight.shape)}."
        )
    if not is_traced() and bool((weight < 0).any()):
        raise InputError("`weight` has a negative entry. Weights of anchors must be 0 or more.")
    return weight


def _reduced(loss: Tensor, valid: Tensor | None, weight: Tensor | None, reduction: str) -> Surprise:
    counted = torch.ones_like(loss) if valid is None else valid.to(loss.dtype)
    if weight is not None:
        weight = _weight(weight, loss)
        loss, counted = loss * weight, counted * weight
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        total = counted.sum()
        loss = loss / total.masked_fill(total == 0, 1)
    return Surprise(loss, valid)


class SoftNearestNeighborLoss(nn.Module):
    r"""Module form of :func:`soft_nearest_neighbor_loss`, with a temperature that may move.

    Parameters
    ----------
    temperature:
        A number, a tensor or parameter of yours, a schedule ``epoch -> T``
        (:mod:`vicinal.losses.schedules`; call :meth:`set_epoch` at the start of each epoch), or
        ``"optimal"``: the minimum over T, as a constant (the derivative through an optimum is
        zero).
    learn_temperature:
        T is a parameter, ``exp(log_temperature)``.
    entangle:
        ``"max"`` returns the negative loss, to *raise* entanglement. A learned T minimizes the loss
        even then (its gradient is reversed): the paper's definition is a minimum over T, and a T
        that maximized would run to 0 and the loss to infinity.
    metric, reduction:
        As in :func:`soft_nearest_neighbor_loss`.
    every:
        Fit an ``"optimal"`` T at every so many calls and keep it between them: a fit costs more
        than a training step. (A compiled loss fits at each call.)
    floor:
        The least ``"optimal"`` T, in mean distances of the batch. Where classes are apart the
        optimum runs to 0, and loss and gradient with it; raise it to entangle from such a start.

    >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 1])
    >>> SoftNearestNeighborLoss(entangle="max")(x, y)
    tensor(-0.3833)
    """

    epoch: Tensor

    def __init__(
        self,
        temperature: float | Tensor | Schedule | str = 1.0,
        learn_temperature: bool = False,
        entangle: str = "min",
        metric: str = "sqeuclidean",
        *,
        reduction: str = "mean",
        every: int = 1,
        floor: float = 0.01,
    ) -> None:
        super().__init__()
        check_refits(every, floor)
        check_choice(entangle, "entangle", ENTANGLE)
        check_choice(metric, "metric", METRICS)
        check_choice(reduction, "reduction", REDUCTIONS)
        self.entangle, self.metric, self.reduction = entangle, metric, reduction
        self.register_buffer("epoch", torch.zeros((), dtype=torch.float64))
        self.every, self.floor = every, floor
        self._calls, self._fitted = 0, math.nan
        self.log_temperature: nn.Parameter | None = None
        self._warned = False
        check_temperature(temperature)
        if learn_temperature:
            if callable(temperature) or isinstance(temperature, str):
                raise InputError(
                    f"`learn_temperature` needs a number to start from, got {temperature!r}. "
                    "Pass temperature=1.0, or learn_temperature=False."
                )
            self.log_temperature = nn.Parameter(torch.tensor(math.log(float(temperature))))
        self.temperature = temperature

    def set_epoch(self, epoch: float) -> None:
        """Tell a schedule where training is; saved with ``state_dict``."""
        self.epoch.fill_(epoch)

    def current_temperature(self, x: Tensor, labels: Tensor) -> float | Tensor:
        """T of this call, with the gradient that a learned one is to receive."""
        t: float | Tensor | Schedule | str = self.temperature
        if self.log_temperature is not None:
            t = self.log_temperature.exp()
        elif t == "optimal":
            return self._optimal(x.detach(), labels)
        elif callable(t) and not isinstance(t, Tensor):
            scale = mean_distance(x, self.metric) if isinstance(t, Relative) else 1.0
            return t(float(self.epoch)) * scale
        assert isinstance(t, (int, float, Tensor))
        if self.entangle == "max" and isinstance(t, Tensor):
            return 2 * t.detach() - t  # the value of t, its gradient reversed
        return t

    def _optimal(self, x: Tensor, labels: Tensor) -> float | Tensor:
        if is_traced():
            return reached_temperature(x, labels, self.metric, self.floor)
        if self._calls % self.every == 0:
            self._fitted = float(reached_temperature(x, labels, self.metric, self.floor))
        self._calls += 1
        return self._fitted

    def forward(
        self,
        x: Float[Tensor, "n d"],
        labels: Labels,
        *,
        reference: Float[Tensor, "m d"] | None = None,
        reference_labels: Labels | None = None,
        weight: Float[Tensor, " n"] | None = None,
        exclude_self: bool = False,
    ) -> Tensor:
        """The loss of one batch; parameters as in :func:`soft_nearest_neighbor_loss`."""
        with torch.autocast(x.device.type, enabled=False):
            t, among = self.current_temperature(x, labels), (reference, reference_labels)
            loss, valid = _surprise(
                x, labels, t, self.metric, among, weight, exclude_self, self.reduction
            )
        if valid is not None and not (self._warned or is_traced()):
            self._warn_of_lone_rows(valid)
        return -loss if self.entangle == "max" else loss

    def _warn_of_lone_rows(self, valid: Tensor) -> None:
        if not bool(valid.all()):
            self._warned = True
            warnings.warn(
                f"SNNL: {int((~valid).sum())} of {len(valid)} rows have no same-class partner; "
                "they are left out of the mean. Draw batches with "
                "vicinal.losses.ClassBalancedBatchSampler. (Said once.)",
                stacklevel=3,
            )

    def extra_repr(self) -> str:
        return f"entangle={self.entangle!r}, metric={self.metric!r}, reduction={self.reduction!r}"
