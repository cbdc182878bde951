r"""One loss on several layers of a model, in one forward.

.. math:: \ell = \sum_l w_l \, \ell(h_l(x), y)

A positive weight minimizes the loss of a layer, a negative one maximizes it (Frosst et al. 2019
entangle the hidden layers and let the cross-entropy separate the last).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vicinal.capture import listening
from vicinal.checks import InputError

Loss = Callable[[Tensor, Tensor], Tensor]


class LayerwiseLoss(nn.Module):
    """Weighted sum of a loss over named layers of a model.

    Parameters
    ----------
    loss:
        For all layers, or one for each as a mapping (learned temperatures of their own).
    layers:
        Names as in ``model.named_modules()``, each with its weight.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> spread = LayerwiseLoss(lambda h, y: h.square().mean(), layers={"0": 1.0, "1": -0.5})
    >>> with spread.watch(model) as activations:
    ...     logits = model(torch.ones(5, 2))
    >>> spread(activations, torch.zeros(5)).shape
    torch.Size([])
    """

    def __init__(self, loss: Loss | Mapping[str, Loss], layers: Mapping[str, float]) -> None:
        super().__init__()
        if not layers:
            raise InputError("`layers` is empty: name at least one layer and its weight.")
        self.layers = dict(layers)
        losses = dict(loss) if isinstance(loss, Mapping) else dict.fromkeys(layers, loss)
        missing = [name for name in layers if name not in losses]
        if missing:
            raise InputError(
                f"`loss` has no entry for layer {missing[0]!r}: it has {list(losses)}."
            )
        self._losses = {name: losses[name] for name in layers}
        # names of layers hold dots, which a ModuleDict refuses; shared losses are registered once
        modules = {id(m): m for m in self._losses.values() if isinstance(m, nn.Module)}
        self.losses = nn.ModuleList(modules.values())

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Within the block, each forward of ``model`` fills the mapping with the layers' outputs.

        A layer that runs several times leaves its last output. The model is left as it was.
        """
        with listening(model, list(self.layers), _with_rows) as activations:
            yield activations

    def terms(self, activations: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """The loss of each layer, not yet weighted: what to log."""
        absent = [name for name in self.layers if name not in activations]
        if absent:
            raise InputError(
                f"`activations` lacks layer {absent[0]!r}: it did not run in the watched forward "
                f"(there are {list(activations)})."
            )
        return {
            name: loss(activations[name].flatten(1), labels) for name, loss in self._losses.items()
        }

    def forward(self, activations: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        terms = self.terms(activations, labels)
        return torch.stack([self.layers[name] * term for name, term in terms.items()]).sum()


def _with_rows(name: str, output: Tensor) -> Tensor:
    if output.ndim < 2:
        raise InputError(
            f"layer {name!r} gives a tensor of shape {tuple(output.shape)}, not a row for each "
            "sample. Name another layer."
        )
    return output
