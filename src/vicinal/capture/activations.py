"""What a network puts out for data, layer by layer: ``capture(model, data, layers)``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.capture.batches import Batch, batches, row_count
from vicinal.capture.hooks import Pool, device_of, evaluating, listening, pooled
from vicinal.capture.shards import ShardStore
from vicinal.checks import InputError, check_k
from vicinal.cluster import RESTARTS, asking, connect, places
from vicinal.files import fingerprint

Progress = Callable[[int, int | None], None]
Load = Callable[[], nn.Module]  # gives the model in another process
SHARD_ROWS = 8192
AHEAD = 2  # batches on their way to each actor of a cluster
_Outputs = tuple[dict[str, Tensor], Tensor | None]  # of one batch, with its labels


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
    on: str | None = None,
    load: Load | None = None,
) -> Activations:
    """Run ``model`` over ``data`` and keep what the named ``layers`` put out, one vector per row.

    The model runs in evaluation mode without gradients and comes back as it was: training flags,
    hooks, device.

    Parameters
    ----------
    model
        The network.
    data
        A tensor or array, an ``(x, y)`` pair, a ``Dataset``, a ``DataLoader``; see :func:`batches`.
    layers
        Names as :func:`layer_names` gives them; ``"output"`` is the model's own output.
    pool
        How a layer's output becomes one vector per row; see :func:`pooled`.
    batch_size
        Rows per call of the model, where ``data`` does not come in batches of its own.
    device
        Where to run; None: where the model is.
    to
        A folder for shards: rows go there as they come, memory stays that of one shard, and a run
        that was stopped goes on where it was, with the same result. The layers of the returned
        record are then read from disk when asked for.
    progress
        ``progress(done, total)`` is called after each batch.
    on
        ``"ray"`` or ``"ray://host:10001"``: run in the processes of a cluster, on their devices.
    load
        Gives the model in each of these processes; None sends the model itself.

    Examples
    --------
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> acts = capture(net, (torch.ones(10, 4), torch.zeros(10).long()), ["1", "output"])
        >>> acts["1"].shape, acts["output"].shape, acts.labels.shape
        (torch.Size([10, 3]), torch.Size([10, 2]), torch.Size([10]))
    """
    check_k(batch_size, 2**31, "batch_size", "a batch")
    place = torch.device(device) if device is not None else None

    def outputs(start: int = 0) -> Generator[_Outputs]:
        source = batches(data, batch_size, start=start)
        if on is not None:
            made = load or (lambda: model)
            return outputs_on_ray(on, made, model.state_dict(), source, layers, pool)
        return outputs_of(model, source, layers, pool, place, progress, row_count(data))

    if to is None:
        return Activations(*_joined(list(outputs()), layers))
    first = next(batches(data, batch_size), None)
    if first is None:
        raise InputError("`data` has no rows.")
    settings = {
        "layers": list(layers),
        "pool": pool if isinstance(pool, str) else getattr(pool, "__qualname__", repr(pool)),
        "batch_size": batch_size,
        "labels": first.labels is not None,
        "rows": row_count(data),
        "model": fingerprint(model.state_dict()),
        "first_batch": fingerprint(*first.inputs, first.named),
    }
    store = ShardStore.open_for_writing(Path(to), settings)
    if not store.complete:
        per_shard = max(1, SHARD_ROWS // batch_size)
        with closing(outputs(store.rows)) as rest:  # an interrupt restores the model at once
            while group := list(islice(rest, per_shard)):
                store.append(*_joined(group, layers))
        store.finish()
    return Activations(store, store.labels)


def outputs_of(
    model: nn.Module,
    source: Iterator[Batch],
    layers: Sequence[str],
    pool: Pool,
    device: torch.device | None,
    progress: Progress | None,
    total: int | None,
) -> Generator[_Outputs]:
    """What the layers put out for each batch, on the CPU, with the batch's labels."""

    def keep(name: str, output: Tensor) -> Tensor:
        vectors = pooled(output.detach(), pool)
        if vectors.ndim != 2:
            raise InputError(
                f"`pool` must give one vector per row; for layer {name!r} it gave shape "
                f"{tuple(vectors.shape)} from {tuple(output.shape)}."
            )
        # A view would follow what later in-place operations do to the layer's output.
        return vectors.cpu() if vectors.device.type != "cpu" else vectors.clone()

    place = device or device_of(model)
    with evaluating(model, device), listening(model, layers, keep) as outputs:
        for batch in source:
            with torch.no_grad():
                batch.call(model, place)
            _check_outputs(outputs, layers, batch.rows)
            yield dict(outputs), batch.labels
            if progress is not None:
                progress(batch.start + batch.rows, total)


def _joined(
    parts: list[_Outputs], layers: Sequence[str]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The batches as one; labels only if all of them have some."""
    labels = [y for _, y in parts if y is not None]
    whole = torch.cat(labels).cpu() if labels and len(labels) == len(parts) else None
    return {name: torch.cat([outputs[name] for outputs, _ in parts]) for name in layers}, whole


def _check_outputs(outputs: dict[str, Tensor], layers: Sequence[str], rows: int) -> None:
    for name in layers:
        if name not in outputs:
            raise InputError(
                f"layer {name!r} exists but was not executed in forward(); no output captured."
            )
        if len(outputs[name]) != rows:
            raise InputError(
                f"layer {name!r} gave {len(outputs[name])} rows for a batch of {rows}; its first "
                "dimension must be the batch. Choose another layer or pass a function as `pool`."
            )


# ------------------------------------------------------------------ in the processes of a cluster
# Batches go to actors that loaded the model once. They are those of a capture in one process, and
# come back in their order.


class Listener:
    """What an actor is: a model, and the layers that are kept of it."""

    def __init__(
        self, load: Load, state: dict[str, Tensor], folder: str, layers: Sequence[str], pool: Any
    ) -> None:
        self.load, self.state, self.folder = load, state, folder
        self.layers, self.pool = layers, pool
        self.model: nn.Module | None = None

    def outputs(self, batch: Batch) -> _Outputs:
        """Of one batch; the model is loaded when it is first asked."""
        if self.model is None:
            os.chdir(self.folder)  # a model named by a path is where the command was given
            model = self.load()
            model.load_state_dict(self.state)  # a factory may draw its weights anew
            self.model = model
        return next(outputs_of(self.model, iter([batch]), self.layers, self.pool, None, None, None))


def outputs_on_ray(
    on: str,
    load: Load,
    state: dict[str, Tensor],
    source: Iterator[Batch],
    layers: Sequence[str],
    pool: Any,
) -> Generator[_Outputs]:
    """What the layers put out for each batch, in order.

    Parameters
    ----------
    on : ``"ray"`` or ``"ray://host:port"``.
    load, state : gives the model, once in every actor, and the weights that it takes.
    source : the batches.
    layers, pool : as of :func:`vicinal.capture.capture`.
    """
    ray = connect(on)
    count, share = places(ray)
    remote = ray.remote(num_cpus=share, max_restarts=RESTARTS, max_task_retries=RESTARTS)(Listener)
    weights, here = ray.put(state), os.getcwd()
    actors = [remote.remote(load, weights, here, list(layers), pool) for _ in range(count)]
    waiting: deque[Any] = deque()
    with asking("the model"):
        for at, batch in enumerate(source):
            waiting.append(actors[at % len(actors)].outputs.remote(batch))
            if len(waiting) > AHEAD * len(actors):
                yield ray.get(waiting.popleft())
        while waiting:
            yield ray.get(waiting.popleft())
