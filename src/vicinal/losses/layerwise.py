r"""One loss on several layers of a model, in one forward.

.. math:: \ell = \sum_l w_l \, \ell(h_l(x), y)

A positive weight minimizes the loss of a layer, a negative one maximizes it (Frosst et al. 2019
entangle the hidden layers and let the cross-entropy separate the last). A weight may be a schedule.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vicinal.capture import listening
from vicinal.checks import InputError, is_traced
from vicinal.neighbors.derivatives import is_derived_again

from .schedules import Schedule

Loss = Callable[[Tensor, Tensor], Tensor]


class Maximize(nn.Module):
    """The negative of any loss, to raise it; the loss's own parameters still lower it.

    A temperature or proxies are part of how the loss measures: were they to raise it too, the
    temperature would run to 0. Their gradient is reversed.

    >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 1])
    >>> from vicinal.losses import triplet_loss
    >>> Maximize(triplet_loss)(x, y), triplet_loss(x, y)
    (tensor(-0.2000), tensor(0.2000))
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        if getattr(loss, "entangle", "min") == "max":
            raise InputError('`loss` has entangle="max" already: it would be minimized again.')
        self.loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if not isinstance(self.loss, nn.Module):
            return -self.loss(x, labels)
        own = {name: 2 * p.detach() - p for name, p in self.loss.named_parameters()}
        return -functional_call(self.loss, own, (x, labels))


class LayerwiseLoss(nn.Module):
    """Weighted sum of a loss over named layers of a model.

    Parameters
    ----------
    loss:
        For all layers, or one for each as a mapping (learned temperatures of their own).
    layers:
        Names as in ``model.named_modules()``, each with its weight. A negative weight maximizes, as
        :class:`Maximize` does, whatever the loss. A schedule ``epoch -> weight`` (a
        :class:`~vicinal.losses.Ramp`) moves by :meth:`set_epoch`.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> spread = LayerwiseLoss(lambda h, y: h.square().mean(), layers={"0": 1.0, "1": -0.5})
    >>> with spread.watch(model) as activations:
    ...     logits = model(torch.ones(5, 2))
    >>> spread(activations, torch.zeros(5)).shape
    torch.Size([])
    """

    def __init__(
        self, loss: Loss | Mapping[str, Loss], layers: Mapping[str, float | Schedule]
    ) -> None:
        super().__init__()
        if not layers:
            raise InputError("`layers` is empty: name at least one layer and its weight.")
        self.layers = dict(layers)
        losses = dict(loss) if isinstance(loss, Mapping) else {n: _own(loss) for n in layers}
        missing = [name for name in layers if name not in losses]
        if missing:
            raise InputError(
                f"`loss` has no entry for layer {missing[0]!r}: it has {list(losses)}."
            )
        self._losses = {name: losses[name] for name in layers}
        # names of layers hold dots, which a ModuleDict refuses; shared losses are registered once
        modules = {id(m): m for m in self._losses.values() if isinstance(m, nn.Module)}
        self.losses = nn.ModuleList(modules.values())
        self.epoch = 0.0

    def set_epoch(self, epoch: float) -> None:
        """Tell weights and temperatures that follow a schedule where training is."""
        self.epoch = float(epoch)
        for loss in self.losses:
            tell = getattr(loss, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    def weights(self) -> dict[str, float]:
        """The weight of each layer at this epoch."""
        return {n: w(self.epoch) if callable(w) else w for n, w in self.layers.items()}

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Within the block, each forward of ``model`` fills the mapping with the layers' outputs.

        A layer that runs several times leaves its last output. The model is left as it was.
        """
        with listening(model, list(self.layers), _with_rows) as activations:
            yield activations

    def terms(self, activations: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """The loss of each layer, not yet weighted: what to log."""
        self._check(activations)
        return {name: loss(_rows(activations[name]), labels) for name, loss in self._losses.items()}

    def forward(self, activations: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        """The weighted sum; a layer whose weight is 0 now is not looked at."""
        self._check(activations)
        terms = []
        for name, weight in self.weights().items():
            if weight:
                loss = Maximize(self._losses[name]) if weight < 0 else self._losses[name]
                terms.append(abs(weight) * loss(_rows(activations[name]), labels))
        if terms:
            return torch.stack(terms).sum()
        return activations[next(iter(self.layers))].flatten()[:1].sum() * 0

    def _check(self, activations: Mapping[str, Tensor]) -> None:
        absent = [name for name in self.layers if name not in activations]
        if absent:
            raise InputError(
                f"`activations` lacks layer {absent[0]!r}: it did not run in the watched forward "
                f"(there are {list(activations)})."
            )


def _rows(h: Tensor) -> Tensor:
    """A row for each sample, whose gradient comes back as no view.

    To a view autograd adds the network's own gradient in new memory, to a tensor in place.
    """
    rows = h.flatten(1)
    if not is_traced() and h.ndim > 2 and rows.grad_fn is not None:
        rows.grad_fn.register_hook(_no_view)
    return rows


def _no_view(grads: tuple[Tensor | None], _: object) -> tuple[Tensor] | None:
    (g,) = grads
    return None if g is None or is_derived_again(g) else (g.detach(),)


def _own(loss: Loss) -> Loss:
    """A loss that keeps a fitted temperature between calls needs a copy for each layer."""
    return copy.deepcopy(loss) if getattr(loss, "every", 1) > 1 else loss


def _with_rows(name: str, output: Tensor) -> Tensor:
    if output.ndim < 2:
        raise InputError(
            f"layer {name!r} gives a tensor of shape {tuple(output.shape)}, not a row for each "
            "sample. Name another layer."
        )
    return output
