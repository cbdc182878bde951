"""Whom an anchor meets: its own class and the others, in the batch or in a reference.

The losses of margins (triplet, contrastive, multi-similarity, circle) look at every pair by itself;
:mod:`.pairs` is for those that are sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vicinal.checks import InputError, check_same_width

from .conventions import as_hard_labels, as_rows
from .pairs import check_own_rows


class Triplets(NamedTuple):
    """Rows of anchors, and of their positives and negatives in what they meet."""

    anchors: Int[Tensor, " t"]
    positives: Int[Tensor, " t"]
    negatives: Int[Tensor, " t"]


@dataclass(frozen=True)
class Met:
    """Anchors ``x``, the rows ``y`` they meet, and who is of whose class."""

    x: Float[Tensor, "n d"]
    y: Float[Tensor, "m d"]
    labels: Int[Tensor, " n"]
    y_labels: Int[Tensor, " m"]
    selfless: bool  # row i of y is anchor i, and nobody meets himself

    @classmethod
    def of(
        cls, x: Any, labels: Any, reference: Any, reference_labels: Any, exclude_self: bool
    ) -> Met:
        x = as_rows(x, "x")
        labels = as_hard_labels(labels, len(x))
        if (reference is None) != (reference_labels is None):
            raise InputError("`reference` and `reference_labels` go together: pass both or none.")
        check_own_rows(exclude_self, len(x), None if reference is None else len(reference))
        if reference is None:
            return cls(x, x, labels, labels, True)
        y = as_rows(reference, "reference").to(x.dtype)
        check_same_width(x, y, "x", "reference")
        y_labels = as_hard_labels(reference_labels, len(y), "reference_labels")
        return cls(x, y, labels, y_labels, exclude_self)

    def masks(self, start: int, stop: int) -> tuple[Bool[Tensor, "b m"], Bool[Tensor, "b m"]]:
        """Which pairs of a block of anchors share a class (oneself left out), and which do not.

        >>> y = torch.tensor([0, 0, 1])
        >>> Met.of(torch.eye(3), y, None, None, False).masks(0, 1)
        (tensor([[False,  True, False]]), tensor([[False, False,  True]]))
        """
        same = self.labels[start:stop, None] == self.y_labels
        if not self.selfless:
            return same, ~same
        anchors = torch.arange(start, stop, device=same.device)[:, None]
        return same & (anchors != torch.arange(len(self.y), device=same.device)), ~same


class MeetingLoss(nn.Module):
    """What the module forms of losses with a reference share: settings, and one call of ``loss``.

    A subclass names its settings with their defaults and hands them on; they are attributes.
    """

    loss: ClassVar[Callable[..., Tensor]]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.names = tuple(settings)
        for name, value in settings.items():
            setattr(self, name, value)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}

    def forward(
        self,
        x: Tensor,
        labels: Tensor,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
        exclude_self: bool = False,
    ) -> Tensor:
        """The loss of one batch.

        Parameters
        ----------
        x, labels : rows and their classes.
        reference, reference_labels : rows that are met in place of the batch.
        exclude_self : the reference begins with the batch, and no row meets itself.
        """
        return type(self).loss(
            x,
            labels,
            reference=reference,
            reference_labels=reference_labels,
            exclude_self=exclude_self,
            **self.settings(),
        )
