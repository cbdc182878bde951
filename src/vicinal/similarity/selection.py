"""Which model, and which of its parameters, gradients are taken of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from vicinal.checks import InputError, closest


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
