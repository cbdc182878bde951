"""Log-masses among a reference that begins with the anchors themselves, without meeting oneself.

A batch and a memory in one sum: the memory goes by tiles, the batch's own pairs in blocks with the
diagonal left out by index, and the two are added as logarithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.neighbors.distances import pairwise_distances
from vicinal.neighbors.mass import log_sum_exp, own_log_mass
from vicinal.neighbors.tiles.masses import LogMasses, precise_log_masses

from .conventions import as_labels, as_rows
from .log_partition import in_blocks
from .pairs import check_own_rows


def log_masses_without_self(
    x: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    metric: str,
    reference: Tensor | None,
    reference_labels: Tensor | None,
) -> LogMasses:
    """Log-masses around each row of ``x`` among the reference, whose row i is that row itself.

    Parameters
    ----------
    x, labels, temperature, metric, reference, reference_labels:
        As in :func:`vicinal.neighbors.log_masses`.

    >>> x, y = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1])
    >>> log_masses_without_self(x, y, 1.0, "sqeuclidean", x, y).own
    tensor([-1., -1., -inf], dtype=torch.float64)
    """
    n = len(x)
    check_own_rows(True, n, None if reference is None else len(reference))
    if reference_labels is None:
        raise InputError("`reference` and `reference_labels` go together: pass both or none.")
    assert reference is not None
    own = as_rows(reference[:n], "reference").to(x.dtype)
    kinds = as_labels(labels, n), as_labels(reference_labels, len(reference), "reference_labels")

    def block(start: int, stop: int) -> Tensor:
        d = pairwise_distances(x[start:stop], own, metric).double()
        anchors = torch.arange(start, stop, device=x.device)[:, None]
        oneself = anchors == torch.arange(n, device=x.device)
        s = (-d / temperature).masked_fill(oneself, float("-inf"))
        same = _agreement(kinds[0][start:stop], kinds[1][:n]).masked_fill(oneself, 0)
        other = (1 - same).masked_fill(oneself, 0)
        return torch.stack([log_sum_exp(s), own_log_mass(s, same), own_log_mass(s, other)])

    found = LogMasses(*in_blocks(block, n, n))
    if len(reference) == n:
        return found
    rest = precise_log_masses(x, labels, temperature, metric, reference[n:], reference_labels[n:])
    return LogMasses(*(_added(a, b) for a, b in zip(found, rest, strict=True)))


def _agreement(labels: Tensor, others: Tensor) -> Tensor:
    if labels.ndim == 1:
        return (labels[:, None] == others).double()
    return (labels @ others.to(labels).T).clamp(0, 1).double()


def _added(a: Tensor, b: Tensor) -> Tensor:
    """log(e^a + e^b); two empty masses have no gradient."""
    return log_sum_exp(torch.stack([a, b.to(a.dtype)], -1))
