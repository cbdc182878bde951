r"""The temperature at which neighbors predict labels best, each point from the others alone.

With :math:`\beta = 1/T`, weights :math:`w_{ij} = e^{-\beta d_{ij}}` and :math:`s_{ij}` the share of
label that i and j have in common, the loss is the soft nearest neighbor loss (Frosst et al. 2019),
the leave-one-out log-loss of NED (Karpusha et al. 2020, section 2):

.. math:: f(\beta) = \mathrm{mean}_i \; \log \sum_j w_{ij} - \log \sum_j s_{ij} w_{ij}
.. math:: f' = \mathrm{mean}_i \; E_{own}[d] - E_{all}[d], \qquad
          f'' = \mathrm{mean}_i \; \mathrm{Var}_{all}[d] - \mathrm{Var}_{own}[d].

A difference of convex functions, which can have two minima: a grid over log T finds the basins,
then Newton's method finishes. Grid and first steps look at a sample of the rows (each with all its
neighbors), the rest at all rows; the last steps are float64. A point's own distance 0 never enters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_choice,
    check_finite,
    check_k,
    check_labels,
    check_positive,
    check_same_rows,
)
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.newton import lowest_minimum
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.neighbors.surprise import (
    AllOthers,
    Gaps,
    block_rows,
    gaps_of,
    losses,
    peers,
    shared,
    slopes,
)

SAMPLE = 1024  # rows that locate the basins
_ALONE = (
    "no row has a neighbor that shares its label, so no temperature can be fitted. "
    "Pass more neighbors (k), or labels of which at least two rows share one."
)


class TemperatureFit(NamedTuple):
    """The best temperature and its loss.

    ``at_bound``: the loss is still falling, or flat, at the end of the range that the distances
    span, so the data do not determine T. A support on which the embedding was trained does this.
    """

    temperature: float
    loss: float
    at_bound: bool


def fit_temperature(
    distances: Float[Tensor, "n k"],
    same: Bool[Tensor, "n k"] | Float[Tensor, "n k"],
    weight: Float[Tensor, " n"] | None = None,
) -> TemperatureFit:
    """The temperature of least mean surprise on cached distances to neighbors, self not among them.

    ``same`` marks the neighbors that share the row's label, or holds the share of it. Rows without
    such a neighbor are left out; ``weight`` weighs the rows.

    >>> d = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> same = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
    >>> round(fit_temperature(d, same).temperature, 3)
    1.36
    """
    distances, same, weight = _checked(distances, same, weight)
    step = block_rows(distances.shape[1])

    def blocks(rows: Tensor, dtype: torch.dtype) -> list[Gaps]:
        everyone = len(rows) == len(distances)
        parts = [p if everyone else p[rows] for p in (distances, same, weight)]
        return [
            gaps_of(*(p[start : start + step].to(dtype) for p in parts))
            for start in range(0, len(rows), step)
        ]

    return _fit(blocks, ((same > 0).any(1) & (weight > 0)).nonzero()[:, 0])


def optimal_temperature(
    x: Float[Tensor, "n d"], labels: Any, *, metric: str = "sqeuclidean", k: int | None = None
) -> float:
    r"""argmin over T of the soft nearest neighbor loss: NED's temperature, leave-one-out.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    k:
        Look among the k nearest others; None: among all, streamed in blocks.

    >>> x = torch.tensor([[0.0], [1.0], [1.5], [2.5]])
    >>> round(optimal_temperature(x, torch.tensor([0, 0, 1, 1])), 3)
    1.089
    """
    rows, labels = _checked_rows(x, labels, metric)
    if k is not None:
        check_k(k, len(rows) - 1, "k", "each row of `x`")
        others = torch.arange(len(rows), device=rows.device)
        distances, indices = ExactSearch(metric).build(rows).query(rows, k, exclude=others)
        return fit_temperature(distances, shared(labels, indices)).temperature

    def blocks(picked: Tensor, dtype: torch.dtype) -> AllOthers:
        return AllOthers(rows.to(dtype), labels, metric, picked)

    return _fit(blocks, (peers(labels) > 0).nonzero()[:, 0]).temperature


@torch.no_grad()
def snnl_profile(
    x: Float[Tensor, "n d"], labels: Any, temperatures: Any, *, metric: str = "sqeuclidean"
) -> Float[Tensor, " t"]:
    """The soft nearest neighbor loss at several temperatures, from one pass over the distances.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    temperatures:
        Positive numbers, infinity included.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.

    >>> x, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])
    >>> snnl_profile(x, labels, [1.0, float("inf")])
    tensor([0.3709, 0.6931], dtype=torch.float64)
    """
    rows, labels = _checked_rows(x, labels, metric)
    at = as_tensor(temperatures, "temperatures").double().flatten()
    for value in at.tolist():
        check_positive(value, "temperatures", infinite=True)
    picked = (peers(labels) > 0).nonzero()[:, 0]
    if not len(picked):
        raise InputError(_ALONE)
    values = losses(AllOthers(rows.double(), labels, metric, picked), at.reciprocal().tolist())
    return torch.tensor(values, dtype=torch.float64)


def chance_level(labels: Any) -> float:
    r"""The loss of neighbors that know nothing, mean of :math:`\log((n-1)/(n_{y_i}-1))`.

    The soft nearest neighbor loss at T = inf; rows without a peer are left out. At its best
    temperature no representation is above it.

    >>> round(chance_level(torch.tensor([0, 0, 1, 1])), 4)
    1.0986
    """
    y = as_tensor(labels, "labels")
    count = peers(check_labels(y, "labels", len(y)))
    if not bool((count > 0).any()):
        raise InputError(_ALONE)
    return float(((len(y) - 1) / count[count > 0]).log().mean())


def _fit(blocks: Callable[[Tensor, torch.dtype], Iterable[Gaps]], valid: Tensor) -> TemperatureFit:
    """Basins on a sample, Newton on the sample, then on all rows, then in float64.

    ``blocks`` readies the given rows in the given precision, to be gone through many times.
    """
    if not len(valid):
        raise InputError(_ALONE)
    with torch.no_grad():
        stride = max(len(valid) // SAMPLE, 1)
        sample = blocks(valid[::stride], torch.float64)
        low, high = _span(sample)
        if high == 0:  # every row's neighbors are all at one distance
            return TemperatureFit(1.0, losses(sample, [1.0])[0], True)
        stages = [lambda beta: slopes(sample, beta)]
        if stride > 1:
            # float32 on all rows, where its range suffices, then float64 to finish.
            if low > 1e-30 and high < 1e30:
                single = blocks(valid, torch.float32)
                stages.append(lambda beta: slopes(single, beta))
            double = blocks(valid, torch.float64)
            stages.append(lambda beta: slopes(double, beta))
        found = lowest_minimum(
            lambda betas: losses(sample, betas), stages, 1 / (128 * high), 64 / low
        )
    return TemperatureFit(1 / found.at, found.value, found.at_bound)


def _span(rows: Iterable[Gaps]) -> tuple[float, float]:
    """A small and the largest difference of distances within a row; (0, 0) if all are equal.

    Well below the first a kernel sees only nearest neighbors, well above the second it sees none.
    """
    gaps = [r.gaps[:, :: -(-r.gaps.shape[1] // 512)].flatten() for r in rows]
    some = torch.cat([g[g > 0] for g in gaps])
    if not len(some):
        return 0.0, 0.0
    return float(some.kthvalue(1 + len(some) // 100).values), max(float(r.gaps.max()) for r in rows)


# ------------------------------------------------------------------ inputs


def _checked(distances: Any, same: Any, weight: Any) -> tuple[Tensor, Tensor, Tensor]:
    d = as_matrix(distances, "distances").detach()
    s = as_tensor(same, "same").detach()
    if s.shape != d.shape or (s.is_floating_point() and bool(((s < 0) | (s > 1)).any())):
        raise InputError(
            f"`same` must hold, for each of the {tuple(d.shape)} distances, whether the neighbor "
            f"shares the row's label (or which share of it, in 0..1); got {s.dtype} of shape "
            f"{tuple(s.shape)}. Pass labels[indices] == labels[:, None]."
        )
    if weight is None:
        return d, s, torch.ones(len(d), device=d.device)
    w = as_tensor(weight, "weight").detach()
    check_same_rows(w, d, "weight", "distances")
    check_finite(w, "weight")
    if w.ndim != 1 or bool((w < 0).any()):
        raise InputError("`weight` must be one number of at least 0 for each row of `distances`.")
    return d, s, w


def _checked_rows(x: Any, labels: Any, metric: str) -> tuple[Tensor, Tensor]:
    check_choice(metric, "metric", METRICS)
    rows, y = as_matrix(x, "x").detach(), as_tensor(labels, "labels").detach()
    if len(rows) < 2:
        raise InputError("`x` must have at least two rows: a row is compared with the others.")
    return rows, check_labels(y, "labels", len(rows)).to(rows.device)
