r"""One forward pass watched: every layer's inputs and the gradient edges of its outputs.

The model is put in eval (unless a loss in training asks otherwise) and only the chosen parameters
are trainable for the duration; hooks, flags and requires_grad are put back on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from vicinal.checks import InputError
from vicinal.similarity.rules.rule import rule_for

UNITS = (nn.MultiheadAttention, nn.RNNBase)
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm


@dataclass
class Record:
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
    """Hooks on the planned layers, eval mode, only the chosen parameters trainable: all undone on
    exit.
    """

    def __init__(
        self,
        model: nn.Module,
        planned: tuple[Collection[str], Collection[str]] | None,
        selected: dict[str, nn.Parameter],
        *,
        prune: bool = True,
        train: bool = False,
    ) -> None:
        self.model = model
        self.records: list[Record] = []
        self._planned = planned
        self._chosen = {id(p) for p in selected.values()}
        self._prune = prune
        self._train = train
        self._live = False

    def __enter__(self) -> Watch:
        self._flags = [(module, module.training) for module in self.model.modules()]
        self._needs = [(p, p.requires_grad) for p in self.model.parameters()]
        self._hooks: list[Any] = []
        check_batch_norm(self.model, self._train)
        if not self._train:
            self.model.eval()
        for p, needed in self._needs:
            p.requires_grad_(id(p) in self._chosen or (needed and not self._prune))
        for name, module in layers_of(self.model):
            if self._planned is None:
                wanted = rule_for(module) is not None or isinstance(module, UNITS)
            else:
                wanted = name in self._planned[0] or name in self._planned[1]
            if wanted and _owns(module, self._chosen):
                hook = self._hook(name)
                self._hooks.append(
                    module.register_forward_hook(hook, with_kwargs=True, prepend=True)
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        for p, needed in self._needs:
            p.requires_grad_(needed)
        for module, training in self._flags:
            module.training = training

    def run(self, x: Tensor) -> Any:
        self._live = True
        try:
            return self.model(x)
        finally:
            self._live = False  # layers run again for a vjp are not calls of the model

    def whole(self, model: nn.Module, x: Tensor, output: Any) -> Record:
        """The model itself as the one layer to run again."""
        edges, returned, shapes = _edges(output)
        return Record("(model)", model, (x,), {}, edges, returned, shapes, x._version, True, True)

    def _hook(self, name: str) -> Callable[..., None]:
        unit = self._planned is not None and name in self._planned[1]

        def take(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not self._live:
                return
            edges, returned, shapes = _edges(output)
            if edges:
                if not args:  # the first input by name: layers take it as `input`, `x` or `query`
                    args, kwargs = tuple(kwargs.values())[:1], dict(list(kwargs.items())[1:])
                version = args[0]._version if isinstance(args[0], Tensor) else 0
                self.records.append(
                    Record(name, module, args, kwargs, edges, returned, shapes, version, not unit)
                )

        return take


def training_batch_norm(model: nn.Module) -> str | None:
    """The name of a batch norm in train mode, if there is one."""
    modules = model.named_modules()
    return next((n for n, m in modules if isinstance(m, _BATCH_NORMS) and m.training), None)


def check_batch_norm(model: nn.Module, train: bool) -> None:
    """No per-sample gradient exists where a batch norm averages over the batch."""
    for name, module in model.named_modules():
        if not isinstance(module, _BATCH_NORMS):
            continue
        if module.running_mean is None:
            raise InputError(
                f"batch norm `{name}` keeps no running statistics, so each sample's output "
                "depends on the others in its batch and has no gradient of its own. Build it with "
                "track_running_stats=True, or use GroupNorm."
            )
        if module.training and train:
            raise InputError(
                f"batch norm `{name}` is in train mode: each sample's output depends on its "
                "batch-mates and has no gradient of its own. Call .eval() on the batch norms "
                "(they then use their running statistics), or use GroupNorm."
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


def _owns(module: nn.Module, chosen: set[int]) -> bool:
    return any(id(p) in chosen for p in module.parameters(recurse=isinstance(module, UNITS)))


def _edges(output: Any) -> tuple[list[Any], list[int], list[torch.Size]]:
    leaves = pytree.tree_leaves(output)
    returned = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    edges = [get_gradient_edge(leaves[i]) for i in returned]
    return edges, returned, [leaves[i].shape for i in returned]
