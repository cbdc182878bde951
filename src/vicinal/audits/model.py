"""What the model itself can tell an audit: its layers, and the inputs it treats alike.

The embedding that is searched is the last layer before the final linear one, unless another is
named. Layers tell at which depth the classes part; gradients tell which rows the network cannot
move one without the other (Charpiat et al. 2019), on a sample of rows that the record names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vicinal.audits.inputs import AuditSettings
from vicinal.audits.sections import FitPoint, Histogram, Layer, NetworkView
from vicinal.capture import Activations, batches, capture, evaluating, row_count
from vicinal.checks import InputError
from vicinal.evaluation import entanglement
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import ExactSearch
from vicinal.similarity import GradientKernel, denoising, fit_diagnosis

STORY_LAYERS = 5  # layers whose neighbors are asked, spread over the depth
STORY_ROWS = 5000  # support rows they are asked among
ENTANGLED_ROWS = 1500
LAYER_K = 25
WIDE = 8192  # features; wider maps are averaged over their places
SHOWN = 10


@dataclass(frozen=True)
class ModelFacts:
    """Embeddings of the sets, and what layers and gradients say; see ``listen``."""

    name: str
    fingerprint: str
    support: Any
    query: Any
    calib: Any
    logits: Tensor | None
    layers: tuple[Layer, ...]
    story: tuple[str, ...] = ()
    layer_class: Int[Tensor, "m l"] | None = None
    layer_share: Float[Tensor, "m l"] | None = None
    support_neighborhoods: dict[str, Neighborhood] = field(default_factory=dict)
    network: NetworkView | None = None
    network_percentile: dict[int, float] = field(default_factory=dict)
    network_neighbors: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)


def listen(
    model: nn.Module,
    train: Any,
    test: Any,
    calib: Any,
    settings: AuditSettings,
    work: str | Path | None,
    progress: Callable[[str, int, int | None], None] | None,
) -> ModelFacts:
    """Run the model over the sets and ask its layers and gradients."""
    if train is None or test is None:
        raise InputError("a model is audited on data: audit(model, train, test).")
    order = executed(model, train)
    embedding = settings.embedding or default_embedding(model, order)
    story = tuple(settings.layers) or spread([name for name in order if name != embedding])
    names = list(dict.fromkeys([*story, embedding, "output"]))

    def captured(data: Any, title: str) -> Activations:
        report = None if progress is None else lambda d, t: progress(f"embed {title}", d, t)
        folder = None if work is None else Path(work) / f"layers-{title}"
        return capture(model, data, names, pool=compact, to=folder, progress=report)

    support, query = captured(train, "support"), captured(test, "query")
    held = None if calib is None else captured(calib, "calib")
    if support.labels is None:
        raise InputError("`train` has no labels. Pass (x, y), or a Dataset of pairs.")
    missing: dict[str, str] = {}
    votes, shares, neighborhoods = _layer_votes(support, query, story, settings.seed)
    network = _network(model, train, test, support, query, embedding, settings, missing)
    return ModelFacts(
        name=type(model).__name__,
        fingerprint=_fingerprint(model),
        support=(support[embedding], support.labels),
        query=(query[embedding], query.labels) if query.labels is not None else query[embedding],
        calib=None if held is None else (held[embedding], held.labels),
        logits=_logits(query["output"], support.labels),
        layers=_entangled(support, names, settings.seed),
        story=story,
        layer_class=votes,
        layer_share=shares,
        support_neighborhoods=neighborhoods,
        not_checked=missing,
        **network,
    )


def executed(model: nn.Module, data: Any) -> list[str]:
    """Names of the leaf layers that run on the first batch, in order, each once."""
    seen: list[str] = []
    handles = []

    def listener(name: str) -> Callable[..., None]:
        def hear(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim >= 2 and name not in seen:
                seen.append(name)

        return hear

    first = next(batches(data, 8))
    try:
        for name, module in model.named_modules():
            if name and not list(module.children()):
                handles.append(module.register_forward_hook(listener(name)))
        with evaluating(model, None), torch.no_grad():
            parameter = next(model.parameters(), None)
            first.call(model, None if parameter is None else parameter.device)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def default_embedding(model: nn.Module, order: Sequence[str]) -> str:
    """The layer before the last linear one; the output where there is no such layer."""
    modules = dict(model.named_modules())
    linear = [at for at, name in enumerate(order) if isinstance(modules[name], nn.Linear)]
    if not linear or linear[-1] == 0:
        return "output"
    return order[linear[-1] - 1]


def embedding_of(model: nn.Module, data: Any) -> str:
    """The layer an audit of this model searches in, unless another is named."""
    return default_embedding(model, executed(model, data))


def spread(names: Sequence[str]) -> tuple[str, ...]:
    """At most ``STORY_LAYERS`` of the layers, evenly over the depth."""
    if len(names) <= STORY_LAYERS:
        return tuple(names)
    at = np.linspace(0, len(names) - 1, STORY_LAYERS).round().astype(int)
    return tuple(names[i] for i in dict.fromkeys(at.tolist()))


def compact(output: Tensor) -> Tensor:
    """One vector a row: all features where they are few, else averaged over their places."""
    if output[0].numel() <= WIDE or output.ndim == 2:
        return output.reshape(len(output), -1)
    places = output if output.ndim == 3 else output.flatten(2).transpose(1, 2)
    return places.mean(1)


def _logits(output: Tensor, labels: Tensor) -> Tensor | None:
    """The output, where it has a column for every class."""
    return output if output.shape[1] > int(labels.max()) else None


def _entangled(acts: Activations, names: Sequence[str], seed: int) -> tuple[Layer, ...]:
    assert acts.labels is not None
    n = len(acts.labels)
    rows = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(n)[:ENTANGLED_ROWS]))
    found = entanglement({name: acts[name][rows] for name in names}, acts.labels[rows])
    return tuple(
        Layer(layer.layer, layer.loss, layer.chance, layer.temperature, layer.rows)
        for layer in found.layers
    )


def _layer_votes(
    support: Activations, query: Activations, story: Sequence[str], seed: int
) -> tuple[Tensor | None, Tensor | None, dict[str, Neighborhood]]:
    """For each layer: the vote around each query row, and the neighbors of each support row."""
    labels = support.labels
    assert labels is not None
    if not story:
        return None, None, {}
    n = len(labels)
    some = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(n)[:STORY_ROWS]))
    codes = labels.unique(return_inverse=True)[1]
    place = torch.full((n,), -1)
    place[some] = torch.arange(len(some))
    k = min(LAYER_K, len(some) - 1)
    classes, shares, neighborhoods = [], [], {}
    for name in story:
        search = ExactSearch("cosine").build(support[name][some].float())
        near = search.query(query[name].float(), k).indices
        votes = torch.zeros(len(near), int(codes.max()) + 1)
        votes.scatter_add_(1, codes[some][near], torch.ones_like(near, dtype=votes.dtype))
        share, best = (votes / k).max(1)
        classes.append(best)
        shares.append(share)
        own = search.query(support[name].float(), k, exclude=place)
        neighborhoods[name] = Neighborhood(
            own.distances, some[own.indices], codes[some[own.indices]]
        )
    return torch.stack(classes, 1), torch.stack(shares, 1), neighborhoods


def _network(
    model: nn.Module,
    train: Any,
    test: Any,
    support: Activations,
    query: Activations,
    embedding: str,
    settings: AuditSettings,
    missing: dict[str, str],
) -> dict[str, Any]:
    """The network's own view of a sample of rows; a model it cannot be had of is said so."""
    rng = np.random.default_rng(settings.seed)
    count = settings.network_rows
    if count < 2:
        missing["network"] = "asked for no rows (network_rows)"
        return {}
    rows = np.sort(rng.permutation(row_count(train) or len(support["output"]))[:count])
    asked = np.sort(rng.permutation(row_count(test) or len(query["output"]))[:count])
    try:
        x, q = picked(train, rows), picked(test, asked)
        kernel = GradientKernel(model)
        return _network_facts(kernel, x, q, rows, asked, support, query, embedding)
    except (InputError, RuntimeError) as error:
        missing["network"] = f"gradients could not be compared: {str(error).splitlines()[0]}"
        return {}


def _network_facts(
    kernel: GradientKernel,
    x: Tensor,
    q: Tensor,
    rows: np.ndarray,
    asked: np.ndarray,
    support: Activations,
    query: Activations,
    embedding: str,
) -> dict[str, Any]:
    assert support.labels is not None
    labels = support.labels[torch.from_numpy(rows)]
    crowd = kernel.neighbors(x, include_self=False).double()
    mine = kernel.neighbors(x, queries=q).double()
    percentile = (crowd[None] <= mine[:, None]).double().mean(1) * 100
    k = min(SHOWN, len(rows))
    near = kernel.topk(q, x, k)
    inside = ExactSearch().build(support[embedding][torch.from_numpy(rows)].float())
    by_embedding = inside.query(query[embedding][torch.from_numpy(asked)].float(), k).indices
    shared = (near.indices[:, :, None] == by_embedding[:, None, :]).any(2).double().mean()
    noise = denoising(kernel, x)
    view = NetworkView(
        rows_of="query",
        how=(
            f"correlation of output gradients over all parameters, exact; "
            f"{len(asked):,} query rows against {len(rows):,} support rows"
        ),
        n=len(asked),
        density=_histogram("percentile of N_S", percentile.numpy(), asked, (0.0, 100.0)),
        fit_map=_fit_map(kernel, x, labels, rows),
        denoising=_histogram("denoising factor", noise.factor.double().numpy(), rows, None),
        denoising_note=(
            "Derived for squared error at a stationary point; for classification read the ranks."
        ),
        similarity=_similarities(kernel, q, x, asked),
        overlap=float(shared),
        overlap_k=k,
    )
    return {
        "network": view,
        "network_percentile": dict(zip(asked.tolist(), percentile.tolist(), strict=True)),
        "network_neighbors": {
            int(row): (rows[near.indices[at].numpy()].tolist(), near.similarities[at].tolist())
            for at, row in enumerate(asked)
        },
    }


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


def picked(data: Any, rows: np.ndarray) -> Tensor:
    """The model's inputs of these rows, as one batch."""
    wanted = set(rows.tolist())
    parts, at = [], 0
    for batch in batches(data, 256):
        if len(batch.inputs) != 1 or not isinstance(batch.inputs[0], Tensor):
            raise InputError("the model takes more than one input")
        keep = [i for i in range(batch.rows) if at + i in wanted]
        if keep:
            parts.append(batch.inputs[0][keep])
        at += batch.rows
    return torch.cat(parts)


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:12]
