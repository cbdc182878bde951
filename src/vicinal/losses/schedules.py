r"""Temperatures that change from epoch to epoch: small callables ``epoch -> T``.

A high temperature looks at all classes at once, a low one at the nearest points; training may move
from one to the other. Pass a schedule as ``temperature=`` of a loss and tell the loss the epoch::

    loss = SoftNearestNeighborLoss(temperature=InversePower())
    for epoch in range(10):
        loss.set_epoch(epoch)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from vicinal.checks import InputError, check_positive

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
class Cosine:
    r"""From ``start`` to ``stop`` along half a cosine over ``epochs``, then constant.

    >>> [round(Cosine(2.0, 1.0, 4)(epoch), 3) for epoch in (0, 1, 2, 4, 9)]
    [2.0, 1.854, 1.5, 1.0, 1.0]
    """

    start: float
    stop: float
    epochs: float

    def __post_init__(self) -> None:
        _check_ends(self.start, self.stop, self.epochs)

    def __call__(self, epoch: float) -> float:
        done = min(max(epoch / self.epochs, 0.0), 1.0)
        return self.stop + 0.5 * (self.start - self.stop) * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Linear:
    """From ``start`` to ``stop`` along a line over ``epochs``, then constant.

    >>> [Linear(2.0, 1.0, 4)(epoch) for epoch in (0, 1, 4, 9)]
    [2.0, 1.75, 1.0, 1.0]
    """

    start: float
    stop: float
    epochs: float

    def __post_init__(self) -> None:
        _check_ends(self.start, self.stop, self.epochs)

    def __call__(self, epoch: float) -> float:
        done = min(max(epoch / self.epochs, 0.0), 1.0)
        return self.start + (self.stop - self.start) * done


def check_schedule(schedule: Schedule) -> None:
    """A schedule must give a temperature above 0 already at epoch 0."""
    value = schedule(0)
    if not isinstance(value, (int, float)):
        raise InputError(
            f"`temperature` is a schedule that gave {value!r} at epoch 0. "
            "It must return a plain number above 0."
        )
    check_positive(float(value), "temperature")


def _check_ends(start: float, stop: float, epochs: float) -> None:
    for value, name in ((start, "start"), (stop, "stop"), (epochs, "epochs")):
        check_positive(value, name)
