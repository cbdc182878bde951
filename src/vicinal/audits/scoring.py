"""What a head's answer is worth on rows whose labels are known: every number, measured once."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.heads import Answer, Task, ned
from vicinal.audits.sections import Head, ReliabilityBin, RiskCurve, Sweep, Threshold
from vicinal.confidence.verdicts import contested_below
from vicinal.evaluation import (
    AcceptanceThreshold,
    LogLoss,
    ReliabilityBins,
    area_under_risk_coverage,
    noise_floor,
    reachable_target,
    reliability,
)
from vicinal.evaluation.intervals import clopper_pearson_lower
from vicinal.evaluation.selection import accepted_from_the_top
from vicinal.evaluation.threshold import LOWER, TARGETS, ChosenTarget, Curve, threshold_on
from vicinal.labels import UNKNOWN

MIN_ECE_ROWS = 100  # below, even a perfect head reads an ECE of several points
CURVE_POINTS = 400
EVEN_BINS = 10
SWEPT = 4_000  # rows that a temperature is fitted on at each k: one number needs no more


@dataclass(frozen=True, eq=False)
class Scored:
    """An answer against codes; nothing is computed before it is read.

    A row of a class the support lacks (``UNKNOWN``) is wrong, and has no log loss; a row without
    label is not scored. ``delta``: how often the promise of a threshold may break.
    """

    answer: Answer
    codes: NDArray[np.int64]
    delta: float = 0.05

    @cached_property
    def rows(self) -> NDArray[np.bool_]:
        return self.codes >= UNKNOWN

    @property
    def count(self) -> int:
        return len(self.right)

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        return self.answer.confidence[self.rows]

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        return (self.answer.predicted.numpy() == self.codes)[self.rows]

    @cached_property
    def loss(self) -> LogLoss:
        return LogLoss.of(self.row_losses)

    @cached_property
    def row_losses(self) -> NDArray[np.float64]:
        """-log p of the true class of each row that has a known one."""
        known = np.flatnonzero(self.codes >= 0)
        return -self.answer.log_probs[known, self.codes[known]].double().numpy()

    @property
    def nll_se(self) -> float | None:
        if self.nll is None or len(self.row_losses) < 2:
            return None
        return float(self.row_losses.std(ddof=1)) / math.sqrt(len(self.row_losses))

    @property
    def nll(self) -> float | None:
        """The mean log loss; None where a true class has probability 0, or no row a known one."""
        return float(self.loss) if math.isfinite(self.loss) else None

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def accuracy_se(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.count)

    @property
    def mean_confidence(self) -> float:
        return math.fsum(self.confidence.tolist()) / self.count

    @cached_property
    def ranked(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Confidences ascending, and whether each is right: metrics sort, and find it done."""
        order = np.argsort(self.confidence)
        return self.confidence[order], self.right[order]

    @cached_property
    def bins(self) -> ReliabilityBins:
        return reliability(*self.ranked)

    @property
    def ece(self) -> float:
        return self.bins.ece

    @cached_property
    def noise_floor(self) -> float:
        return noise_floor(self.ranked[0])

    @cached_property
    def aurc(self) -> float:
        return area_under_risk_coverage(*self.ranked)

    @cached_property
    def curve(self) -> Curve:
        return accepted_from_the_top(*self.ranked)

    def threshold(self, target: float) -> AcceptanceThreshold:
        """The confidence that keeps a target: verdicts, curve and saved head use this one."""
        return threshold_on(self.curve, target, self.delta)


def head_record(name: str, scored: Scored, target: float, force_ece: bool) -> Head:
    """The line of one head in an audit."""
    enough = scored.count >= MIN_ECE_ROWS or force_ece
    return Head(
        name=name,
        title=scored.answer.title,
        accuracy=scored.accuracy,
        accuracy_se=scored.accuracy_se,
        ece=scored.ece if enough else None,
        noise_floor=scored.noise_floor,
        nll=scored.nll,
        coverage_at_target=scored.threshold(target).coverage,
        overconfidence=scored.mean_confidence - scored.accuracy,
        bins=listed_bins(scored.bins),
        nll_se=scored.nll_se,
        infinite_rows=scored.loss.infinite,
        note="; ".join(scored.answer.notes),
        # rounded: shares of votes that are equal differ in the last bit by their place in a vector
        even_bins=listed_bins(
            reliability(scored.ranked[0].round(9), scored.ranked[1], bins=EVEN_BINS, scheme="mass")
        ),
    )


def sweep_over_k(task: Task, whole: Scored) -> Sweep:
    """Eq. 3's NED refitted, out of fold, at each number of neighbors; ``whole``: at all of them."""
    full = task.neighborhood.k
    ks = sorted({k for k in (1, 2, 5, 10, 20, 50, 100, 200) if k < full} | {full})
    found = [whole if k == full else _at(k, task, whole) for k in ks]
    enough, rows = whole.count >= MIN_ECE_ROWS, max(len(fold.evidence) for fold in task.folds)
    on = f" on {SWEPT:,} of the {rows:,} rows of a fold" if rows > SWEPT else ""
    return Sweep(
        k=tuple(ks),
        accuracy=tuple(scored.accuracy for scored in found),
        ece=tuple(scored.ece if enough else None for scored in found),
        nll=tuple(scored.nll for scored in found),
        chosen=full,
        how=f"at each smaller k the temperature is fitted anew{on}",
    )


def _at(k: int, task: Task, whole: Scored) -> Scored:
    fewer = task.per_fold(lambda fold: fold.evidence.some(SWEPT).first(k))
    folds = (
        fold._replace(evidence=evidence, neighborhood=fold.neighborhood.first(k))
        for fold, evidence in zip(task.folds, fewer, strict=True)
    )
    task = dataclasses.replace(task, folds=tuple(folds), fits={})
    return dataclasses.replace(whole, answer=ned(task, "ned", ""))


def risk_coverage_of(name: str, scored: Scored, promise: ChosenTarget) -> RiskCurve:
    """Accuracy against coverage at up to 400 thresholds, and the one that keeps the target."""
    (values, accepted, errors), n = scored.curve, scored.count
    cuts = {target: scored.threshold(target) for target in sorted({promise.target, *TARGETS})}
    if not any(cut.reachable for cut in cuts.values()):  # then what most rows can have, and a few
        more = {reachable_target(*scored.ranked, scored.delta).target, *LOWER} - cuts.keys()
        found = [t for t in sorted(more) if scored.threshold(t).reachable]
        some = sorted({*cuts, *found[:1], *found[-1:]})
        cuts = {target: scored.threshold(target) for target in some}
    spread = np.linspace(0, len(values) - 1, CURVE_POINTS).round().astype(int)
    named = np.flatnonzero(np.isin(values, [cut.threshold for cut in cuts.values()]))
    keep = np.union1d(spread, named)  # what a sentence names is a point of the curve
    accepted, errors = accepted[keep], errors[keep]
    low = clopper_pearson_lower(accepted - errors, accepted, scored.delta)
    return RiskCurve(
        head=name,
        threshold=tuple(values[keep].tolist()),
        coverage=tuple((accepted / n).tolist()),
        accuracy=tuple((1 - errors / accepted).tolist()),
        lower_bound=tuple(low.tolist()),
        chosen=_threshold(scored, cuts[promise.target], promise.reason),
        targets=tuple(_threshold(scored, cut) for cut in cuts.values()),
    )


def _threshold(scored: Scored, cut: AcceptanceThreshold, why: str = "") -> Threshold:
    value = float(cut.threshold) if cut.reachable else None
    sure = scored.answer.confidence
    return Threshold(
        target=cut.target,
        value=value,
        coverage=float(cut.coverage),
        accuracy=cut.accuracy,
        lower_bound=cut.lower_bound,
        rows=scored.count,
        delta=cut.delta,
        accepted=cut.accepted,
        errors=cut.accepted - round((cut.accuracy or 0.0) * cut.accepted),
        unscored=0 if value is None else int((sure >= value).sum()) - cut.accepted,
        level=contested_below(cut.threshold, cut.target),
        why=why,
    )


def listed_bins(table: ReliabilityBins) -> tuple[ReliabilityBin, ...]:
    """Accuracy by score, with 95 % intervals; an empty bin has no accuracy."""
    columns = (table.confidence, table.accuracy, table.low, table.high)
    values = zip(*(column.tolist() for column in columns), strict=True)
    edges = zip(table.lower.tolist(), table.upper.tolist(), table.count.tolist(), strict=True)
    return tuple(
        ReliabilityBin(*edge, *(line if edge[2] else (None,) * len(columns)))
        for edge, line in zip(edges, values, strict=True)
        if edge[2]
        or table.scheme == "width"  # tied confidences leave no rows for a bin of equally many
    )
