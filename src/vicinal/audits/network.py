"""The network's own view of a sample of rows: which inputs it cannot move one without the other.

Gradients of the outputs are compared (Charpiat et al. 2019), on as many rows as the settings say,
or else as a fixed number of operations allows; the record names them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vicinal.audits.sections import FitPoint, Histogram, NetworkView
from vicinal.audits.settings import Job
from vicinal.capture import batches, evaluating, some_rows
from vicinal.capture.hooks import device_of
from vicinal.checks import InputError
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.similarity import GradientKernel, denoising, fit_diagnosis
from vicinal.similarity.blocks import Held
from vicinal.similarity.density import counted

SHOWN = 10  # neighbors named for each query row
MOST, LEAST = 400, 20  # rows of a set, where the settings name no number
FLOPS = 1e13  # that these may take: some minutes of one core


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
    job: Job,
    outputs: int,
) -> tuple[NetworkFacts | None, str | None]:
    """The facts; or, for a model they cannot be had of, why not.

    Parameters
    ----------
    model, train, test : the network, and anything :func:`vicinal.capture.capture` takes.
    embedded : both sets, to see how far both views share neighbors.
    labels : the support's.
    job : says how many rows, and is told how far this is.
    outputs : of the model.
    """
    most = job.settings.network_rows
    if most is not None and most < 2:
        return None, "asked for no rows (network_rows)"
    rng = np.random.default_rng(job.settings.seed)
    order = [rng.permutation(len(z)) for z in embedded]
    try:
        kernel, why = GradientKernel(model), ""
        if most is None:
            most = _affordable(kernel, picked(train, order[0][:1]), outputs)
            if most < min(LEAST, len(order[0])):
                return None, (
                    f"the gradients of {LEAST} rows of each set would take more than {FLOPS:.0e} "
                    f"operations ({outputs:,} outputs, a backward pass each); --network-rows "
                    "(AuditSettings.network_rows) asks for them all the same"
                )
            if most < min(MOST, max(map(len, order))):
                why = f", as many as {FLOPS:.0e} operations allow"
        drawn = [np.sort(rows[:most]) for rows in order]
        support, query = (
            _Sample(some, picked(data, some), z[torch.from_numpy(some)].float())
            for data, some, z in zip((train, test), drawn, embedded, strict=True)
        )
        chosen = labels[torch.from_numpy(support.rows)]
        return _facts(kernel, support, query, chosen, why, job), None
    except (InputError, RuntimeError) as error:
        return None, f"gradients could not be compared: {str(error).splitlines()[0]}"


def _affordable(kernel: GradientKernel, x: Tensor, outputs: int) -> int:
    """How many rows of either set may be compared: ``2 n`` captures of one forward and a backward
    pass per output, a pass back being two forward, and ``2 n²`` pairs.
    """
    counter = FlopCounterMode(display=False)
    with evaluating(kernel.engine.model), torch.no_grad(), counter:
        kernel.engine.model(x.to(device_of(kernel.engine.model)))
    capture = 2 * (1 + 2 * outputs) * max(counter.get_total_flops(), 1)
    if capture * LEAST > FLOPS:
        return int(FLOPS // capture)  # not one is captured
    kernel.neighbors(x)
    pair = 2 * max(sum(layer.flops or 0 for layer in kernel.explain()), 1)
    return min(MOST, int((math.sqrt(capture**2 + 4 * pair * FLOPS) - capture) / (2 * pair)))


def _facts(
    kernel: GradientKernel, support: _Sample, query: _Sample, labels: Tensor, why: str, job: Job
) -> NetworkFacts:
    n, total = len(support.rows), len(support.rows) + len(query.rows)
    rows = kernel.held(support.x, progress=lambda done, _: job.tell("network", done, total))
    asked = kernel.held(query.x, progress=lambda done, _: job.tell("network", n + done, total))
    crowd = kernel.neighbors(rows, include_self=False).double()
    alike = kernel.gram(asked, rows)
    mine = alike.sum(1, dtype=torch.float64)
    percentile = (crowd[None] <= mine[:, None]).double().mean(1) * 100
    k = min(SHOWN, n)
    nearest = alike.topk(k)
    by_embedding = ExactSearch().build(support.embeddings).query(query.embeddings, k).indices
    shared = (nearest.indices[:, :, None] == by_embedding[:, None, :]).any(2).double().mean()
    noise = denoising(kernel, rows)
    view = NetworkView(
        rows_of="query",
        how=(
            f"correlation of output gradients over all parameters, exact; "
            f"{len(query.rows):,} query rows against {n:,} support rows{why}"
        ),
        n=len(query.rows),
        density=_histogram("percentile of N_S", percentile.numpy(), query.rows, (0.0, 100.0)),
        fit_map=_fit_map(kernel, rows, labels, support.rows),
        denoising=_histogram("denoising factor", noise.factor.double().numpy(), support.rows, None),
        denoising_note=(
            "Derived for squared error at a stationary point; for classification read the ranks."
        ),
        similarity=_similarities(alike[:20], query.rows),
        overlap=float(shared),
        overlap_k=k,
    )
    return NetworkFacts(
        view,
        dict(zip(query.rows.tolist(), percentile.tolist(), strict=True)),
        {
            int(row): (support.rows[at.numpy()].tolist(), values.tolist())
            for row, at, values in zip(query.rows, nearest.indices, nearest.values, strict=True)
        },
    )


def _fit_map(
    kernel: GradientKernel, x: Held, labels: Tensor, rows: np.ndarray
) -> tuple[FitPoint, ...]:
    found = fit_diagnosis(kernel, x, labels)
    order = found.count.double().argsort().argsort().double()
    density = 100 * order / max(len(order) - 1, 1)
    return tuple(
        FitPoint(int(row), float(density[at]), float(found.variance[at]), found.verdict[at])
        for at, row in enumerate(rows)
    )


def _similarities(alike: Tensor, asked: np.ndarray) -> tuple[Histogram, ...]:
    found = counted(alike, 40)
    edges = tuple(found.edges.tolist())
    return tuple(
        Histogram(str(int(row)), edges, tuple(counts.tolist()))
        for row, counts in zip(asked, found.counts, strict=False)
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
    return torch.cat([batch.x for batch in batches(some_rows(data, torch.from_numpy(rows)), 256)])
