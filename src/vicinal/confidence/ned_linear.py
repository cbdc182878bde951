"""NED and a linear head as one classifier: the blend of :mod:`vicinal.confidence.blend`."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from vicinal.checks import InputError, as_tensor, check_choice, number_or_fit, same_kind
from vicinal.confidence.blend import Blend, blended_log_probs, fit_blend, linear_share
from vicinal.confidence.bundle import Kept
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.linear import LinearClassifier
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.effects import LabelEffects
from vicinal.confidence.ned.posterior import best_class
from vicinal.confidence.prediction import Prediction, prediction_of
from vicinal.labels import at_codes, codes_of, folds_of, log_class_shares, named
from vicinal.neighbors.neighborhood import Neighborhood


def enough_rows(classes: int) -> int:
    """Rows that weigh the two parts: four numbers need no more."""
    return max(3_000, 20 * classes)


@dataclass(frozen=True, eq=False, repr=False)
class BlendedPrediction(Prediction):
    """A prediction of both parts; neighbors, weights and distances are those of NED.

    ``linear_share``: how much of the answer's lead over its runner-up the linear part carries.
    """

    linear_share: Any  # (n,)


@dataclass(frozen=True, eq=False)
class BlendedEffects(LabelEffects):
    """Effects of edits on the blend; ``exact_for`` says what would react exactly so."""

    exact_for: str = "the neighbors; the linear part is held as it was fitted"


class NEDLinear(Kept, ClassifierMixin, Estimator):
    """NED and a linear head as one: the neighbors are shown, and what the linear part carries.

    Parameters
    ----------
    ned : an unfitted :class:`NEDClassifier`, of any space; None fits sharpness and background too.
    linear : an unfitted :class:`LinearClassifier`; None is its default.
    weights : ``"fit"``, or the numbers (a, b), or (a, b, g).
    background : ``"fit"``, or the number ε.

    After ``fit``: ``ned_``, ``linear_``, the fitted parts; ``blend_``, their weights and the
    background; ``classes_``; ``oof_log_proba_`` (n, c), of the support's rows.

    >>> X = np.array([[0.0], [0.2], [0.4], [1.0], [1.2], [1.4]])
    >>> head = NEDLinear(NEDClassifier(k=3)).fit(X, ["a", "a", "a", "b", "b", "b"])
    >>> head.predict([[0.1], [1.1]])
    array(['a', 'b'], dtype='<U1')
    """

    def __init__(
        self,
        ned: NEDClassifier | None = None,
        linear: LinearClassifier | None = None,
        weights: Any = "fit",
        background: float | str = "fit",
    ) -> None:
        self.ned = ned
        self.linear = linear
        self.weights = weights
        self.background = background

    def fit(self, X: Any, y: Any) -> Self:
        """Fit both parts to rows with labels (n,), and their weights out of fold."""
        both = NEDClassifier(sharpness="fit", background="fit")
        ned = both if self.ned is None else clone(self.ned)
        linear = LinearClassifier() if self.linear is None else clone(self.linear)
        linear.fit(X, y)
        if hasattr(linear, "feature_names_in_"):
            self.feature_names_in_ = linear.feature_names_in_
        return self.fit_parts(ned.fit(X, y), linear)

    def fit_parts(self, ned: NEDClassifier, linear: LinearClassifier) -> Self:
        """The same for parts that were fitted to the same rows; only their weights are sought."""
        weights, background = self._given()
        labels = ned.support_.labels
        if not isinstance(ned.prior, str) or ned.prior != "support":
            raise InputError(
                "`ned` must have prior='support': the linear part knows the support's class shares "
                "alone, and a product of the two would count a change of prior for one of them."
            )
        if len(linear.oof_log_proba_) != len(labels.codes):
            raise InputError(
                f"the parts were fitted to different rows: NED to {len(labels.codes)}, the linear "
                f"part to {len(linear.oof_log_proba_)}. Fit both to the same."
            )
        self.ned_, self.linear_, self.classes_ = ned, linear, labels.classes
        self.n_features_in_ = linear.n_features_in_
        self.log_prior_ = log_class_shares(labels.codes, len(labels.classes))
        if weights is not None and background is not None:
            a, b, odds = (*weights, 0.0)[:3]
            self.blend_ = Blend(a, b, background, odds)
            return self
        n = len(labels.codes)
        rows = torch.linspace(0, n - 1, min(n, enough_rows(len(labels.classes)))).long()
        log_ned = ned.log_probs_of(ned.loo_neighborhood().rows(rows))
        log_linear = torch.from_numpy(linear.oof_log_proba_)[rows]
        codes = labels.codes[rows]
        self.blend_ = fit_blend(log_ned, log_linear, codes, weights=weights, background=background)
        return self

    def neighborhood_of(self, X: Any, k: int | None = None) -> Neighborhood:
        """NED's search: the k nearest support rows, labeled; indices are positions."""
        check_is_fitted(self)
        return self.ned_.neighborhood_of(X, k)

    def log_probs_of(self, neighborhood: Neighborhood, X: Any) -> Float[Tensor, "n c"]:
        """Log-probabilities in float64 of rows whose neighbors were found before."""
        log_ned, log_linear = self._parts(neighborhood, X)
        return blended_log_probs(log_ned, log_linear, self.log_prior_, self.blend_)

    def predict_log_proba(self, X: Any) -> Any:
        """Log-probabilities (n, c) in float64."""
        return same_kind(self.log_probs_of(self.neighborhood_of(X), X), X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (n, c) in the order of ``classes_``."""
        return same_kind(self.log_probs_of(self.neighborhood_of(X), X).exp(), X)

    def predict(self, X: Any) -> Any:
        """The most probable class; ties go to the smaller mean distance, then by label order."""
        neighborhood = self.neighborhood_of(X)
        best = best_class(self.log_probs_of(neighborhood, X), neighborhood)
        return named(self.classes_, best, X)

    def judge(self, X: Any) -> BlendedPrediction:
        """Everything one search and the linear part say."""
        return self.prediction_of(self.neighborhood_of(X), X)[1]

    def prediction_of(
        self, neighborhood: Neighborhood, X: Any
    ) -> tuple[Int[Tensor, " n"], BlendedPrediction]:
        """The same of rows whose neighbors were found before, with the codes of the answers."""
        log_ned, log_linear = self._parts(neighborhood, X)
        log_p = blended_log_probs(log_ned, log_linear, self.log_prior_, self.blend_)
        best = best_class(log_p, neighborhood)
        near = prediction_of(self.ned_, neighborhood, X)[1]
        near = replace(
            near,
            label=named(self.classes_, best, X),
            confidence=same_kind(at_codes(log_p, best).exp(), X),
            probabilities=same_kind(log_p.exp(), X),
        )
        share = linear_share(log_ned, log_linear, self.log_prior_, self.blend_, best)
        kept = {item.name: getattr(near, item.name) for item in fields(near)}
        return best, BlendedPrediction(**kept, linear_share=same_kind(share, X))

    def out_of_fold(
        self,
        log_ned: Float[Tensor, "n c"],
        targets: Int[Tensor, " n"],
        calib: tuple[Any, Any] | None,
    ) -> Float[Tensor, "n c"]:
        """What each half of held-out rows gets by the blend of the other half; ``blend_`` is all's.

        Parameters
        ----------
        log_ned : what the neighbors say of the rows.
        targets : their codes.
        calib : the rows and labels themselves; None: the support's own rows, left out in turn.
        """
        (weights, background), log_prior = self._given(), self.log_prior_
        if calib is None:
            log_linear = torch.from_numpy(self.linear_.oof_log_proba_)
        else:
            known = codes_of(calib[1], len(calib[0]), self.ned_.support_.labels) >= 0
            log_linear = as_tensor(self.linear_.predict_log_proba(calib[0]), "X").cpu()[known]

        def fit(rows: Tensor) -> Blend:
            parts = log_ned[rows], log_linear[rows], targets[rows]
            return fit_blend(*parts, weights=weights, background=background)

        given = weights is not None and background is not None
        if not given:
            self.blend_ = fit(torch.arange(len(targets)))
        if given or len(targets) < 4:
            return blended_log_probs(log_ned, log_linear, log_prior, self.blend_)
        half, found = folds_of(targets, 2) == 0, torch.zeros_like(log_ned)
        for part in (half, ~half):
            rows = log_ned[part], log_linear[part]
            found[part] = blended_log_probs(*rows, log_prior, fit(~part))
        return found

    def follow(self) -> None:
        """Take over what an edit of the neighbors' support changed: class shares, lost classes."""
        labels = self.ned_.support_.labels
        keep = np.isin(self.linear_.classes_, labels.classes)
        if not keep.all():
            self.linear_ = copy(self.linear_)
            for name in ("classes_", "coef_", "intercept_"):
                setattr(self.linear_, name, getattr(self.linear_, name)[keep])
        self.classes_ = labels.classes
        self.log_prior_ = log_class_shares(labels.codes, len(labels.classes))

    def label_effects(self, X: Any, ids: Any = None, new_labels: Any = None) -> BlendedEffects:
        """What would be said of queries with a support row relabeled, or (None) removed.

        Exact for the neighbors: their part answers as after ``ned_.relabel(..., refit=False)``. The
        linear part is held as it was fitted; a refit would move it by about one row's share.
        """
        log_before = as_tensor(self.predict_log_proba(X), "X")
        near = self.ned_.label_effects(X, ids, new_labels, probabilities=True)
        query, count = torch.from_numpy(near.query), log_before.shape[1]
        after = near.probabilities  # None: no query has such a neighbor; an exact zero stays one
        log_ned = torch.zeros(0, count) if after is None else torch.from_numpy(after).log()
        log_linear = as_tensor(self.linear_.predict_log_proba(X), "X").cpu()[query]
        log_after = blended_log_probs(log_ned.double(), log_linear, self.log_prior_, self.blend_)
        log_before = log_before.cpu()[query]
        was, now = log_before.argmax(1), log_after.argmax(1)
        changed = near.edit[(was != now).numpy()]
        kept = {name: getattr(near, name) for name in ("ids", "touched", "edit", "query")}
        return BlendedEffects(
            **kept,
            changed=np.bincount(changed, minlength=len(near.ids)),
            before=self.classes_[was.numpy()],
            after=self.classes_[now.numpy()],
            p_before=at_codes(log_before, was).exp().numpy(),
            p_after=at_codes(log_after, was).exp().numpy(),
            confidence=at_codes(log_after, now).exp().numpy(),
            probabilities=log_after.exp().numpy(),
        )

    def module(self) -> NEDLinearHead:
        """A differentiable ``nn.Module``: embeddings to class log-probabilities; a snapshot."""
        check_is_fitted(self)
        return NEDLinearHead(self)

    @property
    def oof_log_proba_(self) -> NDArray[np.float64]:
        """What the blend says of the support's rows from parts that have not seen them."""
        check_is_fitted(self)
        log_ned = self.ned_.log_probs_of(self.ned_.loo_neighborhood())
        log_linear = torch.from_numpy(self.linear_.oof_log_proba_)
        codes = self.ned_.support_.labels.codes
        log_prior = log_class_shares(codes, len(self.classes_), leave_one_out=True)
        return blended_log_probs(log_ned, log_linear, log_prior, self.blend_).numpy()

    def _parts(self, neighborhood: Neighborhood, X: Any) -> tuple[Tensor, Tensor]:
        log_linear = as_tensor(self.linear_.predict_log_proba(X), "X")
        return self.ned_.log_probs_of(neighborhood), log_linear.cpu()

    def _given(self) -> tuple[tuple[float, ...] | None, float | None]:
        """The weights and the background; None for what is to be fitted."""
        background = number_or_fit(self.background, "background", 1)
        given = self.weights
        if isinstance(given, str):
            check_choice(given, "weights", ("fit",))
            return None, background
        found = as_tensor(given, "weights").double()
        if found.shape not in ((2,), (3,)) or not bool((found.isfinite() & (found >= 0)).all()):
            raise InputError(
                f"`weights` must be 'fit' or numbers (a, b) or (a, b, g) from 0 on, got {given!r}."
            )
        return tuple(found.tolist()), background


class NEDLinearHead(nn.Module):
    """The blend as a module that gradients pass through; see :class:`NEDHead` for its neighbors."""

    coef: Tensor
    intercept: Tensor
    log_prior: Tensor

    def __init__(self, head: NEDLinear) -> None:
        super().__init__()
        linear = head.linear_
        self.ned, self.blend = head.ned_.module(), head.blend_
        self.register_buffer("coef", torch.from_numpy(linear.coef_) / linear.temperature_)
        self.register_buffer("intercept", torch.from_numpy(linear.intercept_) / linear.temperature_)
        self.register_buffer("log_prior", head.log_prior_.clone())

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        log_linear = nn.functional.linear(x, self.coef.to(x), self.intercept.to(x)).log_softmax(1)
        return blended_log_probs(self.ned(x), log_linear, self.log_prior, self.blend)
