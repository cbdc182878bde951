"""Data as it comes (a tensor, a pair with targets, a Dataset, a DataLoader) in batches, in a fixed
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate

from vicinal.checks import InputError, as_tensor, check_finite

Data: TypeAlias = "Tensor | tuple[Tensor, Tensor] | Dataset[Any] | DataLoader[Any]"


class Batch(NamedTuple):
    x: Tensor
    target: Tensor | None


def batches(data: Any, size: int, name: str = "data") -> Iterator[Batch]:
    """Batches of at most ``size`` rows. The same data gives the same rows in the same order each
    time.

    >>> [len(batch.x) for batch in batches(torch.zeros(5, 2), 2)]
    [2, 2, 1]
    """
    if isinstance(data, DataLoader):
        _check_order(data, name)
        for item in data:
            yield from _split(_batch(item, name), size)
    elif isinstance(data, Dataset):
        count = len(data)  # type: ignore[arg-type]  # a map-style data set has a length
        _check_rows(count, name)
        for start in range(0, count, size):
            rows = [data[i] for i in range(start, min(start + size, count))]
            yield _batch(default_collate(rows), name)
    else:
        whole = _batch(data, name)
        _check_rows(len(whole.x), name)
        yield from _split(whole, size)


def _split(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch.x), size):
        rows = slice(start, start + size)
        yield Batch(batch.x[rows], None if batch.target is None else batch.target[rows])


def _batch(item: Any, name: str) -> Batch:
    x, target = item, None
    if isinstance(item, (tuple, list)) and not (isinstance(item, list) and _numbers(item)):
        if len(item) not in (1, 2):
            raise InputError(
                f"`{name}` must give inputs or (inputs, targets), got {len(item)} things. "
                "Wrap the model so that it takes one input tensor."
            )
        x, target = item[0], item[1] if len(item) == 2 else None
    x = as_tensor(x, name)
    if x.is_floating_point():
        check_finite(x.flatten(1) if x.ndim > 1 else x, name)
    if target is not None:
        target = as_tensor(target, f"{name} targets")
        if len(target) != len(x):
            raise InputError(
                f"`{name}` has {len(x)} inputs but {len(target)} targets. "
                "Pass a pair (x, targets) of equal length."
            )
    return Batch(x, target)


def _numbers(item: list[Any]) -> bool:
    return bool(item) and not isinstance(item[0], Tensor)


def _check_rows(rows: int, name: str) -> None:
    if rows == 0:
        raise InputError(f"`{name}` is empty. Pass at least one sample.")


def _check_order(loader: DataLoader[Any], name: str) -> None:
    """Two passes must meet the same rows: a shuffling loader would pair sums with other samples."""
    if isinstance(loader.sampler, RandomSampler):
        raise InputError(
            f"`{name}` is a DataLoader that shuffles, so the rows of the result would have no "
            "order. Pass DataLoader(..., shuffle=False) or the data set itself."
        )


def fingerprint(batch: Batch) -> bytes:
    """The bytes of a batch, for cache keys."""
    parts = [batch.x] if batch.target is None else [batch.x, batch.target]
    return b"".join(
        repr((tuple(t.shape), t.dtype)).encode()
        + t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for t in parts
    )
