"""A head to keep: NED, alone or with a linear part, and a verdict with its reason for every row.

    head = TrustHead.fit((Z, y), calib=(Z_cal, y_cal))
    head.save("trust.vic")
    out = vicinal.load("trust.vic").predict(Z_new)   # .label .confidence .credibility .verdict …

One search of the new rows feeds everything that is said about them. Confidence (which class?),
credibility (do the neighbors agree as they did for held-out rows?) and distance (is it like
anything seen?) are kept apart: no one number merges them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_pair,
    check_share,
    plural,
    same_kind,
)
from vicinal.confidence.bundle import Kept
from vicinal.confidence.familiarity import Familiarity, Surroundings, held_out_scores
from vicinal.confidence.made_from import MadeFrom
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.fit import fit_recipe
from vicinal.confidence.ned.posterior import best_class, ned_log_probs
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.prediction import SHOWN_ROWS, Prediction, prediction_of
from vicinal.confidence.support import Evidence
from vicinal.confidence.verdicts import VERDICTS, Standards, judge, reasons, standards_of
from vicinal.evaluation import reachable_target, threshold_for_accuracy
from vicinal.labels import at_codes, folds_of
from vicinal.neighbors.neighborhood import Neighborhood


@dataclass(frozen=True, eq=False, repr=False)
class Judgement(Prediction):
    """A prediction with what it is worth; see :mod:`vicinal.confidence.verdicts`.

    ``near_percentile``: farther from its 5th neighbor than this percent of held-out rows.
    ``density_percentile``: more mass around it than around this percent of them.
    ``familiarity``: the share of held-out rows at least as foreign, a conformal p-value; None for
    a head of version 0.1, which went by ``near_percentile`` alone.
    """

    credibility: Any  # (n,)
    near_percentile: Any  # (n,)
    density_percentile: Any  # (n,)
    verdict: NDArray[Any]  # (n,) of VERDICTS
    standards: Standards
    _reasons: Callable[[], list[str]] = field(repr=False)
    crowding: NDArray[np.float64] | None = None
    familiarity: Any = None  # (n,)
    linear_share: Any = None  # (n,): of the answer's lead, where a part of the head is linear
    _name_of: Callable[[Any], str] = field(default=str, repr=False)  # what a class is called

    @cached_property
    def reason(self) -> list[str]:
        """One line per row: the measured thing behind the verdict."""
        return self._reasons()

    def __repr__(self) -> str:
        """The first rows as a table; all of them are in the arrays."""
        lines = [f"{'label':<16}{'confidence':>11}{'credibility':>13}  {'verdict':<12}reason"]
        for row, label in enumerate(self.label[:SHOWN_ROWS].tolist()):
            sure, credible = float(self.confidence[row]), float(self.credibility[row])
            lines.append(
                f"{self._name_of(label)[:15]:<16}{sure:>11.3f}{credible:>13.3f}  "
                f"{self.verdict[row]:<12}{self.reason[row]}"
            )
        verdicts = " · ".join(f"{name} {n:,}" for name, n in self.counts().items())
        return "\n".join([*lines, f"{plural(len(self), 'row')}: {verdicts}"])

    def counts(self) -> dict[str, int]:
        """How many rows of each verdict."""
        return {name: int((self.verdict == name).sum()) for name in VERDICTS}


class TrustHead(Kept):
    """NED with the standards of held-out rows; ``fit`` makes one, ``predict`` judges new rows.

    ``model`` is a NED, or a NED and a linear part together; ``ned`` is the one whose neighbors are
    shown.
    """

    def __init__(
        self,
        model: NEDClassifier | NEDLinear,
        standards: Standards,
        made_from: MadeFrom | None = None,
    ) -> None:
        self.model = model
        self.made_from = made_from or MadeFrom()
        self.ned = model.ned_ if isinstance(model, NEDLinear) else model
        self.standards = standards
        self._seen: tuple[Any, Any, Surroundings] | None = None
        self._linear_stale: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        support: tuple[Any, Any],
        calib: tuple[Any, Any] | None = None,
        *,
        ned: NEDClassifier | NEDLinear | None = None,
        target_accuracy: float | None = None,
        unfamiliar: float = 0.05,
    ) -> TrustHead:
        """From labeled support rows and, better, held-out rows that set T and the standards.

        Parameters
        ----------
        support : ``(Z, y)``, the labeled rows that vote.
        calib : ``(Z, y)`` held out. Without, the support's own rows, each left out in turn, set the
            standards: too kind where the embedding was trained on these rows.
        ned : an unfitted NED in place of the default, which fits sharpness, background and class
            bandwidths as well; or an unfitted :class:`NEDLinear`.
        target_accuracy : what the rows above the threshold shall keep, with certainty 0.95; None:
            the highest of 0.90, 0.95, 0.97 and 0.99 that half of the held-out rows can meet.
        unfamiliar : the share of ordinary rows that may be called unfamiliar.
        """
        if ned is None:
            ned = NEDClassifier(sharpness="fit", background="fit", bandwidth="class")
        ned.fit(*check_pair(support, "support"))
        return cls.of(ned, calib, target_accuracy=target_accuracy, unfamiliar=unfamiliar)

    @classmethod
    def of(
        cls,
        ned: NEDClassifier | NEDLinear,
        calib: tuple[Any, Any] | None = None,
        *,
        target_accuracy: float | None = None,
        unfamiliar: float = 0.05,
    ) -> TrustHead:
        """A head around a fitted NED, or a fitted NED with its linear part."""
        near = ned.ned_ if isinstance(ned, NEDLinear) else ned
        if near.support_.labels.soft:
            raise InputError(
                "a head gives verdicts about labels, so the support's must be hard. "
                "Pass y.argmax(1)."
            )
        if target_accuracy is not None:
            check_share(target_accuracy, "target_accuracy")
        check_share(unfamiliar, "unfamiliar")
        held = None if calib is None else check_pair(calib, "calib")
        return cls(ned, measure(ned, held, target_accuracy, unfamiliar))

    def __repr__(self) -> str:
        held, ned, all_rows = self.standards, self.ned, self.made_from.sample_of
        whole = "" if all_rows is None else f" of {all_rows:,}"
        cut = f"accepts confidence >= {held.threshold:.3f}" if held.reachable else "accepts nothing"
        return (
            f"TrustHead({type(self.model).__name__}, {ned.support_size_:,}{whole} rows x "
            f"{ned.n_features_in_}, {len(self.classes_)} classes; {cut} for accuracy "
            f"{held.target_accuracy:g}, from {len(held.disagreements):,} {held.source} rows)"
        )

    @property
    def classes_(self) -> NDArray[Any]:
        return self.ned.classes_

    @property
    def stale_(self) -> tuple[str, ...]:
        """What edits have outdated; empty when all is fresh."""
        return (*self.ned.stale_, *self._linear_stale)

    @property
    def warnings_(self) -> list[str]:
        return self.ned.warnings_

    def predict(self, X: Any, crowding: Any = None) -> Judgement:
        """Judge new rows; ``crowding``: percentiles of the network's own N_S, if there are any."""
        return self.judgement_of(self.ned.neighborhood_of(X), X, crowding)

    def judgement_of(self, neighborhood: Neighborhood, X: Any, crowding: Any = None) -> Judgement:
        """The same of rows whose neighbors were found before."""
        share = None
        prediction: Prediction
        if isinstance(self.model, NEDLinear):
            codes, both = self.model.prediction_of(neighborhood, X)
            share, prediction = as_tensor(both.linear_share, "linear_share"), both
        else:
            codes, prediction = prediction_of(self.ned, neighborhood, X)
        crowd = None if crowding is None else as_tensor(crowding, "crowding").double()
        sure = as_tensor(prediction.confidence, "confidence").double()
        scores = None
        if self.standards.familiarity is not None:
            rows = self.ned.support_.space(as_matrix(X, "X").detach().cpu())
            rows = rows.to(self.ned.support_.dtype)
            scores = self.surroundings.scores(rows, neighborhood, self.ned.parameters_)
        found = judge(
            neighborhood, codes, sure, self.ned.parameters_, self.standards, crowd, scores
        )
        names = [self.made_from.name_of(label) for label in self.classes_.tolist()]
        weights = as_tensor(prediction.weights, "weights")
        said = (found, neighborhood, codes, sure, self.standards, names, weights, share)
        return Judgement(
            **{item.name: getattr(prediction, item.name) for item in fields(prediction)},
            credibility=same_kind(found.credibility, X),
            near_percentile=same_kind(found.near_percentile, X),
            density_percentile=same_kind(found.density_percentile, X),
            verdict=np.array(VERDICTS)[found.codes.numpy()],
            standards=self.standards,
            _reasons=partial(reasons, *said),
            crowding=None if crowd is None else crowd.numpy(),
            familiarity=None if found.familiarity is None else same_kind(found.familiarity, X),
            _name_of=self.made_from.name_of,
        )

    @property
    def surroundings(self) -> Surroundings:
        """The parts of familiarity, fitted on the support as it is now."""
        support = self.ned.support_
        search, codes = support.search, support.labels.codes
        if self._seen is None or self._seen[0] is not search or self._seen[1] is not codes:
            self._seen = (search, codes, Surroundings.fit(support.labeled_rows, codes))
        return self._seen[2]

    def predict_proba(self, X: Any) -> Any:
        """The model's probabilities alone."""
        return self.model.predict_proba(X)

    def add(self, X: Any, y: Any) -> TrustHead:
        """Add labeled rows, a new class perhaps; what that outdates is in ``stale_``."""
        self._check_known(y)
        return self._edited(self.ned.add(X, y))

    def remove(self, ids: Any) -> TrustHead:
        return self._edited(self.ned.remove(ids))

    def relabel(self, ids: Any, y: Any) -> TrustHead:
        self._check_known(y)
        return self._edited(self.ned.relabel(ids, y))

    def recalibrate(self, X: Any, y: Any) -> TrustHead:
        """Set temperature and standards from held-out rows; nothing is stale after."""
        self.standards = measure(self.model, (X, y), self.standards.target_accuracy, self._rate)
        self._linear_stale = ()
        return self

    def _check_known(self, y: Any) -> None:
        """A linear part has a column for each class it was fitted to, and no other."""
        if isinstance(self.model, NEDLinear):
            new = set(np.unique(np.asarray(y)).tolist()) - set(self.classes_.tolist())
            if new:
                raise InputError(
                    f"`y` holds {sorted(new, key=str)[0]!r}, a class the linear part of this head "
                    "does not know. Fit a new head, or make one of the neighbors alone: "
                    "TrustHead.of(head.ned)."
                )

    def _edited(self, _: NEDClassifier) -> TrustHead:
        """The neighbors follow an edit; a linear part stays as it was fitted, and is stale."""
        held, blended = self.standards, isinstance(self.model, NEDLinear)
        if isinstance(self.model, NEDLinear):
            self.model.follow()
            self._linear_stale = ("linear_", "blend_", "threshold")
        if held.source == "leave-one-out" and not blended:
            self.standards = measure(self.ned, None, held.target_accuracy, self._rate)
        elif held.source == "leave-one-out":
            evidence, parameters = self.ned.held_out(None), self.ned.parameters_
            familiar = Familiarity.of(held_out_scores(self.ned, evidence, self._rate), self._rate)
            kept = held.threshold, held.target_accuracy
            self.standards = standards_of(evidence, parameters, *kept, familiar)
        return self

    @property
    def _rate(self) -> float:
        familiar = self.standards.familiarity
        return Familiarity.rate if familiar is None else familiar.rate


def measure(
    model: NEDClassifier | NEDLinear,
    calib: tuple[Any, Any] | None,
    target_accuracy: float | None,
    unfamiliar: float,
) -> Standards:
    """The standards of held-out rows (also fits T on them), or of support rows left out in turn."""
    ned = model.ned_ if isinstance(model, NEDLinear) else model
    evidence = ned.held_out(calib)
    if calib is not None and ned.recipe_.names:
        ned.fit_on(evidence)
    log_probs = _out_of_fold(ned, evidence)
    if isinstance(model, NEDLinear):
        log_probs = model.out_of_fold(log_probs, evidence.targets, calib)
    best = best_class(log_probs, evidence.neighborhood)
    confidence = at_codes(log_probs, best).exp().clamp_max(1).numpy()
    right = (best == evidence.targets).numpy()
    target = target_accuracy or reachable_target(confidence, right).target
    threshold = threshold_for_accuracy(confidence, right, target).threshold
    familiar = Familiarity.of(held_out_scores(ned, evidence, unfamiliar), unfamiliar)
    return standards_of(evidence, ned.parameters_, threshold, target, familiar)


def _out_of_fold(ned: NEDClassifier, evidence: Evidence) -> Tensor:
    """Log-probabilities of each half of the rows with parameters fitted on the other half.

    A threshold read off the rows that also set the parameters would promise too much.
    """
    count, recipe, now = len(ned.classes_), ned.recipe_, ned.parameters_
    if not recipe.names or len(evidence) < 4:
        return ned_log_probs(evidence.neighborhood, count, now)
    half = folds_of(evidence.targets, 2) == 0
    out = torch.empty(len(half), count, dtype=torch.float64)
    for part in (half, ~half):
        fitted = fit_recipe(recipe, evidence.rows(~part), count, ned.n_features_in_).parameters
        own = replace(fitted, prior=now.prior, log_prior_shift=now.log_prior_shift)
        out[part] = ned_log_probs(evidence.rows(part).neighborhood, count, own)
    return out
