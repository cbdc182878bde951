"""Which head reads these embeddings best? One table, as in Karpusha 2020's Table 1.

Every head sees the same support and is judged on the same queries: accuracy with its standard
error, ECE next to the noise floor it would have if it were perfectly calibrated, log loss with the
rows where it is infinite, and the share of queries that can be accepted at a target accuracy. The
neighbor heads share one search. Logistic regression (λ cross-validated; raw and calibrated), its
product with NED and an RBF-SVC stand beside them because on some embeddings they win; a softmax
head joins where its logits are given. An audit reads the same table (:mod:`vicinal.audits.heads`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vicinal.audits.heads import HEADS, RECIPES, Answer, Fold, Task
from vicinal.audits.linear_view import linear_view
from vicinal.audits.scoring import Scored
from vicinal.checks import InputError, as_matrix, check_choice, check_k, check_same_width
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.space import check_space, fit_space
from vicinal.confidence.support import Evidence, LabeledSupport
from vicinal.labels import Labels, codes_of, labels_of
from vicinal.neighbors.search import Search, make_search
from vicinal.records import Record

TITLES = {
    "1nn": "1-NN",
    "knn": "kNN, raw votes",
    "knn_smoothed": "kNN, smoothed",
    "dudani": "weighted kNN (Dudani)",
    "gou": "weighted kNN (Gou)",
    "ned": "NED (eq. 3)",
    "ned_fitted": "NED, everything fitted",
    "logistic": "logistic regression, raw",
    "logistic_scaled": "logistic regression, scaled",
    "ned_linear": "NED × linear",
    "svc": "RBF-SVC",
    "softmax": "softmax (given)",
    "softmax_scaled": "softmax, temperature-scaled",
}
LINEAR = {"logistic", "logistic_scaled", "ned_linear"}
FITTED = LINEAR | RECIPES.keys() | {"knn_smoothed"}
_UNKNOWN = "{} queries have a class the support lacks: wrong and infinite for every head."


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
                f"{nll:>17}{100 * h.coverage_at_target:>10.1f} %"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


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
    space: str = "raw",
    random_state: int = 0,
) -> HeadComparison:
    """Judge every head on ``query = (rows, labels)`` with ``support = (rows, labels)``.

    Parameters
    ----------
    support, query : pairs of rows and labels; ``support`` votes, ``query`` is judged.
    calib : held-out rows and labels that fit NED's parameters instead of leave-one-out.
    logits : of the queries, columns in the sorted order of the support's classes: they add the
        softmax head.
    calib_logits : ``(logits, labels)`` of other rows: its temperature-scaled form.
    heads : names from ``TITLES``; None is every head there is input for.
    k : neighbors, shared by all neighbor heads, as in the paper.
    metric, search, space : as of :class:`vicinal.confidence.NEDClassifier`.
    target, delta : the accuracy to keep on accepted rows, and the chance of missing it.
    random_state : of the sample that slow heads are trained on where the support is large.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0); y = rng.integers(0, 2, 300)
    >>> x = rng.normal(size=(300, 2)) + 2 * y[:, None]
    >>> table = compare_heads((x[:200], y[:200]), (x[200:], y[200:]), k=20, heads=["1nn", "ned"])
    >>> table["ned"].ece < table["1nn"].ece
    True
    """
    x, y = _pair(support, "support")
    labels = labels_of(y, len(x))
    if labels.soft:
        raise InputError("`support` labels must be hard (n,): the heads are compared on classes.")
    q, codes = _coded(query, "query", labels, x)
    check_k(k, len(x), "k", "the support")
    for name in (names := list(TITLES) if heads is None else list(heads)):
        check_choice(name, "heads", tuple(TITLES))
    rows = _searched(x, labels, k, metric, search, space)
    task = Task(
        support=x,
        codes=labels.codes,
        query=q,
        neighborhood=rows.query(q, k),
        folds=(),
        num_classes=len(labels.classes),
        metric=metric,
        vote_k=k,
        weighted_k=k,
        logits=_logits(logits, len(q), len(labels.classes)),
        scaling=_scaling(calib_logits, len(q), labels),
        seed=random_state,
    )
    names = _possible(names, task, asked=heads is not None)
    unknown, warned = int((codes < 0).sum()), list[str]()
    if not FITTED.isdisjoint(names):
        evidence, warned = _evidence(rows, calib, k, metric)
        fold = Fold(evidence, torch.arange(len(q)), task.neighborhood.double())
        task = replace(task, folds=(fold,))
    if not LINEAR.isdisjoint(names) and len(labels.classes) > 1:
        task = _with_linear(task, labels, calib)
    answers, notes = _answers(names, task, warned)
    scores = [_line(name, Scored(a, codes.numpy(), delta), target) for name, a in answers.items()]
    temperature = answers["ned"].parameters[0].temperature if "ned" in answers else None
    notes = [_UNKNOWN.format(unknown), *notes] if unknown else notes
    return HeadComparison(
        tuple(scores), len(x), len(q), x.shape[1], len(labels.classes), k, metric,
        target, delta, temperature, unknown, tuple(notes),
    )  # fmt: skip


def _with_linear(task: Task, labels: Labels, calib: tuple[Any, Any] | None) -> Task:
    """A linear head beside the neighbors; of ``calib`` the rows that NED is fitted on."""
    held = None
    if calib is not None:
        held, known = _coded(calib, "calib", labels)
        held = held[known >= 0]
    return replace(
        task, linear=linear_view((task.support, task.codes), task.query, held, seed=task.seed)
    )


def _searched(
    x: Tensor, labels: Labels, k: int, metric: str, search: str | Search, space: str
) -> LabeledSupport:
    """The support in the space it is compared in, in its search."""
    check_space(space)
    fit = fit_space(space, x, labels, k=k, metric=metric, temperature=None)
    made = make_search(search, metric, shape=(len(x), x.shape[1])).build(fit.space(x))
    return LabeledSupport(made, labels, space=fit.space, crossed=fit.crossed)


def _coded(
    pair: Any, name: str, labels: Labels, like: Tensor | None = None
) -> tuple[Tensor, Int[Tensor, " n"]]:
    """Rows and their codes in the support's order; -1 for a class it does not have."""
    rows, y = _pair(pair, name)
    if like is not None:
        check_same_width(like, rows, "support", name)
    codes = codes_of(y, len(rows), labels)
    if codes.ndim != 1:
        raise InputError(f"labels of `{name}` must be hard (n,): heads are compared on classes.")
    return rows, codes


def _logits(logits: Any, rows: int, classes: int) -> Tensor | None:
    if logits is None:
        return None
    z = as_matrix(logits, "logits").detach().cpu()
    if z.shape != (rows, classes):
        raise InputError(
            f"`logits` must have one row per query and one column per class of the support, "
            f"{(rows, classes)}, got {tuple(z.shape)}."
        )
    return z


def _scaling(calib: Any, rows: int, labels: Labels) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    if calib is None:
        return ()
    z, codes = _coded(calib, "calib_logits", labels)
    return ((torch.arange(rows), z[codes >= 0], codes[codes >= 0]),)


def _possible(names: list[str], task: Task, asked: bool) -> list[str]:
    """The heads there is input for; one that was asked for by name must have it."""
    missing = {"softmax", "softmax_scaled"} if task.logits is None else set()
    missing |= set() if task.scaling else {"softmax_scaled"}
    for name in names:
        if asked and name in missing:
            need = "`logits`" if name == "softmax" else "`logits` and `calib_logits`"
            raise InputError(f"`heads` asks for {name!r}, which needs {need}.")
    return [name for name in names if name not in missing]


def _evidence(
    support: LabeledSupport, calib: Any, k: int, metric: str
) -> tuple[Evidence, list[str]]:
    """What NED is fitted on, held-out rows or the support itself, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evidence = NEDClassifier(k, metric=metric).fit_support(support).held_out(calib)
    return evidence, [str(warning.message) for warning in caught]


def _answers(
    names: list[str], task: Task, warned: list[str]
) -> tuple[dict[str, Answer], list[str]]:
    """What each head says; and notes: why one is left out, what it or (``warned``) NED warns of."""
    answers, notes = {}, []
    for name in names:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                answers[name] = HEADS[name](task)
            except InputError as error:
                notes.append(f"{TITLES[name]} left out: {error}")
                continue
        texts = [*(str(warning.message) for warning in caught), *answers[name].notes]
        texts = [*warned, *texts] if name in RECIPES else texts
        notes += [f"{TITLES[name]}: {text}" for text in dict.fromkeys(texts)]
    return answers, notes


def _line(name: str, scored: Scored, target: float) -> HeadScore:
    """A class the support does not have: its rows are wrong and infinite."""
    cut = scored.threshold(target)
    infinite = scored.loss.infinite + scored.count - scored.loss.rows
    return HeadScore(
        name=name,
        title=TITLES[name],
        accuracy=scored.accuracy,
        accuracy_se=scored.accuracy_se,
        ece=scored.ece,
        noise_floor=scored.noise_floor,
        nll=None if infinite else scored.nll,
        nll_finite=None if infinite == scored.count else scored.loss.finite_mean,
        infinite_rows=infinite,
        aurc=scored.aurc,
        coverage_at_target=cut.coverage,
        threshold=cut.threshold if cut.reachable else None,
        mean_confidence=scored.mean_confidence,
    )


def _pair(value: Any, name: str) -> tuple[Tensor, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InputError(f"`{name}` must be a pair (rows, labels), got {type(value).__name__}.")
    return as_matrix(value[0], name).detach().cpu(), value[1]
