"""Whatever holds the data, as batches of ``(inputs, labels)`` in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset

from vicinal.checks import InputError, check_same_rows

_LABEL_KEYS = ("labels", "label", "targets", "target", "y")


@dataclass(frozen=True)
class Batch:
    """What one call of the model gets, and the labels that came with it."""

    inputs: tuple[Any, ...]
    named: Mapping[str, Any]
    labels: Tensor | None
    rows: int

    def call(self, model: torch.nn.Module, device: torch.device | None) -> Any:
        """The model's output on this batch, moved to ``device`` first."""
        inputs = [_moved(v, device) for v in self.inputs]
        named = {k: _moved(v, device) for k, v in self.named.items()}
        return model(*inputs, **named)


def batches(data: Any, batch_size: int, *, start: int = 0) -> Iterator[Batch]:
    """Batches of ``data`` from row ``start`` on.

    ``data`` is a tensor or array; a tuple whose last entry is the labels, ``(x, y)``; a
    ``Dataset``; a ``DataLoader`` or any iterable of batches. A batch is a tensor, a tuple or list
    whose last of several entries is the labels, or a mapping (its ``labels`` taken out, the rest
    passed by name).

    >>> [b.rows for b in batches(torch.zeros(5, 2), 2)]
    [2, 2, 1]
    """
    if isinstance(data, (Tensor, np.ndarray)):
        data = (data,)
    if _is_columns(data):
        yield from _slices(data, batch_size, start)
        return
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        rest = data if start == 0 else Subset(data, range(start, row_count(data) or start))
        yield from map(_as_batch, DataLoader(rest, batch_size=batch_size))
        return
    if not isinstance(data, Iterable):
        raise InputError(
            f"`data` must be a tensor, an (x, y) tuple, a Dataset or a DataLoader, "
            f"got {type(data).__name__}."
        )
    seen = 0
    for raw in DataLoader(data, batch_size=batch_size) if isinstance(data, Dataset) else data:
        batch = _as_batch(raw)
        if seen >= start:
            yield batch
        seen += batch.rows


def row_count(data: Any) -> int | None:
    """How many rows ``data`` has, where it can be known without reading it."""
    if isinstance(data, (Tensor, np.ndarray)):
        return len(data)
    if _is_columns(data):
        return len(data[0])
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(source, Dataset) and hasattr(source, "__len__"):
        return len(source)
    return None


def is_shuffled(data: Any) -> bool:
    """Whether a second pass would come in another order."""
    return isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler)


def _is_columns(data: Any) -> bool:
    if not isinstance(data, (tuple, list)) or not data:
        return False
    return all(isinstance(column, (Tensor, np.ndarray)) for column in data)


def _slices(columns: Any, batch_size: int, start: int) -> Iterator[Batch]:
    columns = [torch.as_tensor(column) for column in columns]
    for column in columns[1:]:
        check_same_rows(columns[0], column, "data[0]", "data[-1]")
    if len(columns[0]) == 0:
        raise InputError("`data` is empty. Pass at least one row.")
    for at in range(start, len(columns[0]), batch_size):
        yield _as_batch([column[at : at + batch_size] for column in columns])


def _as_batch(raw: Any) -> Batch:
    if isinstance(raw, Mapping):
        key = next((k for k in _LABEL_KEYS if k in raw), None)
        named = {k: v for k, v in raw.items() if k != key}
        first = next((v for v in named.values() if hasattr(v, "__len__")), ())
        return Batch((), named, _labels(raw[key]) if key else None, len(first))
    if isinstance(raw, Tensor):
        return Batch((raw,), {}, None, len(raw))
    if isinstance(raw, (tuple, list)) and raw:
        if len(raw) == 1:
            return Batch((raw[0],), {}, None, len(raw[0]))
        return Batch(tuple(raw[:-1]), {}, _labels(raw[-1]), len(raw[0]))
    raise InputError(
        "a batch of `data` must be a tensor, a tuple (x, y) or a mapping, "
        f"got {type(raw).__name__}. "
        "Give the DataLoader a collate_fn that returns one of these."
    )


def _labels(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) or value is None else torch.as_tensor(value)


def _moved(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value
