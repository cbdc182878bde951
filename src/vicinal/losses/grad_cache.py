"""A batch larger than the model's memory, with every pair in the loss (Gao et al. 2021).

Plain gradient accumulation adds batches, not pairs. Here the model embeds micro-batches and keeps
none of their activations; the loss sees all embeddings at once; the backward embeds each
micro-batch again when its turn comes. Memory is that of one micro-batch and of the embeddings, for
twice the forward's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vicinal.checks import check_whole


class GradCache(nn.Module):
    """``loss(model(x), labels)`` for a large ``x``, a micro-batch of activations at a time.

    Value and gradient are those of the plain call (for layers that mix samples, like batch norm in
    training, those of micro-batches). Any loss of ``(embeddings, labels)`` will do, as will its own
    parameters. Randomness (dropout) is the same both times, and running statistics are updated
    once.

    >>> step = GradCache(nn.Linear(3, 2), lambda z, y: z.square().mean(), micro_batch=4)
    >>> step(torch.ones(10, 3), torch.zeros(10)).backward()
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], micro_batch: int
    ) -> None:
        super().__init__()
        check_whole(micro_batch, "micro_batch", 1)
        self.model = model
        self.loss = loss
        self.micro_batch = micro_batch

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.embed(x), labels)

    def embed(self, x: Tensor) -> Tensor:
        """All embeddings, attached to a graph that holds no activations."""
        again = partial(checkpoint, self.model, use_reentrant=False, context_fn=self._contexts)
        return torch.cat([again(part) for part in x.split(self.micro_batch)])

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_kept(self.model)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Running statistics were updated in the first pass: the second must not move them again."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
