"""What every loss agrees on: kinds of input, valid anchors, reductions.

A loss lets NaN through (a wrong batch must show), computes in float32 or wider, and averages over
the anchors that can be judged at all. Checks that look at values are skipped while tracing, so that
a loss compiles into one graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, ParamSpec, TypeGuard, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_choice,
    check_distributions,
    check_labels,
    is_traced,
    label_tensor,
)
from vicinal.neighbors.tiles.masses import ranks

REDUCTIONS = ("mean", "sum", "none")
REACH = {torch.float32: 56, torch.float64: 500}  # powers of 2 of entries whose squares are exact
P = ParamSpec("P")
R = TypeVar("R")


def full_precision(loss: Callable[P, R]) -> Callable[P, R]:
    """Under autocast a loss still computes in float32: half precision loses what it measures."""

    @functools.wraps(loss)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        device = args[0].device.type if args and isinstance(args[0], Tensor) else "cpu"
        if device == "meta" or not torch.is_autocast_enabled(device):  # it is slow to switch off
            return loss(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return loss(*args, **kwargs)

    return call


def leaves_range(x: Tensor) -> bool:
    """Do squares of these rows overflow or vanish in float32? Beyond float64's reach: a sentence.

    >>> leaves_range(torch.tensor([[1e20]])), leaves_range(torch.tensor([[1e20]]).double())
    (True, False)
    """
    if is_traced() or not x.numel():
        return False
    x = x.detach() if x.dtype in REACH else x.detach().float()
    low, high = (float(v) for v in x.aminmax())
    size = max(-low, high)
    if not 0 < size < math.inf or abs(math.frexp(size)[1]) <= REACH[x.dtype]:
        return False  # NaN and infinity pass: a wrong batch must show
    if x.dtype == torch.float64:
        raise InputError(
            f"rows with entries up to {size:.0e} cannot be compared: their squares "
            f"{'overflow' if size > 1 else 'vanish in'} float64. Multiply them by {1 / size:.0e}."
        )
    return True


def any_scale(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Where squares of float32 rows overflow or vanish, a loss is computed in float64, and under
    autocast in :func:`full_precision`.

    The result is float32 again: infinite if it is beyond 3.4e38, never NaN for finite rows. (Not
    while tracing, which cannot look at values.)
    """

    @functools.wraps(loss)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if is_traced():
            return loss(*args, **kwargs)
        given, named = [_read(v) for v in args], {name: _read(v) for name, v in kwargs.items()}
        rows = [t for t in (*given, *named.values()) if _is_rows(t)]
        if not any(leaves_range(t) for t in rows):
            return loss(*given, **named)
        wide = loss(*map(_wide, given), **{name: _wide(v) for name, v in named.items()})
        return wide.to(torch.promote_types(rows[0].dtype, torch.float32))

    return full_precision(call)


def _read(value: Any) -> Any:
    """Arrays, frames and lists of float rows as tensors; what is none is left to the loss."""
    if isinstance(value, list) or hasattr(value, "to_numpy") or isinstance(value, np.ndarray):
        with suppress(InputError):
            found = as_tensor(value, "x")
            value = found if _is_rows(found) or _is_huge(found) else value
    return value.double() if _is_huge(value) else value


def _is_huge(t: object) -> TypeGuard[Tensor]:
    """Whole numbers whose squares leave float32's range: no labels and no indices."""
    whole = isinstance(t, Tensor) and t.ndim == 2 and t.dtype in (torch.int64, torch.uint64)
    return whole and t.layout is torch.strided and not t.is_meta and leaves_range(t)  # type: ignore


def _is_rows(t: object) -> TypeGuard[Tensor]:
    if not isinstance(t, Tensor) or t.ndim != 2 or not t.is_floating_point():
        return False
    return t.layout is torch.strided and not t.is_meta


def _wide(t: Any) -> Any:
    return t.double() if isinstance(t, Tensor) and t.is_floating_point() else t


def as_rows(x: Any, name: str) -> Float[Tensor, "n d"]:
    """One float32 or float64 row per sample; NaN is let through."""
    return as_matrix(x, name, finite=False)


def as_labels(labels: Any, rows: int, name: str = "labels") -> Tensor:
    """Integers ``(n,)`` of any value, or soft labels ``(n, c)`` whose rows are distributions."""
    labels = check_labels(label_tensor(labels, name), name, rows)
    if labels.ndim == 1:
        return labels.long()
    labels = labels if labels.dtype == torch.float64 else labels.float()
    if not is_traced():
        check_distributions(labels.detach(), name)
    return labels


def as_hard_labels(labels: Any, rows: int, name: str = "labels") -> Int[Tensor, " n"]:
    """Integer labels; soft ones are refused where the loss has no meaning for them."""
    labels = label_tensor(labels, name)
    if labels.ndim == 2:
        raise InputError(
            f"`{name}` must be integer labels of shape ({rows},) for this loss, got soft labels of "
            f"shape {tuple(labels.shape)}. Pass {name}.argmax(1), or a loss that takes soft labels."
        )
    return check_labels(labels, name, rows).long()


def as_class_targets(targets: Any, rows: int, classes: int, name: str = "targets") -> Tensor:
    """Class indices below ``classes``, or rows of ``classes`` weights that are distributions."""
    targets = as_labels(targets, rows, name)
    if targets.ndim == 2 and targets.shape[1] != classes:
        raise InputError(
            f"`{name}` must have one column for each of the {classes} classes, got shape "
            f"{tuple(targets.shape)}. Logits and targets must agree on the classes."
        )
    if targets.ndim == 1:
        check_class_range(targets, classes, name)
    return targets


def check_class_range(labels: Int[Tensor, " n"], classes: int, name: str) -> None:
    if is_traced() or labels.numel() == 0:
        return
    low, high = (int(v) for v in labels.aminmax())
    if low < 0 or high >= classes:
        raise InputError(
            f"`{name}` must lie between 0 and {classes - 1}, one for each class, got "
            f"{low if low < 0 else high}. Re-index the labels, or give the model more outputs."
        )


def check_own_rows(anchors: int, reference: Any) -> None:
    """``exclude_self``: the reference begins with the anchors themselves, row for row."""
    if reference is None or len(reference) < anchors:
        raise InputError(
            f"`exclude_self` needs a `reference` that begins with the {anchors} anchors, got "
            f"{'none' if reference is None else f'{len(reference)} rows'}. Pass "
            "torch.cat([x, others]), or MemoryBank.as_reference(x, labels)."
        )


def reduce_rows(
    losses: Float[Tensor, " n"], valid: Bool[Tensor, " n"] | None, reduction: str
) -> Tensor:
    """Mean over the valid anchors (0 if there is none), sum, or one value per anchor.

    ``losses`` already holds 0 where an anchor is not valid, attached to the graph.

    >>> reduce_rows(torch.tensor([1.0, 3.0, 0.0]), torch.tensor([True, True, False]), "mean")
    tensor(2.)
    """
    check_choice(reduction, "reduction", REDUCTIONS)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if valid is None else losses.sum() / valid.sum().clamp_min(1)


def keep_valid(
    losses: Float[Tensor, " n"], valid: Bool[Tensor, " n"], x: Float[Tensor, "n d"]
) -> Float[Tensor, " n"]:
    """Zero where an anchor is not valid: attached to ``x``, no gradient, NaN where its row is
    NaN.
    """
    return torch.where(valid, losses, (x * 0).sum(1))  # a sum of large rows may overflow


def class_ids(labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Any integers to 0, 1, ... in sorted order; unlike ``torch.unique`` its shapes are static.

    >>> class_ids(torch.tensor([7, -1, 7, 3]))
    tensor([2, 0, 2, 1])
    """
    ascending, order = labels.sort()
    return torch.empty_like(labels).scatter(0, order, ranks(ascending))


class LossModule(nn.Module):
    """What the module forms of losses share: settings, which are attributes and are handed on.

    A subclass names them with their defaults; ``forward`` is one call of the function.
    """

    loss: ClassVar[Callable[..., Tensor]]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.names = tuple(settings)
        for name, value in settings.items():
            setattr(self, name, value)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}
