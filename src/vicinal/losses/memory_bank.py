"""Embeddings of earlier batches as more neighbors for a loss (Wang et al. 2020's cross-batch
memory).

A ring of the last ``size`` rows. It starts empty, never with noise, and its whole state (rows,
labels, where to write, how many there are) is in ``state_dict``.
"""

from __future__ import annotations

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

    In a loop: ``loss(z, y) + loss(z, y, **bank.as_reference())`` once the bank has rows, then
    ``bank.add(z, y)``: the batch meets itself without self-pairs, and the past.
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

    def as_reference(self) -> dict[str, Tensor]:
        """``reference=`` and ``reference_labels=`` for a loss."""
        if not len(self):
            raise InputError("the bank is empty: add a batch before using it as reference.")
        return {"reference": self.reference, "reference_labels": self.reference_labels}

    @torch.no_grad()
    def add(self, x: Any, labels: Any) -> None:
        """Write a batch over the oldest rows; no gradient is kept."""
        x = as_rows(x, "x").detach()
        labels = as_labels(labels, len(x))
        size, dim = self.rows.shape
        if x.shape[1] != dim:
            raise InputError(f"`x` has {x.shape[1]} dimensions, the bank keeps rows of {dim}.")
        if labels.shape[1:] != self.labels.shape[1:]:
            kind = "integers (n,)" if self.labels.ndim == 1 else f"(n, {self.labels.shape[1]})"
            raise InputError(f"`labels` must be {kind}, as the bank's, got {tuple(labels.shape)}.")
        x, labels = x[-size:], labels[-size:]
        places = (self.cursor + torch.arange(len(x), device=self.cursor.device)) % size
        self.rows[places] = x.to(self.rows)
        self.labels[places] = labels.to(self.labels)
        self.cursor.copy_((self.cursor + len(x)) % size)
        self.filled.copy_((self.filled + len(x)).clamp_max(size))

    def clear(self) -> None:
        """Forget all rows, as when the model changed too much for them."""
        self.cursor.zero_()
        self.filled.zero_()
