"""Some rows of a data set, as data again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from vicinal.capture.batches import batches, in_order, loader_like, row_count


def some_rows(data: Any, rows: Int[Tensor, " r"], name: str = "data") -> Any:
    """These rows (ascending) of anything ``capture`` takes, as what it takes.

    Nothing else is read where rows can be had one by one; rows beyond the end are left out.

    >>> some_rows((torch.arange(5), torch.arange(5) * 10), torch.tensor([1, 4]))
    (tensor([1, 4]), tensor([10, 40]))
    """
    data, count = in_order(data, name), row_count(data)
    rows = rows if count is None else rows[rows < count]
    if isinstance(data, (Tensor, np.ndarray)):
        return data[rows.numpy()] if isinstance(data, np.ndarray) else data[rows.to(data.device)]
    if isinstance(data, Mapping) and count is not None:
        return {key: some_rows(torch.as_tensor(value), rows) for key, value in data.items()}
    if isinstance(data, tuple) and all(isinstance(part, (Tensor, np.ndarray)) for part in data):
        return tuple(some_rows(part, rows) for part in data)
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        part = Subset(source, rows.tolist())
        return loader_like(data, part) if isinstance(data, DataLoader) else part
    found = []
    for batch in batches(data, 256, name=name):
        inside = rows[(rows >= batch.start) & (rows < batch.start + batch.rows)] - batch.start
        if len(inside):
            found.append(
                (batch.x[inside], *([] if batch.labels is None else [batch.labels[inside]]))
            )
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
