"""The network's own view of a sample of rows: which inputs it cannot move one without the other.

Gradients of the outputs are compared (Charpiat et al. 2019), on as many rows as the settings say;
the record names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vicinal.audits.sections import FitPoint, Histogram, NetworkView
from vicinal.audits.settings import AuditSettings
from vicinal.capture import batches, some_rows
from vicinal.checks import InputError
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.similarity import GradientKernel, denoising, fit_diagnosis

SHOWN = 10  # neighbors named for each query row


@dataclass(frozen=True)
class NetworkFacts:
    """The record's section, and what single query rows carry: crowding and neighbors by row."""

    view: NetworkView
    percentile: dict[int, float]
    neighbors: dict[int, tuple[list[int], list[float]]]


@dataclass(frozen=True)
class _Sample:
    """Some rows of a set: their numbers, inputs and embeddings."""

    rows: np.ndarray
    x: Tensor
    embeddings: Tensor


def network_facts(
    model: nn.Module,
    train: Any,
    test: Any,
    embedded: tuple[Tensor, Tensor],
    labels: Tensor,
    settings: AuditSettings,
) -> tuple[NetworkFacts | None, str | None]:
    """The facts; or, for a model they cannot be had of, why not.

    ``embedded``: both sets, to see how far both views share neighbors; ``labels``: the support's.
    """
    if settings.network_rows < 2:
        return None, "asked for no rows (network_rows)"
    rng = np.random.default_rng(settings.seed)
    rows = [np.sort(rng.permutation(len(z))[: settings.network_rows]) for z in embedded]
    try:
        support, query = (
            _Sample(some, picked(data, some), z[torch.from_numpy(some)].float())
            for data, some, z in zip((train, test), rows, embedded, strict=True)
        )
        chosen = labels[torch.from_numpy(support.rows)]
        return _facts(GradientKernel(model), support, query, chosen), None
    except (InputError, RuntimeError) as error:
        return None, f"gradients could not be compared: {str(error).splitlines()[0]}"


def _facts(
    kernel: GradientKernel, support: _Sample, query: _Sample, labels: Tensor
) -> NetworkFacts:
    crowd = kernel.neighbors(support.x, include_self=False).double()
    mine = kernel.neighbors(support.x, queries=query.x).double()
    percentile = (crowd[None] <= mine[:, None]).double().mean(1) * 100
    k = min(SHOWN, len(support.rows))
    nearest = kernel.topk(query.x, support.x, k)
    by_embedding = ExactSearch().build(support.embeddings).query(query.embeddings, k).indices
    shared = (nearest.indices[:, :, None] == by_embedding[:, None, :]).any(2).double().mean()
    noise = denoising(kernel, support.x)
    view = NetworkView(
        rows_of="query",
        how=(
            f"correlation of output gradients over all parameters, exact; "
            f"{len(query.rows):,} query rows against {len(support.rows):,} support rows"
        ),
        n=len(query.rows),
        density=_histogram("percentile of N_S", percentile.numpy(), query.rows, (0.0, 100.0)),
        fit_map=_fit_map(kernel, support.x, labels, support.rows),
        denoising=_histogram("denoising factor", noise.factor.double().numpy(), support.rows, None),
        denoising_note=(
            "Derived for squared error at a stationary point; for classification read the ranks."
        ),
        similarity=_similarities(kernel, query.x, support.x, query.rows),
        overlap=float(shared),
        overlap_k=k,
    )
    return NetworkFacts(
        view,
        dict(zip(query.rows.tolist(), percentile.tolist(), strict=True)),
        {
            int(row): (support.rows[at.numpy()].tolist(), values.tolist())
            for row, at, values in zip(
                query.rows, nearest.indices, nearest.similarities, strict=True
            )
        },
    )


def _fit_map(
    kernel: GradientKernel, x: Tensor, labels: Tensor, rows: np.ndarray
) -> tuple[FitPoint, ...]:
    found = fit_diagnosis(kernel, x, labels)
    order = found.count.double().argsort().argsort().double()
    density = 100 * order / max(len(order) - 1, 1)
    return tuple(
        FitPoint(int(row), float(density[at]), float(found.variance[at]), found.verdict[at])
        for at, row in enumerate(rows)
    )


def _similarities(
    kernel: GradientKernel, q: Tensor, x: Tensor, asked: np.ndarray
) -> tuple[Histogram, ...]:
    few = min(20, len(q))
    found = kernel.histogram(q[:few], x, bins=40)
    edges = tuple(found.edges.tolist())
    return tuple(
        Histogram(str(int(asked[at])), edges, tuple(found.counts[at].tolist())) for at in range(few)
    )


def _histogram(
    name: str, values: np.ndarray, rows: np.ndarray, span: tuple[float, float] | None
) -> Histogram:
    finite = np.isfinite(values)
    counts, edges = np.histogram(values[finite], bins=20, range=span)
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(counts) - 1)
    examples = [tuple(rows[finite & (bins == b)][:4].tolist()) for b in range(len(counts))]
    return Histogram(name, tuple(edges.tolist()), tuple(counts.tolist()), tuple(examples))


def picked(data: Any, rows: NDArray[np.int64]) -> Tensor:
    """The model's inputs of these rows, as one batch."""
    some = some_rows(data, torch.from_numpy(rows))
    return torch.cat([batch.x for batch in batches(some, 256)])
