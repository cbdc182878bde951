r"""A loss over the batch of all processes: the value and the gradient of a single process.

A neighborhood loss is not a mean over samples: a process that sees its own shard only has other
neighbors. :class:`DistributedLoss` gives every process the loss of the whole batch. Its backward
adds up what all processes contribute, so that after DDP's *mean* over processes the model's
gradient is exactly that of one process with the whole batch, and the value is that loss, not a
multiple.

``mode="gather"`` works with any loss: all embeddings are gathered everywhere, and each process
computes the whole loss. ``mode="ring"`` shares the work and the memory among the processes, for the
losses that are sums over pairs: soft nearest neighbor, supervised contrastive, NT-Xent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vicinal.checks import InputError, as_tensor, check_choice
from vicinal.neighbors.tiles.dense import surprise_of
from vicinal.neighbors.tiles.masses import precise_log_masses
from vicinal.processes import all_added, all_gathered, check_alike, facts_of_all, several

from .contrastive import NTXentLoss, SupervisedContrastiveLoss
from .conventions import as_labels, as_rows, keep_valid, leaves_range
from .pairs import Pairs, pulled
from .ring import ring_sums
from .snnl import SoftNearestNeighborLoss
from .targets import MixedTargets

MODES = ("gather", "ring")
Ring = Callable[..., tuple[Tensor, ...]]  # ring_sums among the processes of a group


class DistributedLoss(nn.Module):
    """``loss`` over the rows of all processes of ``group``; shards may have different sizes.

    Without an initialized process group it is ``loss`` itself. ``reduction="none"`` gives each
    process the losses of its own rows. Inputs that do not fit together are the same ``InputError``
    on every process; a process that dies or hangs ends the others by ``ProcessLost``, which names
    it, within the group's timeout.

    >>> DistributedLoss(SupervisedContrastiveLoss())(torch.eye(2), torch.tensor([0, 0])).shape
    torch.Size([])
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        group: dist.ProcessGroup | None = None,
        *,
        mode: str = "gather",
    ) -> None:
        super().__init__()
        check_choice(mode, "mode", MODES)
        if mode == "ring" and not isinstance(loss, RING_LOSSES):
            names = ", ".join(kind.__name__ for kind in RING_LOSSES)
            raise InputError(
                f"`mode='ring'` is for losses that are sums over pairs ({names}), got "
                f"{type(loss).__name__}. Use mode='gather'."
            )
        self.loss = loss
        self.group = group
        self.mode = mode

    def forward(self, x: Tensor, labels: Tensor | MixedTargets) -> Tensor:
        if not several(self.group):
            return self.loss(x, labels)
        batch = _agreed(self.loss, self.mode, x, labels, self.group)
        if self.mode == "ring" and isinstance(labels, Tensor):
            rows = x.double() if batch.far else x
            found = _ring_losses(self.loss, rows, labels, batch.sizes, self.group)
            return self._reduce(*found).to(torch.promote_types(x.dtype, torch.float32))
        sizes = batch.sizes
        out = self.loss(
            gather_rows(x, sizes, self.group), _gather_labels(labels, sizes, self.group)
        )
        if out.ndim == 0:
            return out
        first = sum(sizes[: dist.get_rank(self.group)])
        return out[first : first + len(x)]

    def _reduce(self, losses: Tensor, valid: Tensor) -> Tensor:
        reduction = getattr(self.loss, "reduction", "mean")
        if reduction == "none":
            return losses
        total = _AllSum.apply(losses.sum(), self.group)
        if reduction == "sum":
            return total
        return total / _AllSum.apply(valid.sum().to(losses.dtype), self.group).clamp_min(1)


class _Batch(NamedTuple):
    """What all processes know before the first row travels."""

    sizes: list[int]  # rows of each process
    far: bool  # squares of some process's rows leave float32's range


def _agreed(loss: Any, mode: str, x: Any, labels: Any, group: Any) -> _Batch:
    """One small exchange: all processes have inputs of one kind, or all say the same sentence."""

    def look() -> dict[str, Any]:
        far = _checked(mode, x, labels)
        kind = "mixed"
        if isinstance(labels, Tensor):
            whole = not labels.is_floating_point()
            kind = f"{'whole' if whole else labels.dtype} of shape {('n', *labels.shape[1:])}"
        return {
            "loss": f"{type(loss).__name__}, mode {mode}",
            "rows": len(x),
            "columns": list(x.shape[1:]),
            "dtype": str(x.dtype),
            "kind": kind,
            "gradient": bool(x.requires_grad and torch.is_grad_enabled()),
            "far": far,
        }

    device = x.device if isinstance(x, Tensor) and not x.is_meta else torch.device("cpu")
    facts = facts_of_all(look, group, device, "comparing the inputs of a loss")
    check_alike(facts, "loss", "the loss", "Build the same DistributedLoss everywhere.")
    check_alike(facts, "columns", "the columns of `x`", "Rows must come from one layer.")
    check_alike(facts, "dtype", "the dtype of `x`", "Convert it with x.float().")
    check_alike(facts, "kind", "the kind of `labels`", "Pass hard, soft or mixed ones everywhere.")
    check_alike(facts, "gradient", "whether `x` has a gradient", "Else some would wait for it.")
    return _Batch([each["rows"] for each in facts], any(each["far"] for each in facts))


def _checked(mode: str, x: Any, labels: Any) -> bool:
    """What one process can say of its own rows; whether their squares leave float32's range.

    A gathered loss sees the whole batch and says the rest itself, everywhere alike.
    """
    if not isinstance(x, Tensor) or not isinstance(labels, (Tensor, MixedTargets)):
        kinds = f"{type(x).__name__} and {type(labels).__name__}"
        raise InputError(f"`x` and `labels` must be tensors, got {kinds}.")
    as_tensor(x, "x")  # sparse, complex, without values: refused before the exchange
    if isinstance(labels, Tensor):
        as_tensor(labels, "labels")
    if len(labels) != len(x):
        raise InputError(
            f"`labels` must hold one label for each row on every process: it has {len(labels)} for "
            f"{len(x)} rows. Cut rows and labels alike."
        )
    if mode == "gather" or not len(x):
        return False
    if isinstance(labels, Tensor):
        as_labels(labels, len(x))
    return leaves_range(as_rows(x, "x"))


def gather_rows(x: Tensor, sizes: list[int], group: dist.ProcessGroup | None = None) -> Tensor:
    """The rows of all processes in rank order, differentiable."""
    return _Gather.apply(x, sizes, group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], group: Any) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        padded = x.new_zeros(max(sizes), *x.shape[1:])  # all_gather wants equal shapes
        padded[: len(x)] = x
        parts = all_gathered(padded, group, "gathering the rows of a loss")
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        # Each process computed the whole loss: their sum is W times its gradient, and DDP's mean
        # over the W processes makes it whole again.
        grad = _AllSum.apply(upstream[0].contiguous(), ctx.group)
        first = sum(ctx.sizes[: dist.get_rank(ctx.group)])
        return grad[first : first + ctx.sizes[dist.get_rank(ctx.group)]], None, None


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return all_added(x.clone(), group, "adding up a loss or its gradient")

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return _AllSum.apply(upstream[0], ctx.group), None


def _gather_labels(labels: Any, sizes: list[int], group: Any) -> Any:
    if not isinstance(labels, MixedTargets):
        labels = labels if labels.is_floating_point() else labels.long()
        return gather_rows(labels, sizes, group)
    a, b = gather_rows(labels.a, sizes, group), gather_rows(labels.b, sizes, group)
    return replace(labels, a=a, b=b, lam=gather_rows(labels.lam.contiguous(), sizes, group))


# ------------------------------------------------------------------ losses as sums over pairs


def _ring_losses(
    loss: Any, x: Tensor, labels: Tensor, sizes: list[int], group: Any
) -> tuple[Tensor, Tensor]:
    """Each local anchor's loss over the pairs of all processes, and which are valid."""
    labels = labels if labels.is_floating_point() else labels.long()
    ring = partial(ring_sums, sizes=sizes, group=group)
    if isinstance(loss, SoftNearestNeighborLoss):
        return _soft_nearest_neighbor(loss, x, labels, ring)
    if isinstance(loss, SupervisedContrastiveLoss):
        return _supervised_contrastive(loss, x, labels, ring)
    return _nt_xent(loss, x, labels, ring)


def _soft_nearest_neighbor(
    loss: SoftNearestNeighborLoss, x: Tensor, labels: Tensor, ring: Ring
) -> tuple[Tensor, Tensor]:
    if isinstance(loss.temperature, str):
        raise InputError(
            "`temperature='optimal'` is a minimum over the whole batch, which no process of a ring "
            "holds. Use mode='gather', or a learned temperature."
        )
    t = loss.current_temperature(x, labels)

    def masses(x: Tensor, labels: Tensor, y: Any, y_labels: Any, *learned: Tensor) -> Any:
        by = learned[0] if learned else t
        return precise_log_masses(x, labels, by, loss.metric, y, y_labels)

    learned = (t,) if isinstance(t, Tensor) else ()
    losses, valid = surprise_of(*ring(masses, ("log", "log"), x, labels, *learned))
    losses = -losses if loss.entangle == "max" else losses
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return keep_valid(losses.to(wide.dtype), valid, wide), valid


def _supervised_contrastive(
    loss: SupervisedContrastiveLoss, x: Tensor, labels: Tensor, ring: Ring
) -> tuple[Tensor, Tensor]:
    def sums(*shard: Any) -> tuple[Tensor, ...]:
        return _pairs(loss, *shard).spread_and_pull()

    losses, valid = pulled(*ring(sums, ("log", "add", "add"), x, labels, *_learned(loss)))
    return keep_valid(losses, valid, x.to(losses.dtype)), valid


def _nt_xent(loss: NTXentLoss, x: Tensor, labels: Tensor, ring: Ring) -> tuple[Tensor, Tensor]:
    def negatives(*shard: Any) -> tuple[Tensor, ...]:
        return (_pairs(loss, *shard).log_mass_of_negatives(),)

    def pushed(x: Tensor, labels: Tensor, y: Any, y_labels: Any, mass: Tensor, *t: Tensor) -> Any:
        return _pairs(loss, x, labels, y, y_labels, *t).pushed_by(mass)

    learned = _learned(loss)
    (mass,) = ring(negatives, ("log",), x, labels, *learned)
    total, count = ring(pushed, ("add", "add"), x, labels, mass, *learned)
    valid = count > 0
    losses = total / count.masked_fill(~valid, 1)
    return keep_valid(losses, valid, x.to(losses.dtype)), valid


def _pairs(loss: Any, x: Tensor, labels: Tensor, y: Any, y_labels: Any, *learned: Tensor) -> Pairs:
    temperature = learned[0] if learned else loss.temperature
    return Pairs.weighed(x, labels, temperature, loss.metric, y, y_labels)


def _learned(loss: Any) -> tuple[Tensor, ...]:
    return (loss.temperature,) if isinstance(loss.temperature, Tensor) else ()


RING_LOSSES = (SoftNearestNeighborLoss, SupervisedContrastiveLoss, NTXentLoss)
