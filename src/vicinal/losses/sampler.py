"""Batches in which every anchor has company: so many classes, so many samples of each.

A neighborhood loss leaves out an anchor without a peer; random batches of many classes are full of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from vicinal.checks import InputError, check_whole

from .conventions import as_hard_labels


class ClassBalancedBatchSampler(Sampler[list[int]]):
    """Batches of ``classes_per_batch`` × ``samples_per_class`` indices, for ``batch_sampler=``.

    Classes come in turn, each time in a new order, and so do a class's samples: none repeats before
    all have been drawn, and never within a batch.

    Parameters
    ----------
    labels:
        Integers, one for each sample.
    classes_per_batch, samples_per_class:
        How many classes are in a batch, and how many samples of each.
    batches:
        Per epoch; None: as many as the data fills.
    generator:
        Draws the order; it moves on from epoch to epoch.

    >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> batches = list(ClassBalancedBatchSampler(labels, 2, 2))
    >>> all(len(set(labels[batch].tolist())) == 2 for batch in batches)
    True
    """

    def __init__(
        self,
        labels: Any,
        classes_per_batch: int,
        samples_per_class: int,
        *,
        batches: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        labels = as_hard_labels(torch.as_tensor(labels), len(labels)).cpu()
        values, counts = labels.unique(return_counts=True)
        if not 1 <= classes_per_batch <= len(values):
            raise InputError(
                f"`classes_per_batch` must lie between 1 and the {len(values)} of `labels`, "
                f"got {classes_per_batch!r}."
            )
        check_whole(samples_per_class, "samples_per_class", 1)
        short = values[counts < samples_per_class].tolist()
        if short:
            raise InputError(
                f"class {short[0]} has fewer than `samples_per_class`={samples_per_class} samples "
                f"({len(short)} such classes). Lower it, or leave these classes out."
            )
        self.members = [(labels == value).nonzero().flatten() for value in values]
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        self.batches = batches or max(1, len(labels) // (classes_per_batch * samples_per_class))
        self.generator = generator

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        classes = _Reshuffled(torch.arange(len(self.members)), self.generator)
        samples = [_Reshuffled(rows, self.generator) for rows in self.members]
        for _ in range(self.batches):
            chosen = classes.draw(self.classes_per_batch)
            yield [i for c in chosen for i in samples[c].draw(self.samples_per_class)]


class _Reshuffled:
    """Items drawn without replacement, and shuffled anew when they run short."""

    def __init__(self, items: Tensor, generator: torch.Generator | None) -> None:
        self.items = items
        self.generator = generator
        self.left: list[int] = []

    def draw(self, count: int) -> list[int]:
        """``count`` different items; what is left of the last shuffle goes first."""
        drawn, self.left = self.left[:count], self.left[count:]
        if len(drawn) < count:
            order = torch.randperm(len(self.items), generator=self.generator)
            fresh = [c for c in self.items[order].tolist() if c not in drawn]
            missing = count - len(drawn)
            drawn, self.left = drawn + fresh[:missing], fresh[missing:] + drawn
        return drawn
