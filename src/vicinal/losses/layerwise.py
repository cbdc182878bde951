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

from vicinal.checks import InputError, closest

Loss = Callable[[Tensor, Tensor], Tensor]


class LayerwiseLoss(nn.Module):
    """Weighted sum of a loss over named layers of a model.

    ``loss``: for all layers, or one for each as a mapping (learned temperatures of their own).
    ``layers``: names as in ``model.named_modules()``, each with its weight.

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

        A layer that runs several times in a forward leaves its last output. The hooks go with the
        block; the model is left as it was.
        """
        modules = dict(model.named_modules())
        for name in self.layers:
            if name not in modules:
                near = closest(name, [n for n in modules if n])
                hint = f" The closest: {', '.join(map(repr, near))}." if near else ""
                raise InputError(f"`layers`: the model has no layer {name!r}.{hint}")
        activations: dict[str, Tensor] = {}
        hooks = [
            modules[name].register_forward_hook(_keep(activations, name)) for name in self.layers
        ]
        try:
            yield activations
        finally:
            for hook in hooks:
                hook.remove()

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


def _keep(activations: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: object, output: object) -> None:
        if not isinstance(output, Tensor) or output.ndim < 2:
            raise InputError(
                f"layer {name!r} ({type(module).__name__}) gives {type(output).__name__}, not a "
                "tensor with a row for each sample. Name a layer inside it."
            )
        activations[name] = output

    return hook
