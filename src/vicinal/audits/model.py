r"""What the model itself adds to an audit: layers, the inputs it treats alike, what they look like.

The embedding that is searched is the last layer before the final linear one, unless another is
named. Layers show at which depth the classes part; gradients show which rows the network cannot
move one without the other (:mod:`~vicinal.audits.network`).

What layers and logits say of unknown inputs are parts of the familiarity that an audit of a model
goes by, ranked among held-out rows as the others are; support rows do not rank them, for the
network was trained on those. A saved head sees embeddings alone and goes without them.

* *energy* of the logits, :math:`-\log \sum_c e^{z_c}` (Liu et al. 2020);
* the distance in direction to the 5th neighbor, layer by layer;
* *DkNN*: how many neighbors over all layers do not have the class that most of them have, the
  nonconformity behind DkNN's credibility (Papernot and McDaniel 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from vicinal.audits.entangled_layers import (
    HISTORY_ROWS,
    compact,
    entangled,
    sampled,
    states_of,
    with_history,
)
from vicinal.audits.network import NetworkFacts, network_facts
from vicinal.audits.pictures import as_pixels
from vicinal.audits.record import Media, ReadLater
from vicinal.audits.sections import Layer
from vicinal.audits.settings import AuditSettings, Job
from vicinal.capture import (
    Activations,
    LayerOutput,
    batches,
    capture,
    device_of,
    evaluating,
    in_order,
    row_count,
    some_rows,
    tracing,
)
from vicinal.checks import InputError
from vicinal.confidence.familiarity import NEAR_RANK
from vicinal.files import fingerprint
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import ExactSearch

STORY_LAYERS = 5  # layers whose neighbors are asked, spread over the depth
STORY_ROWS = 5000  # support rows they are asked among
LAYER_K = 25  # neighbors of each layer that vote
TITLES = {"energy": "energy of the logits", "dknn": "DkNN: neighbors that disagree"}
Layers = dict[str, Neighborhood]  # by the layer's name, labeled with codes


@dataclass(frozen=True, eq=False)
class AskedModel:
    """The model and its data, for what is asked of it once the heads are there."""

    model: nn.Module
    train: Any
    test: Any
    embedding: str


class ModelScores(NamedTuple):
    """Larger = more foreign; a column for each part, and each set's rows by the set's name."""

    titles: dict[str, str]  # of the parts, by name
    rows: dict[str, Float[Tensor, "n p"]]


@dataclass(frozen=True)
class ModelFacts:
    """Embeddings of the sets, and what layers and gradients show; see ``listen``."""

    source: AskedModel
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
    network: NetworkFacts | None = None
    foreign: Any = None
    unknowns: ModelScores | None = None
    not_checked: dict[str, str] = field(default_factory=dict)

    def columns_of(self, named: int | None) -> Tensor | None:
        """The logits; none where names are known and they are not one for each column."""
        if self.logits is None or named is None or named == self.logits.shape[1]:
            return self.logits
        return None

    def without_softmax(self, classes: int) -> str:
        """Why the model's own outputs are not among the heads."""
        if self.logits is None:
            return "the model's output has no column for every class"
        columns = self.logits.shape[1]
        return f"the model has {columns} outputs for {classes} classes; name them all: --classes"


def _layers_to_read(
    model: nn.Module, train: Any, settings: AuditSettings
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The embedding, the layers of the story, and all that is captured, as they run."""
    ran = traced(model, train)
    order = leaves_of(model, ran)
    embedding = settings.embedding or default_embedding(model, order)
    story = tuple(settings.layers) or spread([name for name in order if name != embedding])
    return embedding, by_execution(story, ran), by_execution([*story, embedding, "output"], ran)


def listen(
    model: nn.Module,
    train: Any,
    test: Any,
    calib: Any,
    job: Job,
    foreign: Any = None,
    checkpoints: Any = None,
) -> ModelFacts:
    """Run the model over the sets and ask its layers and gradients; arguments as of ``audit``."""
    if train is None or test is None:
        raise InputError("a model is audited on data: audit(model, train, test).")
    settings, states = job.settings, states_of(checkpoints)
    train, test, calib = in_order(train, "train"), in_order(test, "test"), in_order(calib, "calib")
    embedding, story, names = _layers_to_read(model, train, settings)
    given = {"support": train, "query": test, "calib": calib, "foreign": foreign}
    sets = _captured(model, given, names, job)
    support, query = sets["support"], sets["query"]
    held, unknown = sets.get("calib"), sets.get("foreign")
    if support.labels is None:
        raise InputError("`train` has no labels. Pass (x, y), or a Dataset of pairs.")
    kept = distinct(support, names)
    ends = bool(story) and torch.equal(support[story[-1]], support["output"])
    story = tuple(name for name in kept if name in story or (ends and name == "output"))
    embedded, output = (support[embedding], query[embedding]), query["output"]
    job.tell("layers")
    some = sampled(len(support.labels), STORY_ROWS, settings.seed)
    near = layer_neighbors(sets, story, some)
    votes, shares = layer_votes(near["query"], support.labels) if story else (None, None)
    outputs = {role: acts["output"] for role, acts in sets.items() if role != "support"}
    logits = outputs_are_logits(output.shape[1], support.labels, job.about.class_names)
    scores = model_scores(near, outputs, support.labels, logits)
    asked = AskedModel(model, train, test, embedding)
    layers = _layers_of(support, kept, states, asked, job)
    job.tell("network")
    columns = output.shape[1]
    network, missing = network_facts(model, train, test, embedded, support.labels, job, columns)
    return ModelFacts(
        source=asked,
        name=type(model).__name__,
        fingerprint=fingerprint(model.state_dict())[:12],
        support=(embedded[0], support.labels),
        query=embedded[1] if query.labels is None else (embedded[1], query.labels),
        calib=None if held is None else (held[embedding], held.labels),
        logits=output if output.shape[1] > int(support.labels.max()) else None,  # of every class
        layers=layers, story=story, layer_class=votes, layer_share=shares, network=network,
        support_neighborhoods=near["support"], unknowns=scores,
        foreign=None if unknown is None else unknown[embedding],
        not_checked={} if missing is None else {"network": missing},
    )  # fmt: skip


def _captured(
    model: nn.Module, given: Mapping[str, Any], names: tuple[str, ...], job: Job
) -> dict[str, Activations]:
    """What the layers put out, of every set that is given; in files, where the work is kept."""
    sets: dict[str, Activations] = {}
    for role, data in given.items():
        if data is not None:
            folder = None if job.work is None else job.work / f"layers-{role}"
            told = partial(job.tell, f"embed {role}")
            sets[role] = capture(model, data, names, pool=compact, to=folder, progress=told)
    return sets


def _layers_of(
    support: Activations, kept: tuple[str, ...], states: dict[int, Any], asked: AskedModel, job: Job
) -> tuple[Layer, ...]:
    """How entangled the classes are in each; of some rows, at every checkpoint, too."""
    seed, layers = job.settings.seed, entangled(support, kept, job.settings.seed)
    if not states:
        return layers
    same = sampled(len(support[kept[0]]), HISTORY_ROWS, seed)
    read = some_rows(asked.train, same, "train")
    return with_history(layers, states, asked.model, read, seed, job.tell)


def whole(memory: int | str) -> InputError:
    """What ``memory`` beside a model earns."""
    return InputError(
        f"`memory` ({memory}) is for rows that are read in blocks, and of a model all layers are "
        "held at once. Run `vicinal embed`, then audit what it wrote."
    )


def check_model(model: Any) -> None:
    if model is None or isinstance(model, nn.Module):
        return
    kind = type(model).__name__
    if hasattr(model, "predict_proba"):
        raise InputError(
            f"`model` is a {kind}, which has no layers to listen to. Pass its inputs as rows and "
            "its answers as logits: vicinal.audit(support=(X, y), query=(Xq, yq), "
            "logits=model.predict_log_proba(Xq))."
        )
    raise InputError(
        f"`model` must be a torch.nn.Module, got {kind}. For embeddings pass support=(Z, y) and "
        "query=(Zq, yq)."
    )


def traced(model: nn.Module, data: Any) -> dict[str, LayerOutput]:
    """What the layers put out for the first rows, in the order in which they finish."""
    with tracing(model) as ran, evaluating(model), torch.no_grad():
        next(batches(data, 8)).call(model, device_of(model))
    return ran


def leaves_of(model: nn.Module, ran: dict[str, LayerOutput]) -> list[str]:
    """Names of the leaf layers that put out rows, in order of execution, each once."""
    leaves = {name for name, module in model.named_modules() if not list(module.children())}
    rows = [name for name, output in ran.items() if output.alone and len(output.shape) >= 2]
    return [name for name in rows if name in leaves]


def by_execution(names: Sequence[str], ran: dict[str, LayerOutput]) -> tuple[str, ...]:
    """The names in the order in which the layers ran, each once; the output comes last."""
    place = {name: at for at, name in enumerate(ran)}
    return tuple(sorted(dict.fromkeys(names), key=lambda name: place.get(name, len(place))))


def distinct(acts: Activations, names: Sequence[str]) -> tuple[str, ...]:
    """Without layers that repeat the one before (a flattening); the last layer is the output."""
    kept: list[str] = []
    for name in names:
        same = bool(kept) and torch.equal(acts[kept[-1]], acts[name])
        if same and name == "output":
            kept[-1] = name
        elif not same:
            kept.append(name)
    return tuple(kept)


def default_embedding(model: nn.Module, order: Sequence[str]) -> str:
    """The layer before the last linear one; the output where there is no such layer."""
    modules = dict(model.named_modules())
    linear = [at for at, name in enumerate(order) if isinstance(modules[name], nn.Linear)]
    if not linear or linear[-1] == 0:
        return "output"
    return order[linear[-1] - 1]


def embedding_of(model: nn.Module, data: Any) -> str:
    """The layer an audit of this model searches in, unless another is named."""
    return default_embedding(model, leaves_of(model, traced(model, data)))


def spread(names: Sequence[str]) -> tuple[str, ...]:
    """At most ``STORY_LAYERS`` of the layers, evenly over the depth."""
    if len(names) <= STORY_LAYERS:
        return tuple(names)
    at = np.linspace(0, len(names) - 1, STORY_LAYERS).round().astype(int)
    return tuple(names[i] for i in dict.fromkeys(at.tolist()))


def layer_neighbors(
    sets: Mapping[str, Activations], layers: Sequence[str], some: Int[Tensor, " s"]
) -> dict[str, Layers]:
    """Of every set's rows among ``some`` rows of the support, which do not see themselves."""
    support = sets["support"]
    assert support.labels is not None
    codes = support.labels.unique(return_inverse=True)[1]
    place = torch.full((len(codes),), -1)
    place[some] = torch.arange(len(some))
    found: dict[str, Layers] = {name: {} for name in sets}
    for layer in layers:
        search = ExactSearch("cosine").build(support[layer][some].float())
        for name, near in found.items():
            asked, own = sets[name][layer].float(), place if name == "support" else None
            far, which = search.query(asked, min(LAYER_K, len(some) - 1), exclude=own)
            near[layer] = Neighborhood(far, some[which], codes[some[which]])
    return found


def votes(near: Neighborhood, classes: int) -> Float[Tensor, "n c"]:
    """How many neighbors each class has."""
    ones = torch.ones(near.labels.shape, dtype=torch.float64)
    return torch.zeros(near.size, classes, dtype=torch.float64).scatter_add_(1, near.labels, ones)


def layer_votes(
    layers: Layers, labels: Int[Tensor, " s"]
) -> tuple[Int[Tensor, "n l"], Float[Tensor, "n l"]]:
    """What each layer's neighbors vote for, and the share of them; ``labels``: the support's."""
    classes = len(labels.unique())
    shares = [(votes(near, classes) / near.k).float().max(1) for near in layers.values()]
    return torch.stack([s.indices for s in shares], 1), torch.stack([s.values for s in shares], 1)


def outputs_are_logits(width: int, labels: Int[Tensor, " s"], names: Any) -> bool:
    """Whether no label lacks an output and, where the classes are listed, no output a class."""
    listed = isinstance(names, Sequence) and len(names) != width
    return width > max(int(labels.max()), 1) and not listed


def model_scores(
    near: Mapping[str, Layers],
    outputs: Mapping[str, Float[Tensor, "n o"]],
    labels: Int[Tensor, " s"],
    logits: bool = True,
) -> ModelScores:
    """Of each set that has ``outputs``; ``logits``: these are."""
    classes = len(labels.unique())

    def columns(name: str) -> Float[Tensor, "n p"]:
        layers = near[name].values()
        far = [found.distances[:, min(NEAR_RANK, found.k) - 1].double() for found in layers]
        agreed, asked = [votes(found, classes) for found in layers], sum(f.k for f in layers)
        against = [asked - torch.stack(agreed).sum(0).amax(1)] if agreed else []
        energy = [-outputs[name].double().flatten(1).logsumexp(1)] if logits else []
        return torch.stack([*energy, *against, *far], 1)

    searched = list(next(iter(near.values())))
    names = [*(["energy"] if logits else []), *(["dknn"] if searched else [])]
    said = {name: TITLES[name] for name in names}
    said |= {f"layer:{name}": f"layer {name}: 5th neighbor" for name in searched}
    return ModelScores(said, {name: columns(name) for name in outputs} if said else {})


def images_of(train: Any, test: Any) -> Media | None:
    """Thumbnails of both sets if their inputs are images ``(c, h, w)`` with 1 or 3 channels."""
    support, query = _inputs(train), _inputs(test)
    return None if support is None or query is None else Media("images", query, support)


def _inputs(data: Any) -> ReadLater | None:
    """The images of a data set; None where rows cannot be had one by one, or are no images."""
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], (Tensor, np.ndarray)):
        data = data[0]
    if isinstance(data, torch.utils.data.DataLoader):
        data = in_order(data).dataset
    count = row_count(data)
    by_row = isinstance(data, (Tensor, np.ndarray, Dataset))
    if not count or not by_row or isinstance(data, IterableDataset):
        return None

    def item(row: int) -> Any:
        found = data[row]
        return found[0] if isinstance(found, (tuple, list)) else found

    shape = tuple(getattr(item(0), "shape", (0,)))
    is_image = len(shape) == 3 and shape[0] in (1, 3)
    return ReadLater(lambda row: as_pixels(item(row)), count) if is_image else None
