"""Whatever holds the data, as batches of inputs and labels in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from vicinal.checks import InputError, as_tensor, check_finite

_LABEL_KEYS = ("labels", "label", "targets", "target", "y")
_OWN_BATCH = 256  # rows, where a batch sampler decided how many


@dataclass(frozen=True)
class Batch:
    """What one call of the model gets, the labels that came with it, and its place in the data."""

    inputs: tuple[Any, ...]
    named: Mapping[str, Any]
    labels: Tensor | None
    rows: int
    start: int = 0

    @property
    def x(self) -> Any:
        """The input, where it is one tensor; or the tensors by name, where all are."""
        by_name = self.named and not self.inputs
        if by_name and all(isinstance(v, Tensor) for v in self.named.values()):
            return dict(self.named)
        if len(self.inputs) != 1 or not isinstance(self.inputs[0], Tensor):
            given = ", ".join([*(type(v).__name__ for v in self.inputs), *self.named])
            raise InputError(
                f"one input tensor is needed here, got more than one or by name ({given}). "
                "Wrap the model so that it takes one input tensor."
            )
        return self.inputs[0]

    def call(self, model: torch.nn.Module, device: torch.device | None) -> Any:
        """The model's output on this batch, moved to ``device`` first."""
        moved = self.to(device)
        return model(*moved.inputs, **moved.named)

    def to(self, device: torch.device | None) -> Batch:
        """The same on ``device``."""
        return self._each(lambda v: v.to(device) if isinstance(v, Tensor) and device else v)

    def take(self, first: int, last: int) -> Batch:
        """Rows ``first`` to ``last`` of a batch of one input tensor, or of tensors by name."""
        rows, part = min(last, self.rows) - first, self._each(lambda v: v[first:last])
        return replace(part, rows=rows, start=self.start + first)

    def _each(self, change: Callable[[Any], Any]) -> Batch:
        """With ``change`` done to every input and to the labels."""
        named = {k: change(v) for k, v in self.named.items()}
        labels = None if self.labels is None else change(self.labels)
        return replace(self, inputs=tuple(map(change, self.inputs)), named=named, labels=labels)


def batches(data: Any, batch_size: int, *, start: int = 0, name: str = "data") -> Iterator[Batch]:
    """Batches of ``data`` from row ``start`` on.

    Parameters
    ----------
    data
        A tensor or array; a tuple whose last entry is the labels, ``(x, y)``; a mapping of tensors
        that the model takes by name, with or without ``labels``; a ``Dataset``; a ``DataLoader``
        (:func:`in_order`) or any iterable of batches. A batch is a tensor, a tuple or list whose
        last of several entries is the labels, or a mapping (its ``labels`` taken out, the rest
        passed by name).
    batch_size
        Rows per batch, where ``data`` does not come in batches of its own.
    start
        The first row wanted.
    name
        What the caller calls ``data``, for the sentence a wrong one earns.

    Examples
    --------
    >>> [b.rows for b in batches(torch.zeros(5, 2), 2)]
    [2, 2, 1]
    """
    data = in_order(data, name)
    columns = _columns(data, name)
    if columns is not None:
        yield from _slices(columns, batch_size, start, name)
        return
    if not isinstance(data, Iterable) and not isinstance(data, Dataset):
        raise InputError(
            f"`{name}` must be a tensor, an (x, y) tuple, a Dataset or a DataLoader, "
            f"got {type(data).__name__}."
        )
    source: Any = data
    at = 0
    if isinstance(data, Dataset):
        if not isinstance(data, IterableDataset):
            count = row_count(data) or 0
            _check_rows(count, name)
            at = min(start, count)
            source = data if at == 0 else Subset(data, range(at, count))
        source = DataLoader(source, batch_size=batch_size)
    for raw in source:
        batch = _as_batch(raw, at, name)
        at += batch.rows
        if batch.start >= start:
            yield batch


def samples(data: Any, rows: int, name: str = "data") -> Iterator[Batch]:
    """Batches of one input tensor with just ``rows`` rows, but for the last, in a fixed order.

    >>> [batch.start for batch in samples(torch.zeros(5, 2), 2)]
    [0, 2, 4]
    """
    waiting: list[Batch] = []
    held = 0
    for piece in batches(data, rows, name=name):
        x = piece.x
        for part in x.values() if isinstance(x, dict) else (x,):
            if part.is_floating_point():
                check_finite(part, name)
        waiting.append(piece)
        held += piece.rows
        if held >= rows:
            whole = _joined(waiting)
            for first in range(0, held - rows + 1, rows):
                yield whole.take(first, first + rows)
            held %= rows
            waiting = [whole.take(whole.rows - held, whole.rows)] if held else []
    if waiting:
        yield _joined(waiting)


def row_count(data: Any) -> int | None:
    """How many rows ``data`` has, where it can be known without reading it."""
    columns = _columns(data, "data")
    if columns is not None:
        return len(next(iter(columns.values()), ()))
    if not isinstance(data, (DataLoader, Dataset)):
        return None
    source = in_order(data).dataset if isinstance(data, DataLoader) else data
    return len(source) if hasattr(source, "__len__") else None


def in_order(data: Any, name: str = "data") -> Any:
    """``data`` such that row i of what follows is row i of the data set, at every pass.

    A loader that draws rows at random (``shuffle=True``, by weight, a batch sampler) becomes one
    over its data set in order, one that draws from a subset becomes one over that subset as listed;
    batch size, collation and workers stay. Any other sampler is refused: nobody could say which row
    a number of the result means.

    >>> from torch.utils.data import TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=4, shuffle=True)
    >>> next(iter(in_order(loader)))
    [tensor([0, 1, 2, 3])]
    """
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return data
    own_batches = data.batch_sampler is not None and type(data.batch_sampler) is not BatchSampler
    if not own_batches and isinstance(data.sampler, SequentialSampler):
        return data
    source: Dataset[Any] = data.dataset
    if not own_batches and isinstance(data.sampler, SubsetRandomSampler):
        source = Subset(source, [int(row) for row in data.sampler.indices])
    elif not own_batches and not isinstance(data.sampler, (RandomSampler, WeightedRandomSampler)):
        raise InputError(
            f"`{name}` is a DataLoader whose {type(data.sampler).__name__} chooses the rows, so "
            "the row numbers of the result would mean nothing. Pass the data set itself, or "
            "DataLoader(Subset(dataset, rows)) without a sampler."
        )
    return loader_like(data, source)


def loader_like(loader: DataLoader[Any], source: Dataset[Any]) -> DataLoader[Any]:
    """A loader of ``source`` in order, in batches as those of ``loader``."""
    size, workers = loader.batch_size or _OWN_BATCH, loader.num_workers
    return DataLoader(source, size, collate_fn=loader.collate_fn, num_workers=workers)


def _columns(data: Any, name: str) -> Mapping[Any, Any] | None:
    """The whole data as arrays, by name, or by place with inputs before labels; None for what comes
    in pieces."""
    if isinstance(data, Mapping):
        return data
    arrays = (Tensor, np.ndarray)
    if isinstance(data, arrays) or hasattr(data, "to_numpy"):
        return {0: data if isinstance(data, arrays) else data.to_numpy()}
    if isinstance(data, list) and _are_numbers(data):
        return {0: as_tensor(data, name)}
    if not isinstance(data, (tuple, list)) or not data or not isinstance(data[0], arrays):
        return None
    if not all(isinstance(v, arrays) or _are_numbers(v) for v in data):
        return None
    return {i: v if isinstance(v, arrays) else as_tensor(v, name) for i, v in enumerate(data)}


def _are_numbers(value: Any) -> bool:
    """A list of numbers, or of lists of them."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (int, float, np.number))


def _slices(columns: Mapping[Any, Any], batch_size: int, start: int, name: str) -> Iterator[Batch]:
    sizes = {key: len(_whole(column, name)) for key, column in columns.items()}
    by_place = 0 in sizes
    if len({*sizes.values()}) > 1:
        found = " and ".join(map(str, sizes.values())) if by_place else sizes
        raise InputError(
            f"`{name}` must have the same number of rows everywhere, got {found}. Pass inputs and "
            "targets of equal length."
        )
    rows = next(iter(sizes.values()), 0)
    _check_rows(rows, name)
    for at in range(start, rows, batch_size):
        part = {key: as_tensor(v[at : at + batch_size], name) for key, v in columns.items()}
        yield _as_batch([*part.values()] if by_place else part, at, name)


def _whole(column: Any, name: str) -> Any:
    """A column as it is; of a tensor whose kind cannot be sliced the sentence for its kind."""
    column = as_tensor(column, name) if isinstance(column, Tensor) else column
    if not getattr(column, "shape", (0,)):
        raise InputError(f"`{name}` is a single number. Pass one row for each sample.")
    return column


def _as_batch(raw: Any, start: int, name: str) -> Batch:
    if isinstance(raw, Mapping):
        key = next((k for k in _LABEL_KEYS if k in raw), None)
        named = {k: v for k, v in raw.items() if k != key}
        first = next((v for v in named.values() if hasattr(v, "__len__")), ())
        return Batch((), named, _labels(raw[key]) if key else None, len(first), start)
    if isinstance(raw, Tensor):
        return Batch((raw,), {}, None, len(raw), start)
    if isinstance(raw, (tuple, list)) and raw:
        labels = _labels(raw[-1]) if len(raw) > 1 else None
        return Batch(tuple(raw[:-1]) or (raw[0],), {}, labels, len(raw[0]), start)
    raise InputError(
        f"a batch of `{name}` must be a tensor, a tuple (x, y) or a mapping, "
        f"got {type(raw).__name__}. "
        "Give the DataLoader a collate_fn that returns one of these."
    )


def _labels(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) or value is None else torch.as_tensor(value)


def _joined(pieces: list[Batch]) -> Batch:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    inputs = tuple(torch.cat(parts) for parts in zip(*(p.inputs for p in pieces), strict=True))
    named = {name: torch.cat([p.named[name] for p in pieces]) for name in first.named}
    labels = [p.labels for p in pieces if p.labels is not None]
    joined = torch.cat(labels) if labels else None
    return Batch(inputs, named, joined, sum(p.rows for p in pieces), first.start)


def _check_rows(rows: int, name: str) -> None:
    if rows == 0:
        raise InputError(f"`{name}` is empty. Pass at least one row.")
