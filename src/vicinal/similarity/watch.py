r"""One forward pass watched: every layer's inputs and the gradient edges of its outputs.

The model is put in eval and only the chosen parameters are trainable for the duration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from vicinal.capture.hooks import LayerCall, hooked, restored
from vicinal.checks import InputError
from vicinal.similarity.rules import rule_for

UNITS = (nn.MultiheadAttention, nn.RNNBase)
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm


@dataclass
class WatchedCall:
    """One call of a layer: its inputs, the edges of its outputs, and the gradients there."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edges: list[Any]
    returned: list[int]
    shapes: list[torch.Size]
    version: int
    batch_first: bool = True
    whole: bool = False
    grads: list[list[Tensor]] = field(default_factory=list)


class Watch:
    """The calls of the watched layers while :meth:`run` runs the model."""

    def __init__(self, model: nn.Module, units: Collection[str]) -> None:
        self.model = model
        self.calls: list[WatchedCall] = []
        self._units = units
        self._live = False

    def run(self, x: Tensor) -> Any:
        self._live = True
        try:
            return self.model(x)
        finally:
            self._live = False  # layers run again for a vjp are not calls of the model

    def whole(self, x: Tensor, output: Any) -> WatchedCall:
        """The model itself as the one layer to run again."""
        found = _edges(output)
        return WatchedCall("(model)", self.model, (x,), {}, *found, x._version, whole=True)

    def take(self, call: LayerCall) -> None:
        name, module, args, kwargs, output = call
        found = _edges(output) if self._live else ([], [], [])
        if found[0]:
            if not args:  # the first input by name: layers take it as `input`, `x` or `query`
                args, kwargs = tuple(kwargs.values())[:1], dict(list(kwargs.items())[1:])
            version = args[0]._version if isinstance(args[0], Tensor) else 0
            unit = name in self._units
            self.calls.append(WatchedCall(name, module, args, kwargs, *found, version, not unit))


@contextmanager
def watching(
    model: nn.Module,
    planned: tuple[Collection[str], Collection[str]] | None,
    selected: dict[str, nn.Parameter],
    *,
    prune: bool = True,
) -> Iterator[Watch]:
    """Eval mode, hooks on the planned layers (None: on all that may be), undone on exit.

    ``prune``: no other parameter than those ``selected`` is trainable meanwhile.
    """
    check_batch_norm(model)
    chosen = {id(p) for p in selected.values()}
    layers = {
        name: module
        for name, module in layers_of(model)
        if _is_watched(name, module, planned) and _owns(module, chosen)
    }
    watch = Watch(model, () if planned is None else planned[1])
    with restored(model), hooked(layers, watch.take, first=True):
        model.eval()
        for p in model.parameters():
            p.requires_grad_(id(p) in chosen or (p.requires_grad and not prune))
        yield watch


def training_batch_norm(model: nn.Module) -> str | None:
    """The name of a batch norm in train mode, if there is one."""
    modules = model.named_modules()
    return next((n for n, m in modules if isinstance(m, _BATCH_NORMS) and m.training), None)


def check_batch_norm(model: nn.Module) -> None:
    """No per-sample gradient exists where a batch norm averages over the batch."""
    for name, module in model.named_modules():
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise InputError(
                f"batch norm `{name}` keeps no running statistics, so each sample's output "
                "depends on the others in its batch and has no gradient of its own. Build it with "
                "track_running_stats=True, or use GroupNorm."
            )


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All layers, but not the insides of units, which call their children's weights directly."""
    inside = {
        id(child)
        for module in model.modules()
        if isinstance(module, UNITS)
        for child in module.modules()
        if child is not module
    }
    return [(name, module) for name, module in model.named_modules() if id(module) not in inside]


def _is_watched(
    name: str, module: nn.Module, planned: tuple[Collection[str], Collection[str]] | None
) -> bool:
    if planned is None:
        return rule_for(module) is not None or isinstance(module, UNITS)
    return name in planned[0] or name in planned[1]


def _owns(module: nn.Module, chosen: set[int]) -> bool:
    return any(id(p) in chosen for p in module.parameters(recurse=isinstance(module, UNITS)))


def _edges(output: Any) -> tuple[list[Any], list[int], list[torch.Size]]:
    leaves = pytree.tree_leaves(output)
    returned = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    edges = [get_gradient_edge(leaves[i]) for i in returned]
    return edges, returned, [leaves[i].shape for i in returned]
