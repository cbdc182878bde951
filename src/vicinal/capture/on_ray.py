"""A capture in the processes of a Ray cluster: batches go to actors that loaded the model once.

The batches are those of a capture in one process, and come back in their order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from vicinal.capture.batches import Batch
from vicinal.cluster import RESTARTS, asking, connect, places

Load = Callable[[], nn.Module]
Outputs = tuple[dict[str, Tensor], Tensor | None]
AHEAD = 2  # batches on their way to each actor


class Listener:
    """What an actor is: a model, and the layers that are kept of it."""

    def __init__(
        self, load: Load, state: dict[str, Tensor], folder: str, layers: Sequence[str], pool: Any
    ) -> None:
        self.load, self.state, self.folder = load, state, folder
        self.layers, self.pool = layers, pool
        self.model: nn.Module | None = None

    def outputs(self, batch: Batch) -> Outputs:
        """Of one batch; the model is loaded when it is first asked."""
        from vicinal.capture.activations import outputs_of  # it imports this file

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
) -> Generator[Outputs]:
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
