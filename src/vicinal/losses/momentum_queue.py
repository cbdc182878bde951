r"""MoCo: a query finds its own key among those of a slowly moving network and a queue of them.

.. math:: \ell_i = -\log \frac{e^{\cos(q_i, k_i)/T}}
          {e^{\cos(q_i, k_i)/T} + \sum_j e^{\cos(q_i, u_j)/T}}

over the queue :math:`u` of earlier keys (He et al. 2020, eq. 1). The keys' network is an average of
the queries', so keys of many batches fit together: :func:`momentum_update` after each step.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.checks import InputError, check_positive, check_same_width
from vicinal.neighbors.distances import unit_rows

from .conventions import LossModule, any_scale, as_rows, reduce_rows
from .log_partition import log_partition
from .memory_bank import MemoryBank
from .targets import check_share


@any_scale
def moco_loss(
    queries: Float[Tensor, "n d"],
    keys: Float[Tensor, "n d"],
    queue: Float[Tensor, "m d"],
    *,
    temperature: float | Tensor = 0.07,
    reduction: str = "mean",
) -> Tensor:
    """Each query against its own key and the queue (He et al. 2020, eq. 1).

    Parameters
    ----------
    queries, keys:
        Two views of each instance, row for row.
    queue:
        Keys of other instances; with none of them the loss is 0.
    temperature:
        What cosines are divided by.
    reduction:
        ``"mean"``, ``"sum"`` or ``"none"``.

    >>> q = torch.eye(2)
    >>> moco_loss(q, q, -q, temperature=1.0)  # log(1 + (1 + 1/e)/e)
    tensor(0.4076)
    """
    check_positive(temperature, "temperature")
    queries, keys = as_rows(queries, "queries"), as_rows(keys, "keys")
    if queries.shape != keys.shape:
        raise InputError(
            f"`queries` and `keys` must be two views of the same rows, got shapes "
            f"{tuple(queries.shape)} and {tuple(keys.shape)}."
        )
    check_same_width(queries, queue, "queries", "queue")
    q = unit_rows(queries) / temperature
    own = torch.linalg.vecdot(q, unit_rows(keys.to(q.dtype)))
    if not len(queue):
        return reduce_rows(own * 0, None, reduction)
    others = log_partition(q, unit_rows(as_rows(queue, "queue").to(q.dtype)))
    return reduce_rows(-torch.nn.functional.logsigmoid(own - others), None, reduction)


class MoCoLoss(LossModule):
    """Module form of :func:`moco_loss`, with its queue: ``loss(queries, keys)``.

    The queue starts empty, holds the last ``size`` keys without gradient and is in ``state_dict``;
    in evaluation mode it is read and not written.

    Parameters
    ----------
    dim, size:
        Of the queue.
    temperature, reduction:
        As in :func:`moco_loss`.

    >>> loss = MoCoLoss(dim=2, size=4)
    >>> loss(torch.eye(2), torch.eye(2)), len(loss.queue)  # nobody to tell from yet
    (tensor(0.), 2)
    """

    def __init__(
        self, dim: int, size: int, *, temperature: float | Tensor = 0.07, reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "reduction": reduction})
        self.queue = MemoryBank(dim, size)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        keys = keys.detach()
        value = moco_loss(queries, keys, self.queue.reference, **self.settings())
        if self.training:
            self.queue.add(keys, torch.zeros(len(keys), dtype=torch.long, device=keys.device))
        return value


@torch.no_grad()
def momentum_update(slow: nn.Module, fast: nn.Module, momentum: float = 0.999) -> None:
    """``slow ← m·slow + (1 - m)·fast`` for parameters; running statistics are copied.

    >>> slow, fast = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = slow.weight.data.fill_(0.0), fast.weight.data.fill_(1.0)
    >>> momentum_update(slow, fast, 0.75); slow.weight.item()
    0.25
    """
    check_share(momentum, "momentum")
    theirs = dict(fast.named_parameters())
    if set(theirs) != {name for name, _ in slow.named_parameters()}:
        raise InputError(
            "`slow` and `fast` must be two copies of one network: their parameters have other "
            "names. Make one with copy.deepcopy."
        )
    for name, mine in slow.named_parameters():
        mine.lerp_(theirs[name].to(mine), 1 - momentum)
    for kept, given in zip(slow.buffers(), fast.buffers(), strict=True):
        kept.copy_(given)
