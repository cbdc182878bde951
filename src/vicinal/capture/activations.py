"""What a network says about data, layer by layer: ``capture(model, data, layers)``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.capture.batches import Batch, batches, is_shuffled, row_count
from vicinal.capture.hooks import Pool, evaluating, listening, pooled
from vicinal.capture.shards import ShardStore
from vicinal.checks import InputError, check_k

Progress = Callable[[int, int | None], None]
SHARD_ROWS = 8192


@dataclass(frozen=True)
class Activations(Mapping[str, Tensor]):
    """One ``(n, d)`` matrix per layer, and the labels ``(n,)`` that came with the data, if any."""

    layers: Mapping[str, Tensor]
    labels: Tensor | None = None

    def __getitem__(self, layer: str) -> Tensor:
        return self.layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def capture(
    model: nn.Module,
    data: Any,
    layers: Sequence[str],
    *,
    pool: Pool = "flatten",
    batch_size: int = 256,
    device: str | torch.device | None = None,
    to: str | Path | None = None,
    progress: Progress | None = None,
) -> Activations:
    """Run ``model`` over ``data`` and keep what the named ``layers`` say, one vector per row.

    The model runs in evaluation mode without gradients and comes back as it was: training flags,
    hooks, device. ``"output"`` names the model's own output. See :func:`batches` for what ``data``
    may be and :func:`pooled` for ``pool``.

    With ``to``, rows go to shards in that folder as they come, memory stays that of one shard, and
    a run that was stopped goes on where it was, with the same result; the layers of the returned
    record are then read from disk when asked for. ``progress(done, total)`` is called per batch.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> acts = capture(net, (torch.ones(10, 4), torch.zeros(10).long()), ["1", "output"])
        >>> acts["1"].shape, acts["output"].shape, acts.labels.shape
        (torch.Size([10, 3]), torch.Size([10, 2]), torch.Size([10]))
    """
    check_k(batch_size, 2**31, "batch_size", "a batch")
    place = torch.device(device) if device is not None else None
    if to is None:
        parts = list(_heard(model, batches(data, batch_size), layers, pool, place, progress, data))
        return Activations(
            {name: torch.cat([heard[name] for heard, _ in parts]) for name in layers},
            _joined([labels for _, labels in parts]),
        )
    store = _streamed(model, data, layers, pool, batch_size, place, Path(to), progress)
    return Activations(store, store.labels)


def _heard(
    model: nn.Module,
    source: Iterator[Batch],
    layers: Sequence[str],
    pool: Pool,
    device: torch.device | None,
    progress: Progress | None,
    data: Any,
    done: int = 0,
) -> Generator[tuple[dict[str, Tensor], Tensor | None]]:
    """What the layers say about each batch, on the CPU, with the batch's labels."""
    total = row_count(data)

    def keep(name: str, output: Tensor) -> Tensor:
        vectors = pooled(output.detach(), pool)
        if vectors.ndim != 2:
            raise InputError(
                f"`pool` must give one vector per row; for layer {name!r} it gave shape "
                f"{tuple(vectors.shape)} from {tuple(output.shape)}."
            )
        # A view would follow what later in-place operations do to the layer's output.
        return vectors.cpu() if vectors.device.type != "cpu" else vectors.clone()

    place = device or _device_of(model)
    with evaluating(model, device), listening(model, layers, keep) as heard:
        for batch in source:
            heard.clear()
            with torch.no_grad():
                batch.call(model, place)
            _check_heard(heard, layers, batch.rows)
            yield dict(heard), batch.labels
            done += batch.rows
            if progress is not None:
                progress(done, total)


def _streamed(
    model: nn.Module,
    data: Any,
    layers: Sequence[str],
    pool: Pool,
    batch_size: int,
    device: torch.device | None,
    folder: Path,
    progress: Progress | None,
) -> ShardStore:
    if is_shuffled(data):
        raise InputError(
            "`data` is a shuffled DataLoader: a stopped capture could not go on in the same order. "
            "Pass the data set itself, or a loader with shuffle=False."
        )
    first = next(batches(data, batch_size), None)
    if first is None:
        raise InputError("`data` has no rows.")
    settings = {
        "layers": list(layers),
        "pool": pool if isinstance(pool, str) else getattr(pool, "__qualname__", repr(pool)),
        "batch_size": batch_size,
        "labels": first.labels is not None,
        "rows": row_count(data),
        "model": _fingerprint(model.state_dict().values()),
        "first_batch": _fingerprint(chain(first.inputs, first.named.values())),
    }
    store = ShardStore.open_for_writing(folder, settings)
    if store.complete:
        return store
    source = batches(data, batch_size, start=store.rows)
    heard = _heard(model, source, layers, pool, device, progress, data, store.rows)
    per_shard = max(1, SHARD_ROWS // batch_size)
    with closing(heard):  # an interrupt between two batches restores the model at once
        for group in _grouped(heard, per_shard):
            store.append(
                {name: torch.cat([part[name] for part, _ in group]) for name in layers},
                _joined([labels for _, labels in group]),
            )
    store.finish()
    return store


def _grouped(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    group = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _joined(labels: list[Tensor | None]) -> Tensor | None:
    present = [y for y in labels if y is not None]
    return torch.cat(present).cpu() if present and len(present) == len(labels) else None


def _check_heard(heard: dict[str, Tensor], layers: Sequence[str], rows: int) -> None:
    for name in layers:
        if name not in heard:
            raise InputError(
                f"layer {name!r} exists but was not executed in forward(); no output captured."
            )
        if len(heard[name]) != rows:
            raise InputError(
                f"layer {name!r} gave {len(heard[name])} rows for a batch of {rows}; its first "
                "dimension must be the batch. Choose another layer or pass a function as `pool`."
            )


def _device_of(model: nn.Module) -> torch.device | None:
    parameter = next(chain(model.parameters(), model.buffers()), None)
    return parameter.device if parameter is not None else None


def _fingerprint(values: Any) -> str:
    """A checksum of tensors, to notice that model or data are not those of the first run."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            raw = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(raw.numpy().tobytes())
    return digest.hexdigest()[:16]
