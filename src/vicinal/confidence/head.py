"""A head to keep: NED, what held-out rows look like, and a verdict with its reason for every row.

    head = TrustHead.fit((Z, y), calib=(Z_cal, y_cal))
    head.save("trust.vic")
    out = vicinal.load("trust.vic").predict(Z_new)   # .label .confidence .credibility .verdict …

One search of the new rows feeds everything that is said about them. Confidence (which class?),
credibility (do the neighbors agree as they did for held-out rows?) and distance (is it like
anything seen?) are kept apart: no one number merges them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import InputError, as_tensor, same_kind
from vicinal.confidence.bundle import read, write
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.file import ned_of_state, ned_state
from vicinal.confidence.ned.fit import Evidence
from vicinal.confidence.ned.posterior import best_class, log_density, ned_log_probs
from vicinal.confidence.ned.recipe import fit_recipe
from vicinal.confidence.prediction import Prediction, prediction_of
from vicinal.confidence.verdicts import (
    VERDICTS,
    Standards,
    accepted_from,
    conformal_p,
    disagreement,
    near_distance,
    reason,
    share_below,
    verdict_codes,
)
from vicinal.labels import codes_of
from vicinal.neighbors.neighborhood import Neighborhood


@dataclass(frozen=True, eq=False)
class Judgement(Prediction):
    """A prediction with what it is worth; see :mod:`vicinal.confidence.verdicts`.

    ``near_percentile``: farther from its 5th neighbor than this percent of held-out rows.
    ``density_percentile``: more mass around it than around this percent of them.
    """

    credibility: Any  # (n,)
    near_percentile: Any  # (n,)
    density_percentile: Any  # (n,)
    verdict: NDArray[Any]  # (n,) of VERDICTS
    standards: Standards
    crowding: NDArray[np.float64] | None = None

    @cached_property
    def reason(self) -> list[str]:
        """One line per row: the measured thing behind the verdict."""
        return [self._reason(row) for row in range(len(self))]

    def counts(self) -> dict[str, int]:
        """How many rows of each verdict."""
        return {name: int((self.verdict == name).sum()) for name in VERDICTS}

    def _reason(self, row: int) -> str:
        return reason(
            str(self.verdict[row]),
            self.standards,
            label=str(_plain(self.label[row])),
            votes=[(str(name), n) for name, n in _votes(self.neighbor_labels[row])],
            confidence=float(self.confidence[row]),
            near_percentile=float(self.near_percentile[row]),
            density_percentile=float(self.density_percentile[row]),
            crowding=None if self.crowding is None else float(self.crowding[row]),
        )


class TrustHead:
    """NED with the standards of held-out rows; ``fit`` makes one, ``predict`` judges new rows."""

    def __init__(self, ned: NEDClassifier, standards: Standards) -> None:
        self.ned = ned
        self.standards = standards

    @classmethod
    def fit(
        cls,
        support: tuple[Any, Any],
        calib: tuple[Any, Any] | None = None,
        *,
        ned: NEDClassifier | None = None,
        target_accuracy: float = 0.95,
    ) -> TrustHead:
        """From labeled support rows and, better, held-out rows that set T and the standards.

        Without ``calib`` the support's own rows, each left out in turn, set them: too kind where
        the embedding was trained on these rows. ``ned`` (unfitted) replaces the default, which fits
        sharpness, background and class bandwidths as well.
        """
        if ned is None:
            ned = NEDClassifier(sharpness="fit", background="fit", bandwidth="class")
        ned.fit(*support)
        return cls.of(ned, calib, target_accuracy=target_accuracy)

    @classmethod
    def of(
        cls,
        ned: NEDClassifier,
        calib: tuple[Any, Any] | None = None,
        *,
        target_accuracy: float = 0.95,
    ) -> TrustHead:
        """A head around a fitted NED."""
        if ned.support_.labels.soft:
            raise InputError(
                "a head gives verdicts about labels, so the support's must be hard. "
                "Pass y.argmax(1)."
            )
        if not 0 < target_accuracy < 1:
            raise InputError(
                f"`target_accuracy` must lie between 0 and 1, got {target_accuracy!r}."
            )
        return cls(ned, measure(ned, calib, target_accuracy))

    @property
    def classes_(self) -> NDArray[Any]:
        return self.ned.classes_

    @property
    def stale_(self) -> tuple[str, ...]:
        """What edits have outdated; empty when all is fresh."""
        return self.ned.stale_

    @property
    def warnings_(self) -> list[str]:
        return self.ned.warnings_

    def predict(self, X: Any, crowding: Any = None) -> Judgement:
        """Judge new rows; ``crowding``: percentiles of the network's own N_S, if there are any."""
        ned, held = self.ned, self.standards
        neighborhood = ned.neighborhood_of(X)
        told = prediction_of(ned, neighborhood, X)
        d, near = neighborhood.distances.double(), ned.support_.near(neighborhood.indices)
        best = torch.from_numpy(np.searchsorted(ned.classes_, _numpy(told.label)))
        credible = conformal_p(held.disagreements, disagreement(near, best))
        near_share = share_below(held.near_distances, near_distance(d))
        dense_share = share_below(held.log_densities, log_density(d, near, ned.parameters_))
        crowd = None if crowding is None else as_tensor(crowding, "crowding").double()
        confidence = torch.from_numpy(_numpy(told.confidence)).double()
        codes = verdict_codes(held, near_share, dense_share, credible, confidence, crowd)
        return Judgement(
            **{field.name: getattr(told, field.name) for field in fields(told)},
            credibility=same_kind(credible, X),
            near_percentile=same_kind(near_share, X),
            density_percentile=same_kind(dense_share, X),
            verdict=np.array(VERDICTS)[codes.numpy()],
            standards=held,
            crowding=None if crowd is None else crowd.numpy(),
        )

    def predict_proba(self, X: Any) -> Any:
        """NED's probabilities alone."""
        return self.ned.predict_proba(X)

    def add(self, X: Any, y: Any) -> TrustHead:
        """Add labeled rows, a new class perhaps; what that outdates is in ``stale_``."""
        return self._edited(self.ned.add(X, y))

    def remove(self, ids: Any) -> TrustHead:
        return self._edited(self.ned.remove(ids))

    def relabel(self, ids: Any, y: Any) -> TrustHead:
        return self._edited(self.ned.relabel(ids, y))

    def recalibrate(self, X: Any, y: Any) -> TrustHead:
        """Set temperature and standards from held-out rows; nothing is stale after."""
        self.standards = measure(self.ned, (X, y), self.standards.target_accuracy)
        return self

    def save(self, path: str | Path) -> Path:
        """Write a ``.vic`` file: safetensors and JSON, never pickle."""
        tensors, facts = ned_state(self.ned)
        held = {field.name: getattr(self.standards, field.name) for field in fields(Standards)}
        arrays = {f"held_{k}": v for k, v in held.items() if isinstance(v, Tensor)}
        threshold = torch.tensor([held.pop("threshold")], dtype=torch.float64)
        facts["standards"] = {k: v for k, v in held.items() if not isinstance(v, Tensor)}
        return write(path, "head", {**tensors, **arrays, "held_threshold": threshold}, facts)

    def _edited(self, _: NEDClassifier) -> TrustHead:
        if self.standards.source == "leave-one-out":
            self.standards = measure(self.ned, None, self.standards.target_accuracy)
        return self


def load(path: str | Path) -> TrustHead | NEDClassifier:
    """Read a ``.vic`` file: what ``TrustHead.save`` or ``NEDClassifier.save`` wrote."""
    kind, tensors, facts = read(path)
    if kind not in ("head", "ned"):
        raise InputError(f"cannot read {path}: it holds a {kind!r}, not a head. Update vicinal.")
    ned = ned_of_state(tensors, facts)
    if kind == "ned":
        return ned
    held: dict[str, Any] = {k[5:]: v for k, v in tensors.items() if k.startswith("held_")}
    held["threshold"] = float(held["threshold"])
    return TrustHead(ned, Standards(**held, **facts["standards"]))


def measure(ned: NEDClassifier, calib: tuple[Any, Any] | None, target_accuracy: float) -> Standards:
    """The standards of held-out rows (also fits T on them), or of support rows left out in turn."""
    if calib is None:
        neighborhood, codes = ned.loo_neighborhood(), ned.support_.labels.codes
        evidence = ned.evidence_of(neighborhood, codes, leave_one_out=True)
    else:
        if ned.recipe_.anything:
            ned.calibrate(*calib)
        neighborhood = ned.neighborhood_of(calib[0])
        codes = codes_of(calib[1], len(neighborhood.indices), ned.support_.labels)
        known = (codes >= 0).nonzero()[:, 0]
        neighborhood, codes = (
            Neighborhood(neighborhood.distances[known], neighborhood.indices[known]),
            codes[known],
        )
        evidence = ned.evidence_of(neighborhood, codes, leave_one_out=False)
    log_probs = _out_of_fold(ned, evidence)
    near = evidence.labels
    best = best_class(log_probs, evidence.distances, near)
    confidence = log_probs.gather(1, best[:, None])[:, 0].exp().numpy()
    dense = log_density(evidence.distances, near, ned.parameters_)
    return Standards(
        near_distances=near_distance(evidence.distances).sort().values,
        log_densities=dense.sort().values,
        disagreements=disagreement(near, codes).sort().values,
        threshold=accepted_from(confidence, (best == codes).numpy(), target_accuracy),
        target_accuracy=target_accuracy,
        source="leave-one-out" if calib is None else "held-out",
    )


def _out_of_fold(ned: NEDClassifier, evidence: Evidence) -> Tensor:
    """Log-probabilities of each half of the rows with parameters fitted on the other half.

    A threshold read off the rows that also set the parameters would promise too much.
    """
    count, recipe = len(ned.classes_), ned.recipe_
    if not recipe.anything or len(evidence.distances) < 4:
        return ned_log_probs(evidence.distances, evidence.labels, count, ned.parameters_)
    half = torch.arange(len(evidence.distances)) % 2 == 0
    out = torch.empty(len(half), count, dtype=torch.float64)
    for part in (half, ~half):
        fitted = fit_recipe(recipe, evidence.rows(~part), count, ned.n_features_in_).parameters
        own = replace(
            fitted, prior=ned.parameters_.prior, log_prior_shift=ned.parameters_.log_prior_shift
        )
        rows = evidence.rows(part)
        out[part] = ned_log_probs(rows.distances, rows.labels, count, own)
    return out


def _votes(labels: Any) -> list[tuple[Any, int]]:
    return Counter(_numpy(labels).tolist()).most_common()


def _numpy(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
