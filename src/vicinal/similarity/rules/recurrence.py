r"""Recurrence unrolled: ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` as the linear maps they are made of.

Each layer and direction has two, of the inputs and of the last state,

.. math:: a_t = W_{ih} x_t + b_{ih}, \qquad u_t = W_{hh} h_{t-1} + b_{hh},

and gates of their values. So the gradients of a sample are sums over its steps,
:math:`\partial f/\partial W_{hh} = \sum_t (\partial f/\partial u_t)\, h_{t-1}^\top`, as those of a
linear layer are over its places. An LSTM with ``proj_size`` has a third, :math:`h_t = W_{hr}\,
o_t \tanh c_t`. While :func:`unrolled`, recurrent layers run the lines below. The maps of the inputs
are called once for all steps; those of the states are added to zeros that are seen as *their*
output: the gradient there is that of every :math:`u_t`, in one tensor. Packed sequences run side by
side in the order of the samples; past its end a sequence keeps its state, so no gradient is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from vicinal.neighbors.product import product
from vicinal.similarity.rules.inside import InsideMap, running


class StatesMap(InsideMap):
    """A map that is not called but at the end, with what it took in at all steps and the tensor
    that stands for its output.
    """

    def forward(self, x: Tensor, out: Tensor) -> Tensor:  # type: ignore[override]
        return out


MAPS = {"ih": InsideMap, "hh": StatesMap, "hr": StatesMap}  # by torch's names: W_ih, W_hh, W_hr


def can_unroll(module: nn.Module) -> bool:
    """One of torch's own three."""
    return type(module) in (nn.LSTM, nn.GRU, nn.RNN) and "forward" not in vars(module)


def _kinds(module: nn.RNNBase) -> list[str]:
    return [*MAPS][: 3 if module.proj_size else 2]


def suffixes(module: nn.RNNBase) -> list[str]:
    """How torch names the parameters of each layer and direction."""
    ways = ("", "_reverse") if module.bidirectional else ("",)
    return [f"_l{layer}{way}" for layer in range(module.num_layers) for way in ways]


def gates(model: nn.Module) -> dict[str, InsideMap]:
    """The maps of every recurrent layer that can be unrolled, by the name they are watched under.

    >>> list(gates(nn.Sequential(nn.GRU(2, 3))))
    ['0.ih_l0', '0.hh_l0']
    """
    return {
        f"{name}.{kind}{suffix}": MAPS[kind](
            module, f"weight_{kind}{suffix}", f"bias_{kind}{suffix}"
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.RNNBase) and can_unroll(module)
        for suffix in suffixes(module)
        for kind in _kinds(module)
    }


def unrolled(inside: Mapping[str, InsideMap], twice: bool = False) -> AbstractContextManager[None]:
    """While inside, the recurrent layers of these maps run unrolled; ``twice``: so that their
    gradients can be differentiated.
    """
    found: dict[nn.RNNBase, dict[str, InsideMap]] = {}
    for one in inside.values():
        if isinstance(one.layer[0], nn.RNNBase):
            found.setdefault(one.layer[0], {})[one.names[0]] = one
    return running({layer: partial(recur, layer, maps, twice) for layer, maps in found.items()})


def recur(
    module: nn.RNNBase,
    maps: Mapping[str, InsideMap],
    twice: bool,
    input: Any,
    hx: Any = None,
) -> Any:
    """The layer's forward in eval mode; single samples as torch does it."""
    packed = input if isinstance(input, PackedSequence) else None
    if packed is None and input.ndim != 3:
        return type(module).forward(module, input, hx)
    lengths = None
    if packed is not None:
        x, lengths = pad_packed_sequence(packed, batch_first=True)
    else:
        x = input if module.batch_first else input.transpose(0, 1)
    names = suffixes(module)
    c0 = x.new_zeros(len(names), len(x), module.hidden_size)
    h0 = c0[..., : module.proj_size or None]
    first = (h0, c0) if hx is None else hx if isinstance(hx, tuple) else (hx, c0)
    ways, last = 2 if module.bidirectional else 1, []
    for layer in range(module.num_layers):
        found = []
        for i in range(layer * ways, (layer + 1) * ways):
            own = {kind: maps[f"weight_{kind}{names[i]}"] for kind in _kinds(module)}
            steps = _Steps(module, own, lengths, twice)
            out, end = steps(x, (first[0][i], first[1][i]), names[i].endswith("_reverse"))
            found.append(out)
            last.append(end)
        x = torch.cat(found, 2)
    h, c = (torch.stack(ends) for ends in zip(*last, strict=True))
    states = (h, c) if isinstance(module, nn.LSTM) else h
    if packed is not None:
        return _packed(x, packed), states
    return x if module.batch_first else x.transpose(0, 1), states


def _packed(x: Float[Tensor, "n t h"], like: PackedSequence) -> PackedSequence:
    """Rows of samples, packed as others were."""
    x = x if like.sorted_indices is None else x[like.sorted_indices]
    data = torch.cat([x[:size, t] for t, size in enumerate(like.batch_sizes.tolist())])
    return like._replace(data=data)


@dataclass(frozen=True)
class _Steps:
    """One layer in one direction: its maps by kind, how long each sequence is if they differ, and
    whether the steps will be differentiated twice.
    """

    module: nn.RNNBase
    maps: Mapping[str, InsideMap]
    lengths: Int[Tensor, " n"] | None
    twice: bool

    def __call__(
        self, x: Float[Tensor, "n t i"], start: tuple[Tensor, Tensor], backwards: bool
    ) -> tuple[Float[Tensor, "n t h"], tuple[Tensor, Tensor]]:
        """The outputs, and the last state."""
        onto, project = self.maps["hh"], self.maps.get("hr")
        given = self.maps["ih"](x)
        # The parameters are read once each: the plan counts their uses.
        weight, bias = onto.weight, onto.bias
        plain = self.twice or project is not None or self.lengths is not None
        if isinstance(self.module, nn.LSTM) and not plain:
            both = given if bias is None else given + bias
            states, outs, *end = LSTMSteps.apply(both, weight, *start, backwards)
            onto(states, given)  # it is added to that: their gradients are the same
            return outs, (end[0], end[1])
        stand_in = _stand_in(given)
        added = stand_in if bias is None else stand_in + bias
        gates = (given, added) if isinstance(self.module, nn.GRU) else (given + added,)
        through = None if project is None else _Through(project, x, self.module.proj_size)
        states, outs, end = self._one_by_one(gates, weight.t(), start, backwards, through)
        onto(states, stand_in)
        return outs, end

    def _one_by_one(
        self,
        gates: tuple[Tensor, ...],
        weight: Tensor,
        start: tuple[Tensor, Tensor],
        backwards: bool,
        through: _Through | None,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The state before each step, the output after it, and the last state."""
        cell, (h, c) = _CELLS[type(self.module)], start
        steps = list(enumerate(zip(*(gate.unbind(1) for gate in gates), strict=True)))
        states, outs = [h] * len(steps), [h] * len(steps)
        for t, (*rest, last) in reversed(steps) if backwards else steps:
            states[t] = h
            new = cell(self.module, (*rest, torch.addmm(last, h, weight)), h, c)
            if through is not None:
                new = through(t, new[0]), new[1]
            if self.lengths is not None:
                goes_on = (t < self.lengths).to(h.device)[:, None]
                new = torch.where(goes_on, new[0], h), torch.where(goes_on, new[1], c)
            h, c = new
            outs[t] = h
        if through is not None:
            through.end()
        return torch.stack(states, 1), torch.stack(outs, 1), (h, c)


class _Through:
    """``W_hr`` step by step."""

    def __init__(self, project: InsideMap, x: Tensor, size: int) -> None:
        self.project, self.weight = project, project.weight.t()
        self.stand_in = _stand_in(x.new_empty(*x.shape[:2], size))
        self.taken = [x] * x.shape[1]

    def __call__(self, t: int, h: Tensor) -> Tensor:
        self.taken[t] = h
        return torch.addmm(self.stand_in[:, t], h, self.weight)

    def end(self) -> None:
        self.project(torch.stack(self.taken, 1), self.stand_in)


def _stand_in(like: Tensor) -> Tensor:
    """Zeros that have an edge."""
    zeros = torch.zeros_like(like).requires_grad_(torch.is_grad_enabled())
    return zeros.view_as(zeros)


class LSTMSteps(torch.autograd.Function):
    r"""``(gates (n, t, 4h), W_hh, h, c, backwards)`` to the state before each step, the output
    after it, and the last state; its derivative by hand, without that of W_hh.

    With :math:`c_t = f c_{t-1} + i g` and :math:`h_t = o \tanh c_t`, all that does not depend on
    the gradient, such as :math:`g\, i(1 - i)`, is computed once for all steps and outputs of f.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, back: bool) -> Any:
        given = gates.transpose(0, 1).contiguous()
        steps = range(len(given))[::-1] if back else range(len(given))
        size, made = h.shape[1], torch.empty_like(given)
        before, bent, states, outs = (made.new_empty(len(made), *h.shape) for _ in range(4))
        for t in steps:
            states[t], before[t] = h, c
            both, g, o = product(h, weight, given[t]).split([2 * size, size, size], 1)
            into, g_into, o_into = made[t].split([2 * size, size, size], 1)
            i, f = torch.sigmoid(both, out=into).chunk(2, 1)
            c = torch.addcmul(f * c, i, torch.tanh(g, out=g_into))
            h = torch.mul(torch.sigmoid(o, out=o_into), torch.tanh(c, out=bent[t]), out=outs[t])
        ctx.save_for_backward(weight, made, before, bent)
        ctx.set_materialize_grads(False)
        ctx.steps, ctx.slopes = steps[::-1], None
        return states.transpose(0, 1), outs.transpose(0, 1), h.clone(), c

    @staticmethod
    def backward(ctx: Any, _: Any, outs: Any, last_h: Any, last_c: Any) -> Any:
        weight, made, before, bent = ctx.saved_tensors
        if ctx.slopes is None:
            i, f, g, o = made.chunk(4, 2)
            three = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], 2)
            each = three, bent * o * (1 - o), o * (1 - bent * bent), f
            ctx.slopes = list(zip(*(slope.unbind() for slope in each), strict=True))
        steps, n, size = bent.shape
        found, none = made.new_empty(n, steps, 4, size), torch.zeros_like(bent[0])
        into = list(zip(found[:, :, :3].unbind(1), found[:, :, 3].unbind(1), strict=True))
        rows, given = found.flatten(2).unbind(1), None if outs is None else outs.unbind(1)
        dh, dc = (none if last is None else last for last in (last_h, last_c))
        for t in ctx.steps:
            three, last, into_c, f = ctx.slopes[t]
            dh = dh if given is None else dh + given[t]
            dc = torch.addcmul(dc, dh, into_c)
            torch.mul(dc[:, None], three, out=into[t][0])
            torch.mul(dh, last, out=into[t][1])
            dh, dc = product(rows[t], weight.t()), dc * f
        return found.flatten(2), None, dh, dc, None


def _lstm(
    module: nn.RNNBase, given: Sequence[Tensor], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    both, g, o = given[0].split([2 * c.shape[1], c.shape[1], c.shape[1]], 1)
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
