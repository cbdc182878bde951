r"""Which parameter gets its gradient how: decided once, by two small forward passes.

Every chosen parameter falls in one of four groups:

* *ruled*: all its uses are calls of layers with an exact rule, seen by counting the edges that
  lead to it in the autograd graph; several uses (a module called twice, tied weights) are
  *shared*: summed.
* *units*: attention and recurrent layers, run again by themselves.
* *rerun*: everything else (bare parameters, functional uses such as ``F.linear(h,
  embedding.weight)``, layers that see the batch folded or transposed), by running the model again
  for these alone.
* *unreached*: no path from the output; an error with ``strict``, else a warning. Their gradient is
  zero.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.checks import InputError, closest
from vicinal.similarity.rules import COVERED, rule_for
from vicinal.similarity.rules.vjp import unit_axes
from vicinal.similarity.watch import UNITS, WatchedCall, layers_of, watching


@dataclass(frozen=True)
class Plan:
    """How each parameter is treated; ``name_of`` gives (layer, its name there) -> the model's name
    for it.
    """

    ruled: dict[str, tuple[str, ...]]
    units: dict[str, dict[str, str]]
    rerun: dict[str, str]
    shared: frozenset[str]
    unreached: tuple[str, ...]
    name_of: dict[tuple[str, str], str]
    order: dict[str, int]

    @property
    def layers(self) -> tuple[Collection[str], Collection[str]]:
        """The layers to watch: those with rules, and units."""
        return self.ruled, self.units


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
    names = {id(p): name for name, p in selected.items()}
    calls = Counter(call.name for call in two)
    per_sample = _per_sample(two, 2) & _per_sample(three, 3)
    owners = _owners(model, names)
    ruled: dict[str, list[str]] = {}
    units: dict[str, dict[str, str]] = {}
    rerun, shared, unreached = {}, set(), []
    for key, full in names.items():
        held = [o for o in owners.get(key, []) if calls[o[0]]]
        uses = sum(calls[layer] for layer, _, _ in held)
        exact = all(rule_for(m) and own in COVERED and at in per_sample for at, m, own in held)
        if not counts[key]:
            unreached.append(full)
        elif rules and exact and counts[key] <= uses:
            for layer, _, own in held:
                ruled.setdefault(layer, []).append(own)
            if uses > 1:
                shared.add(full)
        elif rules and len(held) == 1 and _is_unit(two, *held[0][:2]):
            units.setdefault(held[0][0], {})[held[0][2]] = full
        else:
            rerun[full] = full
    _report_unreached(unreached, len(names), strict)
    return Plan(
        ruled={layer: tuple(own) for layer, own in ruled.items()},
        units=units,
        rerun=rerun,
        shared=frozenset(shared),
        unreached=tuple(unreached),
        name_of={(layer, own): names[k] for k, held in owners.items() for layer, _, own in held},
        order={name: i for i, name in enumerate(selected)},
    )


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
    with watching(model, None, selected) as watch, torch.enable_grad():
        output = f(watch.run(x[pick]), None if target is None else target[pick], rows)
    return watch.calls, _uses(output)


def _uses(output: Tensor) -> Counter[int]:
    """Edges into each leaf of the autograd graph, by the leaf's identity."""
    found: Counter[int] = Counter()
    seen, stack = set(), [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is not None and hasattr(following, "variable"):
                found[id(following.variable)] += 1
            elif following is not None:
                stack.append(following)
    return found


def _owners(model: nn.Module, names: dict[int, str]) -> dict[int, list[tuple[str, nn.Module, str]]]:
    """Every (layer, module, local name) under which a chosen parameter is held."""
    found: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for layer, module in layers_of(model):
        whole = isinstance(module, UNITS)
        for own, p in module.named_parameters(recurse=whole, remove_duplicate=False):
            if id(p) in names:
                found.setdefault(id(p), []).append((layer, module, own))
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
