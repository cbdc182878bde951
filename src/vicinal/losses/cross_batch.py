r"""A loss over the batch and the last batches at once (Wang et al. 2020's cross-batch memory).

Anchors are the batch's rows. They meet one another, without themselves, and the rows of a
:class:`MemoryBank` *in one sum*: with a softmax this is another loss than the sum of two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from vicinal.checks import InputError

from .memory_bank import MemoryBank


class CrossBatchLoss(nn.Module):
    """``loss`` of a batch among itself and ``bank``; the batch then joins the bank.

    A loss of ``(x, labels)``, so it stands wherever one may:
    ``GradCache(model, CrossBatchLoss(loss, bank), 32)``, and
    ``DistributedLoss(CrossBatchLoss(loss, bank))``, whose banks hold the batches of all processes,
    the same on each. A bank that was filled by a network of long ago is best cleared.

    Parameters
    ----------
    loss:
        A loss that takes ``reference``, ``reference_labels`` and ``exclude_self``: soft nearest
        neighbor, supervised contrastive, NT-Xent, triplet, contrastive, multi-similarity, circle.
    bank:
        The memory. In evaluation mode it is read and not written.
    attached:
        Let the gradient pass through the batch's rows as neighbors too, not as anchors alone.

    >>> import torch
    >>> from vicinal.losses import NTXentLoss
    >>> step = CrossBatchLoss(NTXentLoss(), MemoryBank(dim=2, size=8))
    >>> value = step(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1]))
    >>> len(step.bank)
    3
    """

    def __init__(
        self, loss: Callable[..., Tensor], bank: MemoryBank, *, attached: bool = False
    ) -> None:
        super().__init__()
        called = loss.forward if isinstance(loss, nn.Module) else loss
        if "exclude_self" not in inspect.signature(called).parameters:
            name = getattr(loss, "__name__", type(loss).__name__)
            raise InputError(
                f"`loss` must be one that takes a reference and `exclude_self`, got {name}. "
                "Proxies and class scores need no memory: they meet every class at each step."
            )
        self.loss = loss
        self.bank = bank
        self.attached = attached

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        keys: Any = x if self.attached else x.detach()
        value = self.loss(x, labels, **self.bank.as_reference(keys, labels))
        if self.training:
            self.bank.add(x, labels)
        return value
