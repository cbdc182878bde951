"""Foolbox's attacks on our models (the extra ``vicinal[attacks]``): a second opinion."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.capture import evaluating
from vicinal.checks import InputError
from vicinal.perturbations.climb import differentiable


def to_foolbox(model: Any, bounds: tuple[float, float] = (0.0, 1.0)) -> Any:
    """The model as a ``foolbox.PyTorchModel`` in evaluation mode.

    ``model``: what :func:`~vicinal.perturbations.pgd` takes, a network, a network with a neighbor
    head, or a fitted head on embeddings (then ``bounds`` must hold them).
    """
    foolbox = _foolbox()
    net = differentiable(model)
    module = net if isinstance(net, nn.Module) else _Called(net)
    return foolbox.PyTorchModel(module.eval(), bounds=bounds)


def foolbox_attack(
    attack: Any, model: Any, x: Tensor, y: Tensor, epsilon: float,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:  # fmt: skip
    """The inputs after a foolbox attack.

    Parameters
    ----------
    attack
        An instance, e.g. ``foolbox.attacks.LinfPGD()``.
    model, x, y, epsilon, bounds
        As for :func:`~vicinal.perturbations.pgd`.
    """
    net = differentiable(model)
    with evaluating(net), torch.enable_grad():
        _, clipped, _ = attack(to_foolbox(net, bounds), x, y, epsilons=epsilon)
    return torch.as_tensor(clipped).detach()


class _Called(nn.Module):
    """A plain function as a module: foolbox asks for one."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return self.call(x)


def _foolbox() -> Any:
    try:
        return importlib.import_module("foolbox")
    except ImportError as error:
        raise InputError(
            "foolbox is not installed. Install it with `pip install 'vicinal[attacks]'`, or use "
            "vicinal.perturbations.pgd, which needs nothing else."
        ) from error
