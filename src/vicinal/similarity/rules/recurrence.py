r"""Recurrence unrolled: ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` as the linear maps they are made of.

Each layer and direction has two, of the inputs and of the last state,

.. math:: a_t = W_{ih} x_t + b_{ih}, \qquad u_t = W_{hh} h_{t-1} + b_{hh},

and gates of their values. So the gradients of a sample are sums over its steps,
:math:`\partial f/\partial W_{hh} = \sum_t (\partial f/\partial u_t)\, h_{t-1}^\top`, as those of a
linear layer are over its places. While :func:`unrolled`, recurrent layers run the lines below. The
maps of the inputs are called once for all steps; those of the states are added to zeros that are
seen as *their* output: the gradient there is that of every :math:`u_t`, in one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class InputGates(nn.Module):
    """``W_ih x + b_ih`` of one layer and direction, whose parameters they are."""

    kind = "ih"

    def __init__(self, recurrent: nn.RNNBase, suffix: str) -> None:
        super().__init__()
        self.recurrent = (recurrent,)  # in a tuple: not a child
        self.suffix = suffix

    @property
    def weight(self) -> Tensor:
        found: Tensor = getattr(self.recurrent[0], f"weight_{self.kind}{self.suffix}")
        return found

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.recurrent[0], f"bias_{self.kind}{self.suffix}", None)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class StateGates(InputGates):
    """``W_hh h + b_hh``; called with the states of all steps and the tensor that stands for it."""

    kind = "hh"

    def forward(self, x: Tensor, out: Tensor) -> Tensor:  # type: ignore[override]
        return out


def can_unroll(module: nn.Module) -> bool:
    """One of torch's own three, without projected states."""
    plain = type(module) in (nn.LSTM, nn.GRU, nn.RNN) and "forward" not in vars(module)
    return plain and module.proj_size == 0


def suffixes(module: nn.RNNBase) -> list[str]:
    """How torch names the parameters of each layer and direction."""
    ways = ("", "_reverse") if module.bidirectional else ("",)
    return [f"_l{layer}{way}" for layer in range(module.num_layers) for way in ways]


def gates(model: nn.Module) -> dict[str, InputGates]:
    """The maps of every recurrent layer that can be unrolled, by the name they are watched under.

    >>> list(gates(nn.Sequential(nn.GRU(2, 3))))
    ['0.ih_l0', '0.hh_l0']
    """
    return {
        f"{name}.{kind.kind}{suffix}": kind(module, suffix)
        for name, module in model.named_modules()
        if isinstance(module, nn.RNNBase) and can_unroll(module)
        for suffix in suffixes(module)
        for kind in (InputGates, StateGates)
    }


@contextmanager
def unrolled(inside: Mapping[str, InputGates]) -> Iterator[None]:
    """While inside, the recurrent layers of these maps run unrolled."""
    found: dict[nn.RNNBase, dict[tuple[str, str], InputGates]] = {}
    for one in inside.values():
        found.setdefault(one.recurrent[0], {})[one.kind, one.suffix] = one
    try:
        for module, maps in found.items():
            module.forward = partial(recur, module, maps)  # type: ignore[method-assign]
        yield
    finally:
        for module in found:
            vars(module).pop("forward", None)


def recur(
    module: nn.RNNBase,
    maps: Mapping[tuple[str, str], InputGates],
    input: Any,
    hx: Any = None,
) -> Any:
    """The layer's forward in eval mode; packed sequences and single samples as torch does it."""
    if not isinstance(input, Tensor) or input.ndim != 3:
        return type(module).forward(module, input, hx)
    x = input if module.batch_first else input.transpose(0, 1)
    names = suffixes(module)
    zeros = x.new_zeros(len(names), len(x), module.hidden_size)
    first = (zeros, zeros) if hx is None else hx if isinstance(hx, tuple) else (hx, zeros)
    ways, last = 2 if module.bidirectional else 1, []
    for layer in range(module.num_layers):
        found = []
        for i in range(layer * ways, (layer + 1) * ways):
            pair = maps["ih", names[i]], maps["hh", names[i]]
            backwards = names[i].endswith("_reverse")
            out, end = _steps(module, pair, x, (first[0][i], first[1][i]), backwards)
            found.append(out)
            last.append(end)
        x = torch.cat(found, 2)
    h, c = (torch.stack(ends) for ends in zip(*last, strict=True))
    out = x if module.batch_first else x.transpose(0, 1)
    return out, (h, c) if isinstance(module, nn.LSTM) else h


def _steps(
    module: nn.RNNBase,
    maps: tuple[InputGates, InputGates],
    x: Float[Tensor, "n t i"],
    start: tuple[Tensor, Tensor],
    backwards: bool,
) -> tuple[Float[Tensor, "n t h"], tuple[Tensor, Tensor]]:
    """One layer in one direction: its outputs, and its last state."""
    into, onto = maps
    given = into(x)
    stand_in = torch.zeros_like(given).requires_grad_(torch.is_grad_enabled())
    stand_in = stand_in.view_as(stand_in)
    # The parameters are read once each: the plan counts their uses.
    weight, bias = onto.weight.t(), onto.bias
    added = stand_in if bias is None else stand_in + bias
    cell = _CELLS[type(module)]
    steps = range(x.shape[1])[::-1] if backwards else range(x.shape[1])
    inputs, extra = (
        (given.unbind(1), added.unbind(1)) if cell is _gru else ((given + added).unbind(1), None)
    )
    (h, c), states, outs = start, [start[0]] * x.shape[1], [start[0]] * x.shape[1]
    for t in steps:
        states[t] = h
        if extra is None:
            gate = torch.addmm(inputs[t], h, weight)
            h, c = cell(module, (gate,), h, c)
        else:
            h, c = cell(module, (inputs[t], torch.addmm(extra[t], h, weight)), h, c)
        outs[t] = h
    onto(torch.stack(states, 1), stand_in)
    return torch.stack(outs, 1), (h, c)


def _lstm(
    module: nn.RNNBase, given: Sequence[Tensor], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    both, g, o = given[0].split([2 * h.shape[1], h.shape[1], h.shape[1]], 1)
    i, f = both.sigmoid().chunk(2, 1)
    c = f * c + i * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(
    module: nn.RNNBase, given: Sequence[Tensor], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    width = [2 * h.shape[1], h.shape[1]]
    (both, n), (both_h, n_h) = given[0].split(width, 1), given[1].split(width, 1)
    r, z = (both + both_h).sigmoid().chunk(2, 1)
    return torch.lerp((n + r * n_h).tanh(), h, z), c


def _rnn(
    module: nn.RNNBase, given: Sequence[Tensor], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    return (given[0].relu() if module.nonlinearity == "relu" else given[0].tanh()), c


_CELLS: dict[type[nn.RNNBase], Any] = {nn.LSTM: _lstm, nn.GRU: _gru, nn.RNN: _rnn}
