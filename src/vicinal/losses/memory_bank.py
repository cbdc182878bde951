"""Embeddings of earlier batches as more neighbors for a loss (Wang et al. 2020's cross-batch
memory).

A ring of the last ``size`` rows. It starts empty, never with noise, and its whole state (rows,
labels, where to write, how many there are) is in ``state_dict``. The batch's rows are the anchors.
They meet one another, without themselves, and the rows of the bank *in one sum*: with a softmax
this is another loss than the sum of two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.checks import InputError

from .conventions import as_labels, as_rows


class MemoryBank(nn.Module):
    """The last ``size`` embeddings and their labels: a ``reference`` for any loss that takes one.

    ``num_classes``: keep soft labels ``(size, num_classes)`` instead of integers.

    >>> bank = MemoryBank(dim=2, size=3)
    >>> bank.add(torch.eye(2), torch.tensor([0, 1]))
    >>> len(bank), bank.reference_labels.tolist()
    (2, [0, 1])
    >>> bank.add(2 * torch.eye(2), torch.tensor([2, 3]))  # the oldest row goes
    >>> len(bank), sorted(bank.reference_labels.tolist())
    (3, [1, 2, 3])

    In a loop: ``loss(z, y, **bank.as_reference(z, y))``, then ``bank.add(z, y)``: the batch meets
    itself without self-pairs, and the past, in one sum. :class:`CrossBatchLoss` is these two lines.
    """

    rows: Tensor
    labels: Tensor
    cursor: Tensor
    filled: Tensor

    def __init__(self, dim: int, size: int, *, num_classes: int | None = None) -> None:
        super().__init__()
        if dim < 1 or size < 1:
            raise InputError(f"`dim` and `size` must be at least 1, got {dim!r} and {size!r}.")
        self.register_buffer("rows", torch.zeros(size, dim))
        hard = torch.zeros(size, dtype=torch.long)
        self.register_buffer("labels", torch.zeros(size, num_classes) if num_classes else hard)
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return int(self.filled)

    @property
    def reference(self) -> Float[Tensor, "m d"]:
        """The rows kept, in no particular order of age."""
        return self.rows[: len(self)].clone()

    @property
    def reference_labels(self) -> Tensor:
        return self.labels[: len(self)].clone()

    def as_reference(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        """``reference=`` and ``reference_labels=`` for a loss.

        With a batch: its rows first (attached to their graph, as they come), then what the bank
        holds besides the ``len(x)`` oldest rows that the batch will replace in a full one;
        ``exclude_self=True`` goes with them.

        >>> bank = MemoryBank(dim=2, size=3)
        >>> bank.as_reference(torch.eye(2), torch.tensor([0, 1]))["exclude_self"]
        True
        """
        if x is not None:
            x, labels = self._checked(x, labels)
            past, past_labels = self._past(len(x))
            return {
                "reference": torch.cat([x, past.to(x)]),
                "reference_labels": torch.cat([labels, past_labels.to(labels)]),
                "exclude_self": True,
            }
        if not len(self):
            raise InputError("the bank is empty: add a batch before using it as reference.")
        return {"reference": self.reference, "reference_labels": self.reference_labels}

    def _past(self, coming: int) -> tuple[Tensor, Tensor]:
        """The rows that stay when so many come."""
        size = len(self.rows)
        stay = max(0, min(len(self), size - coming))
        # The newest row lies before the cursor, and older ones before it, around the ring.
        places = (self.cursor - 1 - torch.arange(stay, device=self.cursor.device)) % size
        return self.rows[places], self.labels[places]

    def _checked(self, x: Any, labels: Any) -> tuple[Tensor, Tensor]:
        x = as_rows(x, "x")
        labels = as_labels(labels, len(x))
        dim = self.rows.shape[1]
        if x.shape[1] != dim:
            raise InputError(f"`x` has {x.shape[1]} dimensions, the bank keeps rows of {dim}.")
        if labels.shape[1:] != self.labels.shape[1:]:
            kind = "integers (n,)" if self.labels.ndim == 1 else f"(n, {self.labels.shape[1]})"
            raise InputError(f"`labels` must be {kind}, as the bank's, got {tuple(labels.shape)}.")
        return x, labels

    @torch.no_grad()
    def add(self, x: Any, labels: Any) -> None:
        """Write a batch over the oldest rows; no gradient is kept."""
        x, labels = self._checked(x, labels)
        size = len(self.rows)
        x, labels = x.detach()[-size:], labels[-size:]
        places = (self.cursor + torch.arange(len(x), device=self.cursor.device)) % size
        self.rows[places] = x.to(self.rows)
        self.labels[places] = labels.to(self.labels)
        self.cursor.copy_((self.cursor + len(x)) % size)
        self.filled.copy_((self.filled + len(x)).clamp_max(size))

    def clear(self) -> None:
        """Forget all rows, as when the model changed too much for them."""
        self.cursor.zero_()
        self.filled.zero_()


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
