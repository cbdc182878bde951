"""What decides an audit's numbers besides the data, what its rows are called, where it works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from vicinal.checks import check_choice, check_share, check_whole
from vicinal.neighbors.search.choice import RECALL, SEARCHES
from vicinal.neighbors.search.resumable import Progress
from vicinal.neighbors.spaces import SPACES
from vicinal.records import Record

CHOICES = {
    "metric": ("sqeuclidean", "euclidean", "cosine"),
    "space": (*SPACES, "fit"),
    "map": ("tsne", "linear", "none"),
    "prior": ("support", "uniform"),
    "stress": ("none", "small", "full"),
    "unknown": ("wrong", "unlabeled"),
    "search": SEARCHES,
}


@dataclass(frozen=True)
class AuditSettings(Record):
    """Everything that decides the numbers, besides the data. The defaults are the command line's.

    Parameters
    ----------
    k : neighbors that vote; None is 100, or the whole of a smaller support.
    metric, normalize : which distance, and whether rows are scaled to length 1 before it.
    space : the linear map before the distances; ``"fit"`` is what held-out support rows choose.
    target_accuracy : what accepted rows keep; None is the highest of 0.90, 0.95, 0.97 and 0.99 that
        at least half of the rows can be shown to meet, else the accuracy itself.
    prior : class shares that NED's background and sums stand on: ``"support"`` or ``"uniform"``.
    unknown : query rows of a class the support lacks count as ``"wrong"``, or as ``"unlabeled"``.
    force_ece : also of fewer rows than an ECE can be read from.
    seed : of all that is drawn.
    embedding, layers : which layers of a model to search in, and to tell the story of.
    network_rows : how many rows of either set the network's own view compares; None is up to 400,
        as many as 1e13 operations allow.
    unfamiliar : the share of ordinary rows that may be called so; a promise.
    stress : a model's inputs are corrupted and attacked a little, fully, or not (``"none"``).
    map : ``"tsne"`` places rows near their neighbors, ``"linear"`` is quicker, ``"none"`` skips it.
    search, recall : who finds neighbors: ``"exact"``, ``"faiss"``, or ``"auto"``, which is exact
        until lists cost less here; and the share of the true ones to find where that is not all.
    """

    k: int | None = None
    metric: str = "sqeuclidean"
    normalize: bool = False
    target_accuracy: float | None = None
    prior: str = "support"
    unknown: str = "wrong"
    force_ece: bool = False
    seed: int = 0
    search: str = "auto"
    embedding: str | None = None
    layers: tuple[str, ...] = ()
    network_rows: int | None = None
    unfamiliar: float = 0.05
    space: str = "fit"
    stress: str = "small"
    map: str = "tsne"
    recall: float = RECALL

    def __post_init__(self) -> None:
        if self.k is not None:
            check_whole(self.k, "k", 1)
        if self.target_accuracy is not None:
            check_share(self.target_accuracy, "target_accuracy")
        check_share(self.unfamiliar, "unfamiliar")
        check_whole(self.seed, "seed")
        if self.network_rows is not None:
            check_whole(self.network_rows, "network_rows")
        super().__post_init__()
        for name, choices in CHOICES.items():
            check_choice(getattr(self, name), name, choices)
        if self.recall != 1:  # all of them: exact
            check_share(self.recall, "recall")

    @property
    def searched(self) -> tuple[str, ...]:
        """What decides who is near whom, besides rows and k."""
        return (self.metric, self.search, self.space, str(self.recall))


def asked_settings(
    settings: AuditSettings | None,
    asked: Mapping[str, Any],
    model: Any,
    embedding: str | Sequence[str] | None,
) -> AuditSettings:
    """The settings with every keyword that was given; arguments as of :func:`vicinal.audit`."""
    check_choice(asked["metric"], "metric", ("auto", *CHOICES["metric"]))
    auto = {"metric"} if asked["metric"] == "auto" else set()
    given = {name: v for name, v in asked.items() if v is not None and name not in auto}
    if isinstance(model, nn.Module) and isinstance(embedding, str):
        given["embedding"] = embedding
    return replace(settings or AuditSettings(), **given)


@dataclass(frozen=True)
class About:
    """What the rows are called and look like; nothing here changes a number.

    Parameters
    ----------
    name, support_name, query_name, calib_name, foreign_name : of the audit and of its sets.
    support_ids, query_ids : of the rows; None: their numbers.
    class_names : in the order of the logits, or ``{class: name}``.
    features : what the columns of the rows are called.
    model, command, reproduce, config, warnings : written into the record as they are.
    media, show_images : what rows look like (:class:`~vicinal.audits.record.Media`); where none are
        given, a model's inputs are shown unless this is False.
    """

    name: str = "audit"
    support_name: str = "support"
    query_name: str = "query"
    calib_name: str = "calib"
    foreign_name: str = "foreign"
    support_ids: Sequence[str] | None = None
    query_ids: Sequence[str] | None = None
    class_names: Sequence[str] | Mapping[Any, str] | None = None
    features: tuple[str, ...] = ()
    model: str | None = None
    command: str = ""
    reproduce: str = ""
    media: Any = None
    show_images: bool = True
    warnings: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One audit as it was asked for.

    ``work`` keeps finished blocks of what takes long, for a run that was stopped; ``progress`` is
    told how far it is; ``on`` names a cluster to work in.
    """

    settings: AuditSettings
    about: About
    work: Path | None = None
    progress: Progress | None = None
    on: str | None = None

    def tell(self, title: str, done: int = 0, total: int | None = None) -> None:
        if self.progress is not None:
            self.progress(title, done, total)
