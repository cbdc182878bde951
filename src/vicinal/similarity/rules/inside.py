"""Layers inside layers, watched as layers of their own.

A linear map that torch applies out of sight of any hook (in attention, in recurrence) is an
:class:`InsideMap`, which the layer calls while it is :func:`running` lines of ours.

A subclass of ``nn.Linear``, ``nn.Embedding`` or a layer norm may do something before or after what
its base does (Hugging Face's position tables, scaled word tables, norms over channels). It has no
rule, what its base does has: the call of ``F.linear``, ``F.embedding`` or ``F.layer_norm`` with the
layer's own parameters is seen where it happens, as a call of a plain layer that shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from vicinal.capture.hooks import LayerCall

INSIDE = ".inside"
TAKES: dict[Callable[..., Any], dict[str, Any]] = {  # what each takes, with its defaults
    F.linear: {"input": None, "weight": None, "bias": None},
    F.embedding: {
        "input": None, "weight": None, "padding_idx": None, "max_norm": None, "norm_type": 2.0,
        "scale_grad_by_freq": False, "sparse": False,
    },
    F.layer_norm: {
        "input": None, "normalized_shape": None, "weight": None, "bias": None, "eps": 1e-5,
    },
}  # fmt: skip
KINDS = {nn.Linear: F.linear, nn.Embedding: F.embedding, nn.LayerNorm: F.layer_norm}


class InsideMap(nn.Module):
    """``W x + b`` inside a layer, by the names that the layer has for them. In a recurrence it is
    called at the end, with what it took in at all steps and what stands for its output.
    """

    def __init__(self, layer: nn.Module, weight: str, bias: str) -> None:
        super().__init__()
        self.layer = (layer,)  # in a tuple: not a child
        self.names = weight, bias

    @property
    def weight(self) -> Tensor:
        found: Tensor = getattr(self.layer[0], self.names[0])
        return found

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.layer[0], self.names[1], None)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return F.linear(x, self.weight, self.bias) if out is None else out


@contextmanager
def running(forwards: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """While inside, these layers run other lines than their own."""
    try:
        for layer, forward in forwards.items():
            layer.forward = forward
        yield
    finally:
        for layer in forwards:
            vars(layer).pop("forward", None)


def insides(model: nn.Module) -> dict[str, nn.Module]:
    """The plain layer inside every such subclass, by the name it is watched under.

    >>> class Scaled(nn.Linear):
    ...     def forward(self, x):
    ...         return 2 * super().forward(x)
    >>> list(insides(nn.Sequential(nn.Linear(2, 2), Scaled(2, 2))))
    ['1.inside']
    """
    found = {}
    for name, module in model.named_modules():
        kind: Any = next((base for base in KINDS if isinstance(module, base)), None)
        own = kind is not None and type(module).forward is not kind.forward
        if own and "forward" not in vars(module) and not is_parametrized(module):
            found[name + INSIDE] = _base(module, kind)
    return found


def _base(module: nn.Module, kind: Any) -> nn.Module:
    """A plain layer with the same parameters and settings, and hooks of its own."""
    base: nn.Module = kind.__new__(kind)
    nn.Module.__init__(base)
    vars(base).update({k: v for k, v in vars(module).items() if k not in vars(base)})
    for name in ("weight", "bias"):
        base.register_parameter(name, getattr(module, name, None))
    return base


def seen(
    inside: Mapping[str, nn.Module], note: Callable[[LayerCall], Any]
) -> AbstractContextManager[Any]:
    """While inside, ``note`` is told of what these layers do; it may return another output."""
    return _Seen(inside, note) if inside else nullcontext()


class _Seen(TorchFunctionMode):
    def __init__(self, inside: Mapping[str, nn.Module], note: Callable[[LayerCall], Any]) -> None:
        super().__init__()
        self.by_weight = {id(base.weight): (name, base) for name, base in inside.items()}
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func not in TAKES:
            return out
        given = {**TAKES[func], **dict(zip(TAKES[func], args, strict=False)), **kwargs}
        name, base = self.by_weight.get(id(given["weight"]), ("", None))
        if base is None or KINDS[type(base)] is not func or not _as_base(base, given):
            return out
        other = self.note(LayerCall(name, base, (given["input"],), {}, out))
        return out if other is None else other


def _as_base(base: nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether a call is what the plain layer would do."""
    pairs = [(v, getattr(base, k, None)) for k, v in given.items() if k != "input"]
    return all(a is b or (not isinstance(a, Tensor) and a == b) for a, b in pairs)
