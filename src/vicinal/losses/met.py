"""Whom an anchor meets: its own class and the others, in the batch or in a reference.

The losses of margins (triplet, contrastive, multi-similarity, circle) look at every pair by itself;
:mod:`.pairs` is for those that are sums of exponentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_same_width
from vicinal.neighbors.mass import agreement
from vicinal.neighbors.tiles.masses import check_same_kind

from .conventions import LossModule, as_hard_labels, as_labels, as_rows, check_own_rows


class Triplets(NamedTuple):
    """Rows of anchors, and of their positives and negatives in what they meet."""

    anchors: Int[Tensor, " t"]
    positives: Int[Tensor, " t"]
    negatives: Int[Tensor, " t"]


@dataclass(frozen=True)
class Met:
    """Anchors ``x``, the rows ``y`` they meet (a reference, or one another), and their labels."""

    x: Float[Tensor, "n d"]
    y: Float[Tensor, "m d"]
    labels: Tensor
    y_labels: Tensor
    selfless: bool  # row i of y is anchor i, and nobody meets himself

    @classmethod
    def of(
        cls,
        x: Any,
        labels: Any,
        reference: Any,
        reference_labels: Any,
        exclude_self: bool,
        *,
        soft: bool = False,
    ) -> Met:
        """Checked; labels may be ``soft`` where a loss has a meaning for them."""
        read = as_labels if soft else as_hard_labels
        x = as_rows(x, "x")
        labels = read(labels, len(x))
        labels = labels.to(x.dtype) if labels.ndim == 2 else labels
        if (reference is None) != (reference_labels is None):
            raise InputError("`reference` and `reference_labels` go together: pass both or none.")
        if exclude_self:
            check_own_rows(len(x), reference)
        if reference is None:
            return cls(x, x, labels, labels, True)
        y = as_rows(reference, "reference").to(x.dtype)
        check_same_width(x, y, "x", "reference")
        y_labels = read(reference_labels, len(y), "reference_labels")
        check_same_kind(labels, y_labels)
        return cls(x, y, labels, y_labels.to(labels.dtype), exclude_self)

    def agreement(self, start: int, stop: int) -> Tensor:
        """Which pairs of a block of anchors share a class (bool), or how much of it (soft)."""
        return agreement(self.labels[start:stop], self.y_labels)

    def without_self(self, pairs: Tensor, start: int, value: float) -> Tensor:
        """A block of pairs in which ``value`` stands where an anchor meets himself."""
        if not self.selfless:
            return pairs
        return torch.diagonal_scatter(pairs, pairs.new_full((len(pairs),), value), start)

    def masks(self, start: int, stop: int) -> tuple[Bool[Tensor, "b m"], Bool[Tensor, "b m"]]:
        """Which pairs of a block of anchors share a class (oneself left out), and which do not.

        >>> y = torch.tensor([0, 0, 1])
        >>> Met.of(torch.eye(3), y, None, None, False).masks(0, 1)
        (tensor([[False,  True, False]]), tensor([[False, False,  True]]))
        """
        same = self.agreement(start, stop)
        return self.without_self(same, start, False), ~same


def meeting(
    self: LossModule,
    x: Tensor,
    labels: Tensor,
    reference: Tensor | None = None,
    reference_labels: Tensor | None = None,
    exclude_self: bool = False,
) -> Tensor:
    """The loss of one batch: ``forward`` of the losses that take a reference.

    Parameters
    ----------
    x, labels : rows and their classes.
    reference, reference_labels : rows that are met in place of the batch.
    exclude_self : the reference begins with the batch, and no row meets itself.
    """
    met = {"reference": reference, "reference_labels": reference_labels}
    return type(self).loss(x, labels, exclude_self=exclude_self, **met, **self.settings())
