r"""Are the neighbors of the right class? From neighbors already found: no search here.

With :math:`\text{rel}_j = [y_j = y]` along a query's neighbors and :math:`R` support rows of its
class:

.. math::

    \text{recall@}k = [\textstyle\sum_{j\le k} \text{rel}_j > 0] \qquad
    \text{R-precision} = \frac1R \sum_{j \le R} \text{rel}_j

    \text{MAP@}R = \frac1R \sum_{j \le R} \text{rel}_j\, \frac{\sum_{i \le j} \text{rel}_i}{j}
    \qquad \text{RR} = 1 / \min\{j : \text{rel}_j\}

(Musgrave et al. 2020 for MAP@R). Means run over queries whose class is in the support at all; the
others, ``lone``, could not be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_k
from vicinal.evaluation.inputs import BoolArray, FloatArray, IntArray, as_classes, exact_sum


class RetrievalReport(NamedTuple):
    """Means over ``queries`` rows; ``lone`` rows have no support row of their class."""

    recall: dict[int, float]
    map_at_r: float
    r_precision: float
    mrr: float
    queries: int
    lone: int


class _Relevance(NamedTuple):
    hits: BoolArray  # (n, k) of the queries that are not lone
    peers: IntArray  # (n,) support rows of the query's class, itself not among them
    lone: int


def recall_at_k(neighbors: Any, labels: Any, support_labels: Any = None, *, k: int = 1) -> float:
    """Share of queries with at least one of their class among the first ``k`` neighbors.

    Parameters
    ----------
    neighbors : what a search returned, or its indices (n, k).
    labels : classes of the queries.
    support_labels : classes of the rows the indices name; without them the queries are the support
        themselves and no row may be its own neighbor.
    k : how many neighbors count.

    >>> recall_at_k([[1, 2], [0, 2], [0, 1]], [0, 0, 1], support_labels=[0, 0, 1], k=2)
    0.6666666666666666
    """
    hits = _relevance(neighbors, labels, support_labels).hits
    check_k(k, hits.shape[1], "k", "`neighbors`")
    return int(hits[:, :k].any(1).sum()) / len(hits)


def map_at_r(neighbors: Any, labels: Any, support_labels: Any = None) -> float:
    """Mean over queries of the precision at each hit among the first R, divided by R.

    >>> map_at_r([[0, 1], [1, 0]], [0, 0], support_labels=[0, 1])  # R = 1: hit, miss
    0.5
    """
    hits, peers = _first_r(neighbors, labels, support_labels)
    precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
    return _mean(np.where(hits, precision, 0.0).cumsum(1)[:, -1] / peers)


def r_precision(neighbors: Any, labels: Any, support_labels: Any = None) -> float:
    """Share of the query's class among its first R neighbors."""
    hits, peers = _first_r(neighbors, labels, support_labels)
    return _mean(hits.sum(1) / peers)


def mean_reciprocal_rank(neighbors: Any, labels: Any, support_labels: Any = None) -> float:
    """Mean of 1 / rank of the first neighbor of the query's class; 0 where the list has none."""
    hits = _relevance(neighbors, labels, support_labels).hits
    return _mean(np.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0.0))


def retrieval_report(
    neighbors: Any, labels: Any, support_labels: Any = None, *, ks: Sequence[int] = (1, 2, 4, 8)
) -> RetrievalReport:
    """All of them at once, from one list of neighbors (as deep as the largest class).

    Parameters
    ----------
    neighbors, labels, support_labels : as in :func:`recall_at_k`.
    ks : the k of each recall.
    """
    relevance = _relevance(neighbors, labels, support_labels)
    given = (neighbors, labels, support_labels)
    return RetrievalReport(
        {k: recall_at_k(*given, k=k) for k in ks},
        map_at_r(*given),
        r_precision(*given),
        mean_reciprocal_rank(*given),
        len(relevance.hits),
        relevance.lone,
    )


def _relevance(neighbors: Any, labels: Any, support_labels: Any) -> _Relevance:
    # a tensor has a method of that name, so it is asked first
    plain = neighbors if isinstance(neighbors, Tensor) else getattr(neighbors, "indices", neighbors)
    indices = as_tensor(plain, "neighbors").detach().cpu()
    if indices.ndim != 2 or indices.is_floating_point() or 0 in indices.shape:
        raise InputError(
            "`neighbors` must be what a search returned or its integer indices (n, k), got shape "
            f"{tuple(indices.shape)} of {indices.dtype}."
        )
    index = indices.long().numpy()
    y = as_classes(labels, len(index), "labels")
    within = support_labels is None
    if within and (index == np.arange(len(index))[:, None]).any():
        row = int((index == np.arange(len(index))[:, None]).any(1).argmax())
        raise InputError(
            f"row {row} is its own neighbor. Search with exclude=torch.arange(n), "
            "or pass `support_labels` if queries and support are different rows."
        )
    support = y if within else as_classes(support_labels, len(support_labels), "support_labels")
    if index.min() < 0 or index.max() >= len(support):
        raise InputError(
            f"`neighbors` must index the {len(support)} support rows, got values from "
            f"{index.min()} to {index.max()}."
        )
    classes, counts = np.unique(support, return_counts=True)
    at = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    peers = np.where(classes[at] == y, counts[at], 0) - within
    valid = peers > 0
    if not valid.any():
        raise InputError(
            "no query has a support row of its class, so nothing can be retrieved. "
            "Check that `labels` and `support_labels` name the same classes."
        )
    return _Relevance(support[index[valid]] == y[valid, None], peers[valid], int((~valid).sum()))


def _first_r(neighbors: Any, labels: Any, support_labels: Any) -> tuple[BoolArray, IntArray]:
    """Hits among the first R neighbors, and R."""
    hits, peers, _ = _relevance(neighbors, labels, support_labels)
    deepest, listed = int(peers.max()), hits.shape[1]
    if listed < deepest:
        raise InputError(
            f"`neighbors` lists {listed} per query, but a class has {deepest} support "
            f"rows: search with k={deepest} for R-precision and MAP@R."
        )
    return hits & (np.arange(1, listed + 1) <= peers[:, None]), peers


def _mean(values: FloatArray) -> float:
    return exact_sum(values) / len(values)
