r"""Temperatures and weights that change in training: small callables ``epoch -> value``.

A high temperature looks at all classes at once, a low one at the nearest points; training may move
from one to the other. Pass a schedule as ``temperature=`` of a loss and tell the loss the epoch::

    loss = SoftNearestNeighborLoss(temperature=InversePower())
    for epoch in range(10):
        loss.set_epoch(epoch)

:class:`Relative` measures T in mean distances of the batch, so that one schedule fits every layer;
:class:`Ramp` is for the weights of a :class:`~vicinal.losses.LayerwiseLoss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_positive, check_whole
from vicinal.neighbors.derivatives import one_by_one
from vicinal.neighbors.distances import compared_rows, pairwise_distances
from vicinal.neighbors.temperature import optimal_temperature

from .conventions import as_rows

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class InversePower:
    r""":math:`T = T_0 / (1 + \text{epoch})^{p}`, p = 0.55 as commonly used with the SNNL.

    >>> [round(InversePower()(epoch), 3) for epoch in (0, 1, 9)]
    [1.0, 0.683, 0.282]
    """

    start: float = 1.0
    power: float = 0.55

    def __post_init__(self) -> None:
        check_positive(self.start, "start")
        check_positive(self.power, "power")

    def __call__(self, epoch: float) -> float:
        return self.start / (1.0 + epoch) ** self.power


@dataclass(frozen=True)
class _Between:
    """From one value to another over some epochs, then constant."""

    start: float
    stop: float
    epochs: float

    def __post_init__(self) -> None:
        for name in ("start", "stop", "epochs"):
            check_positive(getattr(self, name), name)

    def done(self, epoch: float) -> float:
        """The share of the way."""
        return min(max(epoch / self.epochs, 0.0), 1.0)


class Cosine(_Between):
    r"""From ``start`` to ``stop`` along half a cosine over ``epochs``, then constant.

    >>> [round(Cosine(2.0, 1.0, 4)(epoch), 3) for epoch in (0, 1, 2, 4, 9)]
    [2.0, 1.854, 1.5, 1.0, 1.0]
    """

    def __call__(self, epoch: float) -> float:
        cosine = math.cos(math.pi * self.done(epoch))
        return self.stop + 0.5 * (self.start - self.stop) * (1.0 + cosine)


class Linear(_Between):
    """From ``start`` to ``stop`` along a line over ``epochs``, then constant.

    >>> [Linear(2.0, 1.0, 4)(epoch) for epoch in (0, 1, 4, 9)]
    [2.0, 1.75, 1.0, 1.0]
    """

    def __call__(self, epoch: float) -> float:
        return self.start + (self.stop - self.start) * self.done(epoch)


@dataclass(frozen=True)
class Ramp:
    """0 until ``start``, then along a line to ``weight`` at ``stop``, then constant.

    For weights: a network that first learns its task, then what the loss asks.

    >>> [Ramp(-0.5, start=2, stop=4)(epoch) for epoch in (0, 2, 3, 4, 9)]
    [-0.0, -0.0, -0.25, -0.5, -0.5]
    """

    weight: float
    start: float
    stop: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise InputError(
                f"a ramp needs 0 <= start < stop, got start={self.start!r} and stop={self.stop!r}."
            )

    def __call__(self, epoch: float) -> float:
        return self.weight * min(max((epoch - self.start) / (self.stop - self.start), 0.0), 1.0)


@dataclass(frozen=True)
class Relative:
    """T in mean distances between the rows of the batch: a number, or a schedule of numbers.

    >>> Relative(Linear(2.0, 1.0, 4))(1), Relative(0.1)(1)
    (1.75, 0.1)
    """

    share: float | Schedule

    def __call__(self, epoch: float) -> float:
        return self.share(epoch) if callable(self.share) else self.share


def mean_distance(x: Tensor, metric: str) -> Tensor:
    r"""Mean over the pairs of rows, a constant: :math:`2 \sum_d \mathrm{Var}(x_d)` if squared.

    >>> mean_distance(torch.tensor([[0.0], [1.0], [3.0]]), "sqeuclidean")  # (1 + 9 + 4) / 3
    tensor(4.6667)
    """
    rows, n = as_rows(x.detach(), "x"), max(len(x), 2)
    if metric == "euclidean":
        return pairwise_distances(rows, metric=metric).sum() / (n * (n - 1))
    rows = compared_rows(rows, metric)
    squared = 2 * (rows - rows.mean(0)).square().sum() / (n - 1)
    return squared / 2 if metric == "cosine" else squared


_SCHEMA = "(Tensor x, Tensor labels, str metric, float floor) -> Tensor"


@torch.library.custom_op("vicinal::reached_temperature", mutates_args=(), schema=_SCHEMA)
def reached_temperature(x: Tensor, labels: Tensor, metric: str, floor: float) -> Tensor:
    """argmin over T, not below ``floor`` mean distances; any T where the loss is 0 or NaN anyway.

    One operator: there is nothing to trace in it.
    """
    t, x = 1.0, as_rows(x, "x")
    if bool(torch.isfinite(x).all()):
        try:
            t = optimal_temperature(x, labels, metric=metric)
        except InputError:
            if labels.ndim != 1 or len(labels) != len(x) or len(labels.unique()) != len(labels):
                raise
        t = max(t, floor * float(mean_distance(x, metric)))
    return torch.tensor(t, dtype=torch.float64)


@reached_temperature.register_fake
def _(x: Tensor, labels: Tensor, metric: str, floor: float) -> Tensor:
    return torch.empty((), dtype=torch.float64)


reached_temperature.register_vmap(one_by_one(reached_temperature))


def check_temperature(temperature: float | Tensor | Schedule | str) -> None:
    if isinstance(temperature, str):
        check_choice(temperature, "temperature", ("optimal",))
    elif isinstance(temperature, Tensor):
        check_positive(float(temperature.detach().min()), "temperature")
    elif callable(temperature):
        _check_schedule(temperature)
    else:
        check_positive(float(temperature), "temperature")


def check_refits(every: int, floor: float) -> None:
    check_whole(every, "every", 1)
    if not 0 <= floor < math.inf:
        raise InputError(
            f"`floor` must be 0 or more mean distances of the batch, got {floor!r}. "
            "Pass 0 for the optimum as it is."
        )


def _check_schedule(schedule: Schedule) -> None:
    """A schedule must give a temperature above 0 already at epoch 0."""
    value = schedule(0)
    if not isinstance(value, (int, float)):
        raise InputError(
            f"`temperature` is a schedule that gave {value!r} at epoch 0. "
            "It must return a plain number above 0."
        )
    check_positive(float(value), "temperature")
