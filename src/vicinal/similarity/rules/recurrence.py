r"""Recurrence unrolled: ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` as the linear maps they are made of.

Each layer and direction has two, of the inputs and of the last state,

.. math:: a_t = W_{ih} x_t + b_{ih}, \qquad u_t = W_{hh} h_{t-1} + b_{hh},

and gates of their values. So the gradients of a sample are sums over its steps,
:math:`\partial f/\partial W_{hh} = \sum_t (\partial f/\partial u_t)\, h_{t-1}^\top`, as those of a
linear layer are over its places. An LSTM with ``proj_size`` has a third, :math:`h_t = W_{hr}\,
o_t \tanh c_t`. While :func:`unrolled`, recurrent layers run the lines below. The maps of the states
(of an LSTM also of the inputs) are added to zeros that are seen as *their* output: the gradient
there is that of every :math:`u_t`, in one tensor. Packed sequences run side by side in the order of
the samples; past its end a sequence keeps its state, so no gradient is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from vicinal.neighbors.product import add_product, product
from vicinal.similarity.places import room
from vicinal.similarity.rules.inside import InsideMap, running

Pair: TypeAlias = tuple[Tensor, Tensor]  # a state, h and c
sigmoid_slope = torch.ops.aten.sigmoid_backward.grad_input  # (a, y): a y (1 - y)
tanh_slope = torch.ops.aten.tanh_backward.grad_input  # a (1 - y²)
KINDS = "ih", "hh", "hr"  # torch's names: W_ih, W_hh, W_hr


def can_unroll(module: nn.Module) -> bool:
    """One of torch's own three."""
    return type(module) in (nn.LSTM, nn.GRU, nn.RNN) and "forward" not in vars(module)


def _kinds(module: nn.RNNBase) -> list[str]:
    return [*KINDS][: 3 if module.proj_size else 2]


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
        f"{name}.{kind}{suffix}": InsideMap(
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
        x = torch.cat(found, 2) if ways > 1 else found[0]
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
        self, x: Float[Tensor, "n t i"], start: Pair, backwards: bool
    ) -> tuple[Float[Tensor, "n t h"], Pair]:
        """The outputs, and the last state."""
        take, onto = self.maps["ih"], self.maps["hh"]
        # The parameters are read once each: the plan counts their uses.
        weight, bias = onto.weight, onto.bias
        stand_in = _stand_in(x, len(weight))
        plain = self.twice or self.module.proj_size or self.lengths is not None
        if isinstance(self.module, nn.LSTM) and not plain:
            own = take.weight, weight, take.bias, bias
            states, outs, *end = LSTMSteps.apply(stand_in, x, *start, backwards, *own)
            take(x, stand_in)  # it is added to what stands for the other: one gradient for both
            onto(states, stand_in)
            return outs, (end[0], end[1])
        given, added = take(x), stand_in if bias is None else stand_in + bias
        gates = (given, added) if isinstance(self.module, nn.GRU) else (given + added,)
        steps = list(enumerate(zip(*(gate.unbind(1) for gate in gates), strict=True)))
        states, outs, last = self._one_by_one(
            reversed(steps) if backwards else steps, x, weight.t(), start
        )
        onto(states, stand_in)
        return outs, last

    def _one_by_one(
        self, steps: Iterable[Any], x: Tensor, weight: Tensor, start: Pair
    ) -> tuple[Tensor, Tensor, Pair]:
        """The state before each step, the output after it, and the last state."""
        cell, (h, c), project = _CELLS[type(self.module)], start, self.maps.get("hr")
        stand_in = _stand_in(x, self.module.proj_size)
        through = None if project is None else project.weight.t()
        states, bent, outs = ([h] * x.shape[1] for _ in range(3))
        for t, (*rest, last) in steps:
            states[t] = h
            bent[t], c_new = cell(self.module, (*rest, torch.addmm(last, h, weight)), h, c)
            new = bent[t] if through is None else torch.addmm(stand_in[:, t], bent[t], through)
            if self.lengths is not None:
                goes_on = (t < self.lengths).to(h.device)[:, None]
                new, c_new = torch.where(goes_on, new, h), torch.where(goes_on, c_new, c)
            outs[t] = h = new
            c = c_new
        if project is not None:
            project(torch.stack(bent, 1), stand_in)
        return torch.stack(states, 1), torch.stack(outs, 1), (h, c)


def _stand_in(x: Tensor, size: int) -> Tensor:
    """Zeros that have an edge, ``size`` for each step."""
    return x.new_zeros(()).requires_grad_().expand(*x.shape[:2], size)


class LSTMSteps(torch.autograd.Function):
    r"""``(what stands for W_ih x_t + W_hh h, x, h, c, backwards, *maps)`` to the state
    before each step, the output after it, and the last state.

    Its derivative by hand, without that of the weights: with :math:`c_t = f c_{t-1} + i g` and
    :math:`h_t = o \tanh c_t`, all that does not depend on the gradient, such as :math:`g\, i(1 -
    i)`, is computed once for all outputs of f. As :math:`\tanh z = 2\sigma(2z) - 1`, one sigmoid
    does for all gates of a step: torch's tanh takes eight times as long.
    """

    @staticmethod
    def forward(ctx: Any, _: Any, x: Any, h: Any, c: Any, back: bool, *maps: Any) -> Any:
        (n, count, width), size, (on, off) = x.shape, h.shape[1], maps[:2]
        twice = on.new_tensor([1, 1, 2, 1]).repeat_interleave(size)  # the map of g
        bias = None if maps[2] is None else (maps[2] + maps[3]) * twice
        given = product(x.transpose(0, 1).reshape(-1, width), on * twice[:, None], bias)
        gates, steep = given.view(count, n, -1), (off.t() * twice).contiguous().t()
        i, f, g, o = gates.chunk(4, 2)
        both = x.new_empty(count + 1, n, size)  # the states, each after the one before it
        states, outs = (both[1:], both[:-1]) if back else (both[:-1], both[1:])
        bent, before = x.new_empty(count, n, size), x.new_empty(count, n, size)
        ctx.steps = range(count) if back else range(count)[::-1]
        states[ctx.steps[-1]], minus = h, x.new_tensor(-1)
        each = [*zip(*(v.unbind(0) for v in (gates, i, f, g, o, before, bent, outs)), strict=True)]
        for t in ctx.steps[::-1]:
            now, i_t, f_t, g_t, o_t, before_t, bent_t, out = each[t]
            add_product(now, h, steep).sigmoid_()
            torch.add(minus, g_t, alpha=2, out=g_t)
            c = torch.mul(f_t, before_t.copy_(c)).addcmul_(i_t, g_t)
            torch.add(minus, torch.mul(c, 2, out=bent_t).sigmoid_(), alpha=2, out=bent_t)
            h = torch.mul(o_t, bent_t, out=out)
        slopes = room(x, count, 6, n, size)
        of_i, of_f, of_g, of_o, of_c, kept = slopes.unbind(1)
        sigmoid_slope(g, i, grad_input=of_i)
        sigmoid_slope(before, f, grad_input=of_f)
        tanh_slope(i, g, grad_input=of_g)
        sigmoid_slope(bent, o, grad_input=of_o)
        tanh_slope(o, bent, grad_input=of_c)
        kept.copy_(f)
        ctx.save_for_backward(on, off, slopes)
        ctx.set_materialize_grads(False)
        return states.transpose(0, 1), outs.transpose(0, 1), h.clone(), c

    @staticmethod
    def backward(ctx: Any, _: Any, *given: Any) -> Any:
        found, dx, dh, dc = _LSTMBack.apply(ctx, *given)
        return found, dx, dh, dc, None, None, None, None, None


class _LSTMBack(torch.autograd.Function):
    """The way back, of one output of f or, under ``vmap``, of all side by side."""

    @staticmethod
    def forward(steps: Any, *given: Any) -> Any:
        found = _back(steps, 1, *(None if t is None else t[None] for t in given))
        return [None if t is None else t[0] for t in found]

    @staticmethod
    def setup_context(*_: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Any, steps: Any, *given: Any) -> Any:
        every = [t if i is None else t.movedim(i, 0) for t, i in zip(given, dims[1:], strict=True)]
        return _back(steps, info.batch_size, *every), (0, 0, 0, 0)


def _back(ctx: Any, d: int, outs: Any, *last: Any) -> tuple[Tensor | None, ...]:
    """From the gradients ``(d, ...)`` at the outputs and the last state to those at the gates
    ``(d, n, t, 4h)``, at x and at the first state.
    """
    on, off, slopes = ctx.saved_tensors
    count, _, n, size = slopes.shape
    found = room(slopes, d, n, count, 4 * size)
    dh, dc = (slopes.new_zeros(d, n, size) if t is None else t for t in last)
    apart = found.unflatten(3, (4, size)).transpose(1, 3).split([3, 1], 1)
    rows, at_cell, at_o = found.flatten(0, 1).unbind(1), apart[0].unbind(2), apart[1].unbind(2)
    into, of_o, of_c, kept = (v.unbind(0) for v in slopes.split([3, 1, 1, 1], 1))
    for t in ctx.steps:
        dh = dh if outs is None else dh + outs[:, :, t]
        dc = torch.addcmul(dc, dh, of_c[t])
        torch.mul(dc[:, None], into[t], out=at_cell[t])
        torch.mul(dh[:, None], of_o[t], out=at_o[t])
        dh = add_product(dh.new_zeros(d * n, off.shape[1]), rows[t], off.t()).view(d, n, -1)
        dc.mul_(kept[t])
    wanted = ctx.needs_input_grad[1]
    dx = product(found.flatten(0, 2), on.t()).view(d, n, count, -1) if wanted else None
    return found, dx, dh, dc


def _lstm(_: Any, given: Sequence[Tensor], h: Tensor, c: Tensor) -> Pair:
    both, g, o = given[0].split([2 * c.shape[1], c.shape[1], c.shape[1]], 1)
    i, f = both.sigmoid().chunk(2, 1)
    c = f * c + i * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(_: Any, given: Sequence[Tensor], h: Tensor, c: Tensor) -> Pair:
    width = [2 * h.shape[1], h.shape[1]]
    (both, n), (both_h, n_h) = given[0].split(width, 1), given[1].split(width, 1)
    r, z = (both + both_h).sigmoid().chunk(2, 1)
    return torch.lerp((n + r * n_h).tanh(), h, z), c


def _rnn(module: nn.RNNBase, given: Sequence[Tensor], h: Tensor, c: Tensor) -> Pair:
    return (given[0].relu() if module.nonlinearity == "relu" else given[0].tanh()), c


_CELLS: dict[type[nn.RNNBase], Any] = {nn.LSTM: _lstm, nn.GRU: _gru, nn.RNN: _rnn}
