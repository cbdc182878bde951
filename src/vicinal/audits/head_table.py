"""Which head reads these embeddings best? One table, as in Karpusha 2020's Table 1.

Every head sees the same support and is judged on the same queries: accuracy with its standard
error, ECE next to the noise floor it would have if it were perfectly calibrated, log loss with the
rows where it is infinite, and the share of queries that can be accepted at a target accuracy. The
neighbor heads share one search. Logistic regression and an RBF-SVC stand beside them because on
some embeddings they win; a softmax head joins where its logits are given.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from vicinal.audits.scaled_svc import ScaledSVC
from vicinal.audits.shared_search import SharedSearch
from vicinal.checks import InputError, as_matrix, check_choice, check_k, check_same_width
from vicinal.confidence import KNNClassifier, NEDClassifier, TemperatureScaling
from vicinal.evaluation import (
    area_under_risk_coverage,
    expected_calibration_error,
    negative_log_likelihood,
    noise_floor,
    threshold_for_accuracy,
)
from vicinal.labels import Labels, codes_of, labels_of
from vicinal.neighbors.search import Search, make_search
from vicinal.records import Record

TITLES = {
    "1nn": "1-NN",
    "knn": "kNN",
    "dudani": "weighted kNN (Dudani)",
    "gou": "weighted kNN (Gou)",
    "ned": "NED (eq. 3)",
    "ned_fitted": "NED, everything fitted",
    "svc": "RBF-SVC",
    "logistic": "logistic regression",
    "softmax": "softmax (given)",
    "softmax_scaled": "softmax, temperature-scaled",
}
BINS = 15
SVC_ROWS = 4_000  # its cost grows with the square of the rows, for every class and fold
LOGISTIC_ROWS = 20_000


@dataclass(frozen=True)
class HeadScore(Record):
    """One line of the table. ``nll`` is None where it is infinite; ``nll_finite`` is the mean of
    the other rows."""

    name: str
    title: str
    accuracy: float
    accuracy_se: float
    ece: float
    noise_floor: float
    nll: float | None
    nll_finite: float | None
    infinite_rows: int
    aurc: float
    coverage_at_target: float
    threshold: float | None
    mean_confidence: float


@dataclass(frozen=True)
class HeadComparison(Record):
    """All heads on the same rows; ``notes`` say what was left out or warned about."""

    heads: tuple[HeadScore, ...]
    support_rows: int
    query_rows: int
    dimensions: int
    classes: int
    k: int
    metric: str
    target: float
    delta: float
    temperature: float | None
    unknown_rows: int
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> HeadScore:
        check_choice(name, "name", [head.name for head in self.heads])
        return next(head for head in self.heads if head.name == name)

    def __str__(self) -> str:
        cover = f"cover@{self.target:g}"
        lines = [
            f"{self.query_rows} queries, {self.support_rows} support rows of {self.classes} "
            f"classes in {self.dimensions} dimensions, k={self.k}, {self.metric}",
            f"{'head':<28}{'accuracy %':>15}{'ECE %':>8}{'floor %':>9}{'NLL':>17}{cover:>12}",
        ]
        for h in self.heads:
            accuracy = f"{100 * h.accuracy:.1f} ± {100 * h.accuracy_se:.1f}"
            nll = f"inf ({h.infinite_rows} rows)" if h.nll is None else f"{h.nll:.3f}"
            lines.append(
                f"{h.title:<28}{accuracy:>15}{100 * h.ece:>8.2f}{100 * h.noise_floor:>9.2f}"
                f"{nll:>17}{h.coverage_at_target:>12.1%}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


class _Rows:
    """The data every head gets: support and queries as float tensors, labels as class numbers."""

    def __init__(self, support: Any, query: Any, calib: Any) -> None:
        self.x, y = _pair(support, "support")
        self.q, truth = _pair(query, "query")
        check_same_width(self.x, self.q, "support", "query")
        labels = labels_of(y, len(self.x))
        if labels.soft:
            raise InputError(
                "`support` labels must be hard (n,): the heads are compared on classes."
            )
        self.labels = labels
        self.classes = labels.classes
        self.y = labels.codes.numpy()
        self.truth = self.numbered(truth, len(self.q))
        self.calib = None
        if calib is not None:
            rows, names = _pair(calib, "calib")
            check_same_width(self.x, rows, "support", "calib")
            self.calib = rows, self.numbered(names, len(rows))

    def numbered(self, y: Any, rows: int) -> NDArray[np.int64]:
        """Class numbers in the support's order; -1 for a class it does not have."""
        codes = codes_of(y, rows, Labels(self.classes, self.labels.codes))
        if codes.ndim != 1:
            raise InputError("labels must be hard (n,): the heads are compared on classes.")
        return codes.numpy()


def compare_heads(
    support: tuple[Any, Any],
    query: tuple[Any, Any],
    *,
    calib: tuple[Any, Any] | None = None,
    logits: Any = None,
    calib_logits: tuple[Any, Any] | None = None,
    heads: Sequence[str] | None = None,
    k: int = 50,
    metric: str = "sqeuclidean",
    target: float = 0.95,
    delta: float = 0.05,
    search: str | Search = "exact",
    random_state: int = 0,
) -> HeadComparison:
    """Judge every head on ``query = (rows, labels)`` with ``support = (rows, labels)``.

    ``calib`` (held-out rows and labels) fits NED's parameters instead of leave-one-out. ``logits``
    of the queries, columns in the sorted order of the support's classes, add the softmax head, and
    ``calib_logits = (logits, labels)`` its temperature-scaled form. ``k`` is shared by all neighbor
    heads, as in the paper.

    >>> rng = np.random.default_rng(0); y = rng.integers(0, 2, 300)
    >>> x = rng.normal(size=(300, 2)) + 2 * y[:, None]
    >>> table = compare_heads((x[:200], y[:200]), (x[200:], y[200:]), k=20, heads=["1nn", "ned"])
    >>> table["ned"].ece < table["1nn"].ece
    True
    """
    data = _Rows(support, query, calib)
    check_k(k, len(data.x), "k", "the support")
    names = list(TITLES) if heads is None else list(heads)
    for name in names:
        check_choice(name, "heads", tuple(TITLES))
    shared = SharedSearch(make_search(search, metric)).build(data.x)
    shared.query(data.q, k)
    makers = _makers(data, shared, k, metric, logits, calib_logits, random_state)
    _check_asked(names, makers, heads)
    scores, notes, temperature = [], _unknown_note(data), None
    for name in (name for name in names if name in makers):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                probabilities, predicted, temperature_ = makers[name]()
            except InputError as error:
                notes.append(f"{TITLES[name]} left out: {error}")
                continue
        notes += [f"{TITLES[name]}: {text}" for text in {str(w.message): 0 for w in caught}]
        temperature = temperature_ if name == "ned" else temperature
        scores.append(_score(name, probabilities, predicted, data.truth, target, delta))
    return HeadComparison(
        tuple(scores), len(data.x), len(data.q), data.x.shape[1], len(data.classes), k, metric,
        target, delta, temperature, int((data.truth < 0).sum()), tuple(notes),
    )  # fmt: skip


Answer = tuple[NDArray[np.float64], NDArray[np.int64], float | None]


def _makers(
    data: _Rows, search: Any, k: int, metric: str, logits: Any, calib_logits: Any, seed: int
) -> dict[str, Callable[[], Answer]]:
    """What computes each head's probabilities, predictions and temperature, for those possible."""

    def vote(count: int, weights: str) -> Answer:
        head = KNNClassifier(count, weights, metric, search).fit(data.x, data.y)
        return *_predict(head, data.q), None

    def ned(fitted: bool) -> Answer:
        head = NEDClassifier(k, metric=metric, search=search)
        if fitted:
            head.set_params(sharpness="fit", background="fit", bandwidth="class")
        head.fit(data.x, data.y)
        if data.calib is not None:
            head.calibrate(*data.calib)
        return *_predict(head, data.q), float(head.temperature_)

    def trained(model: Any, most: int) -> Answer:
        return *_trained(model, data, most, seed), None

    makers: dict[str, Callable[[], Answer]] = {
        "1nn": lambda: vote(1, "uniform"),
        "knn": lambda: vote(k, "uniform"),
        "dudani": lambda: vote(k, "dudani"),
        "gou": lambda: vote(k, "gou"),
        "ned": lambda: ned(False),
        "ned_fitted": lambda: ned(True),
        "svc": lambda: trained(ScaledSVC(), SVC_ROWS),
        "logistic": lambda: trained(LogisticRegression(max_iter=1000), LOGISTIC_ROWS),
    }
    if logits is not None:
        makers["softmax"] = lambda: _softmax(data, logits, None)
    if logits is not None and calib_logits is not None:
        makers["softmax_scaled"] = lambda: _softmax(data, logits, calib_logits)
    return makers


def _predict(head: Any, rows: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    p = head.predict_log_proba(rows).double().exp().numpy()
    return p, np.asarray(head.predict(rows))


def _trained(
    model: Any, data: _Rows, most: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A scikit-learn head, on a seeded sample of the support if that is too large.

    Rows are centered and divided by one common scale: scaling each dimension by itself would blow
    up those in which an embedding hardly varies.
    """
    rows = np.arange(len(data.x))
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(seed).permutation(len(rows))[:most])
        warnings.warn(f"fitted on {most} of {len(data.x)} support rows.", stacklevel=2)
    if len(np.unique(data.y[rows])) < 2:
        raise InputError("it needs at least two classes in the support.")
    x, q = data.x[torch.from_numpy(rows)].double().numpy(), data.q.double().numpy()
    mean, scale = x.mean(0), float(x.std()) or 1.0
    head = model.fit((x - mean) / scale, data.y[rows])
    p = np.zeros((len(q), len(data.classes)))
    p[:, head.classes_] = head.predict_proba((q - mean) / scale)
    return p, p.argmax(1)


def _softmax(data: _Rows, logits: Any, calib: Any) -> Answer:
    z = as_matrix(logits, "logits").detach().cpu().double()
    if z.shape != (len(data.q), len(data.classes)):
        raise InputError(
            f"`logits` must have one row per query and one column per class of the support, "
            f"{(len(data.q), len(data.classes))}, got {tuple(z.shape)}."
        )
    temperature = 1.0
    if calib is not None:
        rows, names = _pair(calib, "calib_logits")
        known = data.numbered(names, len(rows))
        temperature = TemperatureScaling().fit(rows[known >= 0], known[known >= 0]).temperature_
    p = torch.softmax(z / temperature, 1).numpy()
    return p, p.argmax(1), temperature


def _score(
    name: str,
    p: NDArray[np.float64],
    predicted: NDArray[np.int64],
    truth: NDArray[np.int64],
    target: float,
    delta: float,
) -> HeadScore:
    correct = predicted == truth
    confidence = np.minimum(p[np.arange(len(p)), predicted], 1.0)
    # a class the support does not have: a column of zeros, so its rows are wrong and infinite
    wide = np.c_[p, np.zeros(len(p))]
    loss = negative_log_likelihood(wide, np.where(truth < 0, p.shape[1], truth))
    found = threshold_for_accuracy(confidence, correct, target, delta)
    accuracy = float(correct.mean())
    return HeadScore(
        name=name,
        title=TITLES[name],
        accuracy=accuracy,
        accuracy_se=math.sqrt(accuracy * (1 - accuracy) / len(p)),
        ece=expected_calibration_error(confidence, correct, bins=BINS),
        noise_floor=noise_floor(confidence, bins=BINS),
        nll=None if loss.infinite else float(loss),
        nll_finite=None if loss.infinite == loss.rows else loss.finite_mean,
        infinite_rows=loss.infinite,
        aurc=area_under_risk_coverage(confidence, correct),
        coverage_at_target=found.coverage,
        threshold=found.threshold if found.reachable else None,
        mean_confidence=math.fsum(confidence.tolist()) / len(p),
    )


def _check_asked(names: list[str], possible: dict[str, Any], heads: Sequence[str] | None) -> None:
    missing = [name for name in names if name not in possible]
    if heads is not None and missing:
        need = "`logits`" if missing[0] == "softmax" else "`logits` and `calib_logits`"
        raise InputError(f"`heads` asks for {missing[0]!r}, which needs {need}.")


def _unknown_note(data: _Rows) -> list[str]:
    unknown = int((data.truth < 0).sum())
    text = f"{unknown} queries have a class the support lacks: wrong and infinite for every head."
    return [text] if unknown else []


def _pair(value: Any, name: str) -> tuple[Tensor, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InputError(f"`{name}` must be a pair (rows, labels), got {type(value).__name__}.")
    return as_matrix(value[0], name).detach().cpu(), value[1]
