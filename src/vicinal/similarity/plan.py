r"""Which parameter gets its gradient how: decided once, by two small forward passes.

Every chosen parameter falls in one of four groups:

* *ruled*: all its uses are calls of layers with an exact rule, seen by counting the edges that
  lead to it in the autograd graph; several uses (a module called twice, tied weights) are
  *shared*: summed.
* *units*: attention and recurrent layers, run again by themselves; and the model itself
  (``WHOLE``), run again for everything else: bare parameters, functional uses such as
  ``F.linear(h, embedding.weight)``, layers that see the batch folded or transposed.
* *unreached*: no path from the output; an error with ``strict``, else a warning. Their gradient is
  zero.

A forward pass is :func:`watched`: every layer's inputs and the gradient edges of its outputs.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from vicinal.capture.hooks import LayerCall, hooked, restored
from vicinal.checks import InputError, closest
from vicinal.similarity.rules import COVERED, rule_for
from vicinal.similarity.rules.vjp import unit_axes

UNITS = (nn.MultiheadAttention, nn.RNNBase)
WHOLE = "(model)"
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm


@dataclass
class WatchedCall:
    """One call of a layer: its inputs, the edges of its outputs, and the gradients there."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edges: list[Any]
    returned: list[int]  # which leaves of what it returned they belong to
    shapes: list[torch.Size]
    version: int
    grads: list[list[Tensor]] = field(default_factory=list)  # [output of f][edge]


def watched_call(call: LayerCall) -> WatchedCall:
    """A call with the edges of what it returned."""
    name, module, args, kwargs, output = call
    leaves = pytree.tree_leaves(output)
    returned = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    edges = [get_gradient_edge(leaves[i]) for i in returned]
    shapes = [leaves[i].shape for i in returned]
    if not args:  # the first input by name: layers take it as `input`, `x` or `query`
        args, kwargs = tuple(kwargs.values())[:1], dict(list(kwargs.items())[1:])
    version = args[0]._version if edges and isinstance(args[0], Tensor) else 0
    return WatchedCall(name, module, args, kwargs, edges, returned, shapes, version)


def watched(
    model: nn.Module, x: Tensor, layers: Mapping[str, nn.Module]
) -> tuple[Any, list[WatchedCall]]:
    """What the model returns, and the calls of the layers that led to it."""
    calls: list[WatchedCall] = []
    with hooked(layers, lambda call: calls.append(watched_call(call)), first=True):
        output = model(x)
    return output, [call for call in calls if call.edges]


@contextmanager
def reading(
    model: nn.Module, selected: Mapping[str, nn.Parameter], *, prune: bool = True
) -> Iterator[None]:
    """Eval mode, and no other parameter trainable than those ``selected`` (``prune=False``: they as
    well); the model comes back as it was.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise InputError(
                f"batch norm `{name}` keeps no running statistics, so each sample's output "
                "depends on the others in its batch and has no gradient of its own. Build it with "
                "track_running_stats=True, or use GroupNorm."
            )
    chosen = {id(p) for p in selected.values()}
    with restored(model):
        model.eval()
        for p in model.parameters():
            p.requires_grad_(id(p) in chosen or (p.requires_grad and not prune))
        yield


def training_batch_norm(model: nn.Module) -> str | None:
    """The name of a batch norm in train mode, if there is one."""
    modules = model.named_modules()
    return next((n for n, m in modules if isinstance(m, _BATCH_NORMS) and m.training), None)


@dataclass(frozen=True)
class Plan:
    """How each parameter is treated: layer -> its own name for it -> the model's name for it."""

    ruled: dict[str, dict[str, str]]
    units: dict[str, dict[str, str]]
    shared: frozenset[str]
    unreached: tuple[str, ...]


def make_plan(
    model: nn.Module,
    selected: dict[str, nn.Parameter],
    f: Callable[[Any, Tensor | None, int], Tensor],
    x: Tensor,
    target: Tensor | None,
    *,
    strict: bool,
    rules: bool = True,
) -> Plan:
    """Two forward passes, of two rows and of three: what follows the batch is parted from what has
    that length by chance.
    """
    two, counts = _probe(model, selected, f, x, target, 2)
    three, _ = _probe(model, selected, f, x, target, 3)
    calls = Counter(call.name for call in two)
    per_sample = _per_sample(two, 2) & _per_sample(three, 3)
    owners = _owners(model)
    ruled: dict[str, dict[str, str]] = {}
    units: dict[str, dict[str, str]] = {}
    shared, unreached = set(), []
    for full, p in selected.items():
        held = [o for o in owners[id(p)] if calls[o[0]]]
        uses = sum(calls[layer] for layer, _, _ in held)
        exact = all(rule_for(m) and own in COVERED and at in per_sample for at, m, own in held)
        if not counts[id(p)]:
            unreached.append(full)
        elif rules and exact and counts[id(p)] <= uses:
            for layer, _, own in held:
                ruled.setdefault(layer, {})[own] = full
            if uses > 1:
                shared.add(full)
        elif rules and len(held) == 1 and _is_unit(two, *held[0][:2]):
            units.setdefault(held[0][0], {})[held[0][2]] = full
        else:
            units.setdefault(WHOLE, {})[full] = full
    _report_unreached(unreached, len(selected), strict)
    return Plan(ruled, units, frozenset(shared), tuple(unreached))


def select_parameters(
    model: nn.Module, params: str | Sequence[str] | None
) -> dict[str, nn.Parameter]:
    """The trainable parameters, or those whose name is listed, lies in a listed layer, or matches
    a regex.
    """
    everything = dict(model.named_parameters())
    if params is None:
        chosen = {name: p for name, p in everything.items() if p.requires_grad}
        if not chosen:
            raise InputError(
                f"the model has no trainable parameter ({len(everything)} are frozen). Call "
                "model.requires_grad_(True), or name the parameters to differentiate in `params`."
            )
        return chosen
    patterns = [params] if isinstance(params, str) else list(params)
    chosen = {}
    for pattern in patterns:
        found = [n for n in everything if n == pattern or n.startswith(pattern + ".")]
        found = found or [n for n in everything if re.search(pattern, n)]
        if not found:
            near = closest(pattern, everything)
            hint = f" Closest: {', '.join(near)}." if near else ""
            raise InputError(f"`params` matches no parameter of the model: {pattern!r}.{hint}")
        chosen.update({name: everything[name] for name in found})
    return {name: p for name, p in everything.items() if name in chosen}


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, DataParallel or torch.compile's wrapper."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def _probe(
    model: nn.Module, selected: dict[str, nn.Parameter], f: Any, x: Tensor, target: Any, rows: int
) -> tuple[list[WatchedCall], Counter[int]]:
    """The calls of a forward pass on ``rows`` samples, and how often each parameter is used."""
    pick = torch.arange(rows) % len(x)
    layers = {n: m for n, m in _layers(model) if rule_for(m) or isinstance(m, UNITS)}
    with reading(model, selected), torch.enable_grad():
        output, calls = watched(model, x[pick], layers)
        return calls, _uses(f(output, None if target is None else target[pick], rows))


def _uses(output: Tensor) -> Counter[int]:
    """Edges into each leaf of the autograd graph, by the leaf's identity."""
    found: Counter[int] = Counter()
    seen: set[Any] = {None}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if hasattr(following, "variable"):
                found[id(following.variable)] += 1
            else:
                stack.append(following)
    return found


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All layers, but not the insides of units, which call their children's weights directly."""
    units = [module for module in model.modules() if isinstance(module, UNITS)]
    inside = {id(child) for unit in units for child in unit.modules() if child is not unit}
    return ((name, module) for name, module in model.named_modules() if id(module) not in inside)


def _owners(model: nn.Module) -> dict[int, list[tuple[str, nn.Module, str]]]:
    """Every (layer, module, local name) under which a parameter is held, by its identity."""
    found: dict[int, list[tuple[str, nn.Module, str]]] = defaultdict(list)
    for layer, module in _layers(model):
        whole = isinstance(module, UNITS)
        for own, p in module.named_parameters(recurse=whole, remove_duplicate=False):
            found[id(p)].append((layer, module, own))
    return found


def _per_sample(calls: list[WatchedCall], rows: int) -> set[str]:
    """Layers all of whose calls had one row per sample."""

    def fits(call: WatchedCall) -> bool:
        x = call.args[0]
        lone = len(call.edges) == 1 and call.returned == [0]
        return lone and isinstance(x, Tensor) and x.ndim > 0 and len(x) == rows

    return {c.name for c in calls} - {c.name for c in calls if not fits(c)}


def _is_unit(calls: list[WatchedCall], layer: str, module: nn.Module) -> bool:
    """Attention or recurrence, called once, with inputs whose batch axes are known."""
    mine = [call for call in calls if call.name == layer]
    once = isinstance(module, UNITS) and len(mine) == 1
    return once and unit_axes(module, mine[0].args, mine[0].kwargs) is not None


def _report_unreached(unreached: list[str], total: int, strict: bool) -> None:
    if not unreached:
        return
    shown = ", ".join(unreached[:4]) + (", …" if len(unreached) > 4 else "")
    text = (
        f"{len(unreached)} of {total} chosen parameters are never reached by the output: {shown}. "
        "Their gradient is zero everywhere. Leave them out with `params`, check the forward pass, "
        "or pass strict=False to go on without them."
    )
    if strict or len(unreached) == total:
        raise InputError(text)
    warnings.warn(text, stacklevel=4)
