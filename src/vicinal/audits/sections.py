"""The sections of an audit: one small frozen record for each thing that is measured.

Those that name single rows, cases and suspects, are in :mod:`vicinal.audits.record` and
:mod:`vicinal.audits.label_records`.

Vocabulary. *support*: labeled rows that vote. *query*: rows that are judged. *calib*: held-out rows
that set temperature and thresholds. Classes are positions in ``Audit.classes``; rows are positions
in their set; shares, probabilities and accuracies are in [0, 1]; percentiles in [0, 100].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vicinal.checks import InputError
from vicinal.records import Percentile, Record, Share, Signed


@dataclass(frozen=True)
class SetFacts(Record):
    """One data set: where it came from and how large it is."""

    name: str
    rows: int
    dims: int
    classes: int
    smallest_class: int | None  # rows of the rarest and of the commonest class; None: no labels
    largest_class: int | None
    labeled: bool
    fingerprint: str
    dtype: str = "float32"


@dataclass(frozen=True)
class SpaceFacts(Record):
    """The space rows are compared in, and each candidate's held-out NLL on the support."""

    name: str
    how: str  # a sentence
    losses: dict[str, float]
    cross_fitted: bool  # the map saw labels: support rows are judged by maps that saw others only


@dataclass(frozen=True)
class Data(Record):
    """The sets, and how they were used."""

    support: SetFacts
    query: SetFacts
    calib: SetFacts | None
    split: str  # a sentence: "2-fold cross-fit on query (5,000 + 5,000)"
    metric: str
    k: int
    temperature: float | None
    model: str | None = None
    model_fingerprint: str | None = None
    space: SpaceFacts | None = None


@dataclass(frozen=True)
class ReliabilityBin(Record):
    """Rows whose score lies in [low, high]; accuracy with its 95 % interval, None when empty."""

    low: Share
    high: Share
    count: int
    score: Share | None
    accuracy: Share | None
    accuracy_low: Share | None
    accuracy_high: Share | None


@dataclass(frozen=True)
class Head(Record):
    """One way to turn neighbors or logits into a prediction, scored out of fold."""

    name: str  # "ned", "softmax", ...: the key in summary.json
    title: str  # what the page prints
    accuracy: Share | None
    accuracy_se: Share | None
    ece: Share | None
    noise_floor: Share | None  # what the ECE of a perfectly calibrated head reads at this n
    nll: float | None
    coverage_at_target: Share | None
    overconfidence: Signed | None = None  # mean confidence minus accuracy
    bins: tuple[ReliabilityBin, ...] = ()
    nll_se: float | None = None
    infinite_rows: int = 0  # whose true class has probability 0: the NLL is infinite
    note: str = ""
    even_bins: tuple[ReliabilityBin, ...] = ()  # of equally many rows, for confidences that crowd


@dataclass(frozen=True)
class Recommendation(Record):
    """Which head to use and why; ``kept`` is saved, and gives verdicts and thresholds."""

    head: str
    best: str  # of the lowest NLL
    kept: str
    why: str  # a sentence or two
    gap: float | None = None  # mean NLL of ``head`` less that of ``best``, row by row
    gap_se: float | None = None
    linear_share: float | None = None  # of the kept head's answers, in the mean
    weights: tuple[float, ...] = ()  # of neighbors, linear part and odds in the kept head


@dataclass(frozen=True)
class Threshold(Record):
    """Accept where confidence is at least ``value``; None: no cut-off reaches the target.

    Coverage and accuracy are of the ``rows`` that have a label; others stand in ``unscored``.
    """

    target: Share
    value: Share | None
    coverage: Share | None
    accuracy: Share | None
    lower_bound: Share | None
    rows: int  # rows the bound rests on
    delta: Share = 0.05
    accepted: int = 0  # of those rows
    errors: int = 0  # among the accepted
    unscored: int = 0  # rows without a label that would be accepted too
    level: Share | None = None  # confidence below which a row is contested
    why: str = ""  # why this target, where nobody named one


@dataclass(frozen=True)
class RiskCurve(Record):
    """Accuracy on the rows accepted at each threshold (falling), with its lower bound."""

    TOGETHER = (("threshold", "coverage", "accuracy", "lower_bound"),)

    head: str
    threshold: tuple[Share, ...]
    coverage: tuple[Share, ...]
    accuracy: tuple[Share, ...]
    lower_bound: tuple[Share, ...]
    chosen: Threshold | None = None
    targets: tuple[Threshold, ...] = ()  # the chosen one and other usual targets, lowest first


@dataclass(frozen=True)
class Sweep(Record):
    """Accuracy, ECE and NLL against the number of neighbors."""

    TOGETHER = (("k", "accuracy", "ece", "nll"),)

    k: tuple[int, ...]
    accuracy: tuple[Share, ...]
    ece: tuple[Share | None, ...]
    nll: tuple[float | None, ...]
    chosen: int
    how: str = ""  # on how many rows the temperature was fitted at each k


@dataclass(frozen=True)
class Histogram(Record):
    """``len(edges) == len(counts) + 1``; ``examples[b]`` are a few rows of bin b."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    examples: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        bins = len(self.counts)
        if len(self.edges) != bins + 1 or len(self.examples) not in (0, bins):
            raise InputError(f"`Histogram` {self.name!r} must have an edge more than counts.")


@dataclass(frozen=True)
class Detection(Record):
    """How many rows unlike the support one detector flags, at which rate of false alarms.

    ``set``: known-foreign rows, or query rows at the strongest corruption or attack of the stress.
    """

    set: str
    detector: str
    rows: int
    flagged: int
    false_alarms: Share


@dataclass(frozen=True)
class Credibility(Record):
    """The conformal view: p-values of held-out rows are uniform where the sets are alike."""

    bins: tuple[ReliabilityBin, ...]
    histograms: tuple[Histogram, ...]  # the query's p-values first, then other sets'
    how: str  # "DkNN over 3 layers, k=75, calibrated on ..."
    detections: tuple[Detection, ...] = ()


@dataclass(frozen=True)
class UnknownPart(Record):
    """One way to tell foreign rows, on rows that chose nothing."""

    name: str
    title: str
    auroc: Share
    fpr95: Share  # ordinary rows flagged where 95 % of the foreign ones are
    flagged: Share  # share of foreign rows, at the promised rate of ordinary ones
    combined: bool  # whether it is in the combination


@dataclass(frozen=True)
class Unknowns(Record):
    """How well a known-foreign set is told from ordinary rows; the combination first."""

    rate: Share  # of ordinary rows that may be called unfamiliar
    flagged: Share  # of ordinary rows that were
    ordinary: int
    foreign: SetFacts
    rows: int  # foreign rows that the numbers are of
    parts: tuple[UnknownPart, ...]
    combination: tuple[str, ...]
    how: str
    verdicts: dict[str, int]  # of those foreign rows
    supported: Share  # share of them called supported: what slips through


@dataclass(frozen=True)
class ClassFacts(Record):
    label: int
    support: int
    query: int
    precision: Share | None
    recall: Share | None
    ece: Share | None  # only where n >= 100
    noise_floor: Share | None = None
    entanglement: float | None = None
    suspects: int = 0


@dataclass(frozen=True)
class Border(Record):
    """The share of all between-class edge weight that runs between two classes."""

    a: int
    b: int
    share: Share


@dataclass(frozen=True)
class Borders(Record):
    pairs: tuple[Border, ...]  # largest first; a < b
    how: str  # which graph
    smoothness: float | None = None


@dataclass(frozen=True)
class Layer(Record):
    """Entanglement of one layer (soft nearest neighbor loss) against its chance level."""

    TOGETHER = (("steps", "history", "history_se"),)

    name: str
    entanglement: float
    chance: float
    temperature: float | None  # None: no finite one does better than chance
    n: int
    se: float | None = None
    metric: str = "sqeuclidean"
    steps: tuple[int, ...] = ()  # of the checkpoints that were given
    history: tuple[float, ...] = ()  # entanglement at each of them, on the same rows
    history_se: tuple[float | None, ...] = ()
    history_n: int = 0  # rows, drawn anew: fewer than n, so compare shares of chance
    history_chance: float = 0.0


@dataclass(frozen=True)
class FitPoint(Record):
    row: int
    density: Percentile  # percentile of N_S
    variance: float  # of the labels in the neighborhood
    group: str  # the diagnosis: "well fitted", "ambiguous", "isolated", "memorized"


@dataclass(frozen=True)
class NetworkView(Record):
    """Similarity as the network sees it: correlation of output gradients."""

    rows_of: str  # whose rows the density and the similarities are: "query" or "support"
    how: str  # which parameters, exact or sketched, with which error
    n: int
    density: Histogram  # N_S percentile or share
    fit_map: tuple[FitPoint, ...] = ()
    denoising: Histogram | None = None
    denoising_note: str = ""
    similarity: tuple[Histogram, ...] = ()  # name = row number: one row's similarity to all others
    overlap: Share | None = None  # share of embedding neighbors that are network neighbors too
    overlap_k: int | None = None
    fit_rows_of: str = "support"  # whose rows the fit map and the denoising factors are


@dataclass(frozen=True)
class LinearMap(Record):
    """The linear shadow of the same rows, in the same order."""

    TOGETHER = ("x", "y"), ("support_x", "support_y")

    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    preservation: Share
    support_x: tuple[float, ...] = ()
    support_y: tuple[float, ...] = ()


@dataclass(frozen=True)
class Map(Record):
    """Two dimensions to look at; neighbors shown on a click are the true ones."""

    TOGETHER = ("x", "y"), ("support_row", "support_x", "support_y")

    method: str
    x: tuple[float, ...]  # the query, row by row
    y: tuple[float, ...]
    preservation: Share  # share of a row's 10 nearest drawn rows that are so on the map
    support_row: tuple[int, ...] = ()
    support_x: tuple[float, ...] = ()
    support_y: tuple[float, ...] = ()
    note: str = ""
    linear: LinearMap | None = None


@dataclass(frozen=True)
class Duplicates(Record):
    """Rows that are in both sets, exactly or nearly."""

    exact: int
    near: int
    pairs: tuple[tuple[int, ...], ...] = ()  # (query row, support row), the first few
    accuracy_without: Share | None = None
    within_support: int | None = None


@dataclass(frozen=True)
class Hub(Record):
    row: int
    appearances: int
    weight_share: Share


@dataclass(frozen=True)
class Hubs(Record):
    top: tuple[Hub, ...]
    top_percent_share: Share  # weight carried by the most used 1 % of support rows


@dataclass(frozen=True)
class PriorShift(Record):
    """Class shares in support and query; total variation and what it would be by chance."""

    TOGETHER = (("support", "query"),)

    support: tuple[Share, ...]
    query: tuple[Share, ...]
    distance: Share
    by_chance: Share


@dataclass(frozen=True)
class Planted(Record):
    """For a demonstration: what was hidden in the data, and how much of it was found."""

    what: str
    planted: int
    found: int
    flagged: int


@dataclass(frozen=True)
class Provenance(Record):
    version: str
    seed: int
    command: str
    reproduce: str
    created: str  # ISO time; with `seconds`, all that differs between equal runs
    seconds: float
    device: str
    versions: dict[str, str]
    config: dict[str, Any]
