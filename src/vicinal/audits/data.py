"""What an audit says about the sets themselves: duplicates, hubs, priors, class borders."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.inputs import Sets, same_data, warn
from vicinal.audits.sampled import READ
from vicinal.audits.sections import Border, Borders, Duplicates, Hub, Hubs, PriorShift
from vicinal.capture.sources import ArrayRows
from vicinal.checks import InputError, plural
from vicinal.neighbors.mass import exponential, log_mass, own_log_mass
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.sharded import Source, rows_at

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

NEAR = 1e-6  # a squared distance below this share of the mean squared norm is a near-duplicate


def duplicates(
    neighborhood: Neighborhood,
    within: int,
    scored: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None,
) -> Duplicates:
    """Query rows that are support rows too, exactly or nearly; accuracy without them.

    A distance is small against the mean distance to the k-th neighbor. ``within``: support rows
    that another one equals. ``scored``: which rows have a label, and which of those are right.
    """
    nearest = neighborhood.distances[:, 0]
    scale = float(neighborhood.distances[:, -1].double().mean())
    exact, near = nearest == 0, (nearest > 0) & (nearest < NEAR * scale)
    both = (exact | near).numpy()
    rows = np.flatnonzero(both)[:50]
    without = None
    if scored is not None and both.any() and not both[scored[0]].all():
        without = float(scored[1][~both[scored[0]]].mean())
    return Duplicates(
        exact=int(exact.sum()),
        near=int(near.sum()),
        pairs=tuple(zip(rows.tolist(), neighborhood.indices[rows, 0].tolist(), strict=True)),
        accuracy_without=without,
        within_support=within,
    )


def as_given(facts: Facts) -> tuple[Neighborhood, int]:
    """First and last neighbors of query rows, at their distances before any map, and how many
    support rows equal another.

    A map may make rows equal that are not (unit rows), and rounding may part equal ones.
    """
    if facts.space.name == "raw":
        return facts.neighborhood, facts.equal_support_rows
    whole, indices = facts.sets.support.whole, facts.neighborhood.indices[:, [0, -1]]
    support: Source = ArrayRows(facts.sets.support.as_given) if whole is None else whole.source
    named, place = indices.unique(return_inverse=True)
    own, rows = rows_at(support, named, READ), facts.sets.query.as_given
    gaps = [(rows - own[column]).square().sum(1) for column in place.T]
    equal = equal_rows(block for _, block in support.blocks(READ))
    return Neighborhood(torch.stack(gaps, 1), indices), equal


def equal_rows(blocks: Iterable[Float[Tensor, "n d"]]) -> int:
    """How many rows another one equals.

    >>> equal_rows([torch.tensor([[0.0], [1.0]]), torch.tensor([[-0.0], [2.0]])])
    2
    """
    keys = np.concatenate([row_keys(block) for block in blocks])
    _, counts = np.unique(keys, return_counts=True)
    return int(counts[counts > 1].sum())


def row_keys(rows: Float[Tensor, "n d"]) -> NDArray[np.int64]:
    """64 bits of a row's bytes tell it from others."""
    rows = rows + 0.0  # -0 is 0
    return np.fromiter((hash(row.tobytes()) for row in rows.cpu().numpy()), np.int64)


def check_apart(sets: Sets) -> None:
    """Calibration and foreign rows are not those of the support or the query."""
    known = "foreign rows belong to none of the classes"
    for role, name, why in (
        ("calib", "support", "each of them finds itself, and new rows seem unfamiliar"),
        ("calib", "query", "heads are judged on rows they were fitted on, without calib on none"),
        ("foreign", "support", known),
        ("foreign", "query", known),
    ):
        held, other = getattr(sets, role), getattr(sets, name)
        if held is None or (sets.leave_one_out and name == "query"):
            continue
        if (role, name) != ("calib", "query") and same_data(held.rows, other.rows):
            raise InputError(f"{role} and {name} are the same rows: {why}. Leave {role} out.")
        keys = row_keys(held.rows.to(other.rows.dtype))
        if count := int(np.isin(keys, row_keys(other.rows)).sum()):
            rows, verb = plural(len(held.rows), f"{role} row"), "is" if count == 1 else "are"
            warn(f"{count:,} of {rows} {verb} in the {name}, too: {why}.")


def hubs(
    indices: Int[Tensor, "m k"], weights: Float[Tensor, "m k"], support: int, top: int = 20
) -> Hubs:
    """Support rows that are in many neighborhoods, and the weight the top 1 % of them carries."""
    flat = indices.reshape(-1)
    appearances = torch.bincount(flat, minlength=support)
    weight = torch.zeros(support, dtype=torch.float64)
    weight.index_add_(0, flat, weights.reshape(-1).double())
    share = weight / weight.sum().clamp_min(1e-300)
    order = torch.argsort(share, descending=True, stable=True)
    percent = max(1, math.ceil(support / 100))
    return Hubs(
        tuple(Hub(int(i), int(appearances[i]), float(share[i])) for i in order[:top]),
        float(share[order[:percent]].sum()),
    )


def prior_shift(
    support: Int[Tensor, " n"], query: Int[Tensor, " m"], num_classes: int, seed: int
) -> PriorShift:
    """Class shares of both sets, their total variation, and the 95 % point of it by chance.

    By chance: two sets of these sizes drawn from the pooled shares, 500 seeded draws.
    """
    sets = support, query[query >= 0]
    a, b = (torch.bincount(codes, minlength=num_classes).double().numpy() for codes in sets)
    pooled, rng = (a + b) / (a + b).sum(), np.random.default_rng(seed)
    draws = (rng.multinomial(int(n.sum()), pooled, size=500) / max(n.sum(), 1) for n in (a, b))
    draws_a, draws_b = draws
    by_chance = np.quantile(0.5 * np.abs(draws_a - draws_b).sum(1), 0.95)
    share_a, share_b = a / max(a.sum(), 1), b / max(b.sum(), 1)
    distance = 0.5 * np.abs(share_a - share_b).sum()
    return PriorShift(tuple(share_a), tuple(share_b), float(distance), float(by_chance))


def borders(
    graph: Neighborhood,
    codes: Int[Tensor, " n"],
    num_classes: int,
    temperature: float,
    top: int = 200,
) -> Borders:
    """Graph smoothness by class pair: the share of between-class edge weight each pair carries.

    The edges are the leave-one-out kNN graph, the weights e^(-d/T) relative to each row's nearest
    neighbor, so that a dense class does not drown the others.
    """
    scale = temperature if temperature > 0 and math.isfinite(temperature) else 1.0
    weights = (-(graph.distances - graph.distances[:, :1]).double() / scale).exp()
    weights = weights / weights.sum(1, keepdim=True)
    pair = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    rows = codes[:, None].expand_as(graph.indices)
    pair.index_put_((rows.reshape(-1), graph.labels.reshape(-1)), weights.reshape(-1), True)
    both = pair + pair.T
    both.fill_diagonal_(0)
    total = float(both.sum() / 2)
    upper = torch.triu_indices(num_classes, num_classes, 1)
    values = both[upper[0], upper[1]]
    order = torch.argsort(values, descending=True, stable=True)[:top]
    found = [
        Border(int(upper[0, i]), int(upper[1, i]), float(values[i]) / total)
        for i in order.tolist()
        if total > 0 and values[i] > 0
    ]
    how = (
        f"leave-one-out graph of the support, k={graph.k}, weights e^(-d/T) with "
        f"T={scale:.4g}, each row's weights summing to 1"
    )
    return Borders(tuple(found), how, smoothness=total / len(codes))


def class_entanglement(
    graph: Neighborhood, codes: Int[Tensor, " n"], num_classes: int, temperature: float
) -> NDArray[np.float64] | None:
    """Mean -log of the own class's share of mass, by class: the soft nearest neighbor loss, k near.

    Rows without a neighbor of their own class have no finite term and are left out.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        return None
    logs = exponential(graph.distances.double(), temperature)
    terms = log_mass(logs) - own_log_mass(logs, graph.labels == codes[:, None])
    fine = torch.isfinite(terms)
    sums = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, codes[fine], terms[fine])
    return (sums / torch.bincount(codes[fine], minlength=num_classes).clamp_min(1)).numpy()
