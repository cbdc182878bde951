r"""NED: calibrated class probabilities from the distances to labeled neighbors (Karpusha 2020).

.. math:: p(c \mid z) = \frac{\sum_{i \le k} e^{-\|z-z_i\|^2/T} [y_i=c]}{\sum_{i \le k}
   e^{-\|z-z_i\|^2/T}} \qquad \text{(eq. 3)}

The formula and its extensions are in :mod:`vicinal.confidence.ned.posterior`, their fit in
:mod:`vicinal.confidence.ned.fit`; this file is the estimator around them. NED is closed-set: it
divides by the mass it finds, so a row far from everything may get a high probability. The distance
to the k-th neighbor, which :meth:`NEDClassifier.judge` reports from the same search, tells such
rows.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_k, same_kind
from vicinal.confidence.bundle import Kept
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.ned.effects import (
    JointEffect,
    LabelEffects,
    edits_of,
    joint_effect,
    label_effects,
    relabeled,
)
from vicinal.confidence.ned.fit import RecipeFit, fit_recipe
from vicinal.confidence.ned.module import NEDHead
from vicinal.confidence.ned.posterior import (
    NEDParameters,
    Recipe,
    best_class,
    ned_log_probs,
    with_prior,
)
from vicinal.confidence.ned.space import DEFAULT_K, check_space, flatness, support_in_space
from vicinal.confidence.prediction import Prediction, prediction_of
from vicinal.confidence.support import Evidence, LabeledSupport, check_announced, rows_of
from vicinal.labels import codes_of, labels_of, named, without_empty_classes
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import Search
from vicinal.neighbors.spaces import Space


class NEDClassifier(Kept, ClassifierMixin, Estimator):
    r"""Class probabilities from the exponential of distances to the k nearest support rows.

    The defaults are eq. 3 exactly, with T fitted leave-one-out on the support. Beyond the paper,
    and fitted on the same cached graph: ``sharpness="fit"``, ``background="fit"``,
    ``bandwidth="class"`` (eq. 18); they are kept only if they lower the cross-validated
    leave-one-out loss, and ``fitted_`` names those that were.

    Parameters
    ----------
    k : neighbors that vote. The default of 100 means *at most* 100: a smaller support votes as a
        whole, with a warning. Any other ``k`` above the support size is an error.
    temperature : None fits it. 0 is the nearest neighbor (ties share), ``inf`` the plain vote.
    sharpness, background : numbers, or ``"fit"``; bandwidth : ``"shared"`` or ``"class"``.
    prior : ``"support"``, ``"uniform"`` or an array of class probabilities in the order of
        ``classes_``: the class frequencies to expect of queries.
    metric : ``"sqeuclidean"`` (the paper's), ``"euclidean"`` or ``"cosine"``.
    search : ``"exact"``, ``"faiss"``, ``"auto"`` or a :class:`vicinal.neighbors.Search`.
    space : the linear map before the distances: ``"raw"``, ``"unit"``, ``"centered-unit"``,
        ``"standardized"``, ``"whitened"``, ``"learned"``, or ``"fit"``: what held-out rows choose.

    After ``fit``: ``temperature_, sharpness_, background_, class_temperatures_`` as used;
    ``space_``, and ``space_losses_``, the held-out losses it was chosen by;
    ``classes_`` in the order of probability columns; ``loo_proba_``, leave-one-out probabilities of
    the support; ``unreachable_``, ids of rows whose class is not among their k neighbors;
    ``n_conflicting_duplicates_``; ``stale_``, what edits have outdated; ``warnings_``.

    >>> X = np.array([[0.0], [0.2], [0.4], [1.0], [1.2], [1.4]])
    >>> ned = NEDClassifier(k=3).fit(X, ["a", "a", "b", "b", "b", "a"])
    >>> ned.predict([[0.1], [1.1]])
    array(['a', 'b'], dtype='<U1')
    """

    def __init__(
        self,
        k: int = DEFAULT_K,
        temperature: float | None = None,
        sharpness: float | str = 1.0,
        background: float | str = 0.0,
        bandwidth: str = "shared",
        prior: Any = "support",
        metric: str = "sqeuclidean",
        search: str | Search = "exact",
        space: str = "raw",
    ) -> None:
        self.k = k
        self.temperature = temperature
        self.sharpness = sharpness
        self.background = background
        self.bandwidth = bandwidth
        self.prior = prior
        self.metric, self.search, self.space = metric, search, space

    def fit(self, X: Any, y: Any) -> NEDClassifier:
        """Take rows with labels (n,), or soft labels (n, c), as the support; fit the rest."""
        recipe, x = self.recipe_, rows_of(self, X, reset=True)
        own = support_in_space(self, x, labels_of(y, len(x)))
        return self._fit(recipe, own, isinstance(X, Tensor))

    def fit_support(self, support: LabeledSupport) -> NEDClassifier:
        """The same for a support that is in its search already, with its labels coded."""
        self.n_features_in_ = support.width
        self.space_losses_: dict[str, float] = {}
        if self.space != "raw":
            support = support_in_space(self, support.rows, support.labels, support.ids)
        return self._fit(self.recipe_, support, True)

    def fit_on(self, held_out: Evidence, fit: RecipeFit | None = None) -> NEDClassifier:
        """Fit on rows whose neighbors were found before; ``fit``: what was fitted to them then."""
        return self._learn(self.recipe_, held_out, fit)

    def calibrate(self, X: Any, y: Any) -> NEDClassifier:
        """Fit on held-out rows instead (the paper's abstract); preferred where there are any.

        Rows of a label the support does not know are left out, and counted in a warning.
        """
        if not self.recipe_.names:
            raise InputError(
                "nothing to calibrate: temperature, sharpness and background are given numbers. "
                "Pass temperature=None or sharpness='fit'."
            )
        return self.fit_on(self.held_out((X, y)))

    def held_out(self, calib: tuple[Any, Any] | None) -> Evidence:
        """The evidence of held-out rows ``(X, y)``, or, without any, of the support itself."""
        if calib is None:
            return self.support_.own_evidence(self.k_)
        x = self._rows(calib[0])
        targets = codes_of(calib[1], len(x), self.support_.labels)
        known = (targets >= 0).reshape(len(x), -1).all(1)  # soft labels always are
        if not bool(known.any()):
            raise InputError("no calibration row has a label of the support. Check the names.")
        if not bool(known.all()):
            count = f"{int((~known).sum())} of {len(x)} calibration rows"
            self._warn(f"{count} have a label the support does not know; they are left out.")
        neighborhood = self.support_.query(x[known], self.k_)
        if float((neighborhood.distances[:, 0] == 0).double().mean()) > 0.5:
            self._warn(
                "most calibration rows are also in the support: they see themselves, and "
                "confidence will be too high. Hold them out of the support."
            )
        found = self.support_.evidence(neighborhood, targets[known], leave_one_out=False)
        return replace(found, points=self.support_.space(x[known]))

    def refit(self) -> NEDClassifier:
        """Fit again, leave-one-out, from the cached graph; at most the space is stale after."""
        check_is_fitted(self)
        self.support_.labels = without_empty_classes(self.support_.labels)
        return self._learn(self.recipe_, None)

    def predict_log_proba(self, X: Any) -> Any:
        """Log-probabilities (n, c), the primitive; -inf is an exact zero."""
        neighborhood = self.neighborhood_of(X)
        return same_kind(self.log_probs_of(neighborhood).to(neighborhood.distances.dtype), X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (n, c) in the order of ``classes_``."""
        neighborhood = self.neighborhood_of(X)
        return same_kind(self.log_probs_of(neighborhood).exp().to(neighborhood.distances.dtype), X)

    def predict(self, X: Any) -> Any:
        """The most probable class; ties go to the smaller mean distance, then by label order."""
        neighborhood = self.neighborhood_of(X)
        return named(self.classes_, best_class(self.log_probs_of(neighborhood), neighborhood), X)

    def judge(self, X: Any) -> Prediction:
        """Everything one search says: label, probabilities, distances, density, neighbors."""
        return prediction_of(self, self.neighborhood_of(X), X)[1]

    def kneighbors(self, X: Any = None, k: int | None = None) -> Neighborhood:
        """Distances and ids of the nearest support rows; without ``X``, of each among others."""
        neighborhood = self.loo_neighborhood(k) if X is None else self.neighborhood_of(X, k)
        like = X if X is not None or not self._torch else self.support_.like
        ids = self.support_.ids[neighborhood.indices]
        return Neighborhood(same_kind(neighborhood.distances, like), same_kind(ids, like))

    def neighborhood_of(self, X: Any, k: int | None = None) -> Neighborhood:
        """The search itself: the k nearest support rows, labeled; indices are positions."""
        return self._fitted().support_.query(self._rows(X), self.k_ if k is None else k)

    def loo_neighborhood(self, k: int | None = None) -> Neighborhood:
        """The same for the support's own rows, each among the others; searched once and kept."""
        others = self._fitted().support_.leave_one_out(self.k_)
        check_k(others.k if k is None else k, others.k, "k", "the leave-one-out graph")
        return others.first(others.k if k is None else k)

    def log_probs_of(self, neighborhood: Neighborhood) -> Tensor:
        """Log-probabilities (n, c) in float64 of labeled neighbors found before."""
        count = len(self.classes_)
        parts = neighborhood.blocks(neighborhood.block_rows(count))
        return torch.cat([ned_log_probs(part.double(), count, self.parameters_) for part in parts])

    def module(self, temperature: float | None = None, full_support: bool = False) -> NEDHead:
        """A differentiable ``nn.Module``: embeddings to class log-probabilities; a snapshot.

        ``temperature`` replaces the fitted one (class bandwidths keep their ratios to it) and
        ``full_support`` lets every row vote: the smoothed surrogate of an attack audit.
        """
        check_is_fitted(self)
        return NEDHead(self, temperature, full_support)

    def label_effects(
        self, X: Any, ids: Any = None, new_labels: Any = None, probabilities: bool = False
    ) -> LabelEffects:
        """What would be said of queries with a support row relabeled, each row alone; exact.

        Parameters
        ----------
        X : the queries.
        ids : support rows, all by default.
        new_labels : one for each of them; None removes the rows instead.
        probabilities : whether to keep every class's probability after every edit.
        """
        x, (rows, new) = self._rows(X), edits_of(self.support_, ids, new_labels)
        if new is None and len(self.support_) == 1:
            raise InputError("the support has a single row; without it nothing can be predicted.")
        neighborhood = self.support_.query(x, min(self.k_ + (new is None), len(self.support_)))
        return label_effects(self, neighborhood, rows, new, probabilities=probabilities)

    def joint_effect(self, X: Any, ids: Any, new_labels: Any = None) -> JointEffect:
        """The same for the whole list of edits at once."""
        x, (rows, new) = self._rows(X), edits_of(self.support_, ids, new_labels)
        before = self.support_.query(x, self.k_)
        if new is None:
            return joint_effect(self, before, self.support_.query_without(x, self.k_, rows))
        return joint_effect(self, before, relabeled(before, self.support_, rows, new))

    def add(self, X: Any, y: Any, refit: bool = True) -> NEDClassifier:
        """Add labeled rows, of new classes too. Ids go on from the last one.

        The graph is updated, not rebuilt, and what was fitted leave-one-out is fitted again from it
        (``refit=False`` leaves that for :meth:`refit` and lists it in ``stale_``). What was
        calibrated on held-out rows cannot be, and is listed.
        """
        self._fitted().support_.add(self._rows(X), y)
        return self._edited(refit)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> NEDClassifier:
        """:meth:`fit` at the first call, :meth:`add` at the next; new classes may come at any.

        ``classes``: what scikit-learn lets one announce; labels are checked against it.
        """
        check_announced(y, classes)
        return self.add(X, y) if hasattr(self, "support_") else self.fit(X, y)

    def remove(self, ids: Any, refit: bool = True) -> NEDClassifier:
        """Take rows out of the support by id; the other rows keep theirs."""
        check_is_fitted(self)
        gone = self.support_.positions(ids).unique()
        left = len(self.support_) - len(gone)
        if left < 1:
            raise InputError("`ids` names the whole support. At least one row must stay.")
        if self.k != DEFAULT_K:
            check_k(self.k, left, "k", "the support that would remain")
        self.support_.remove(gone)
        return self._edited(refit)

    def relabel(self, ids: Any, y: Any, refit: bool = True) -> NEDClassifier:
        """Give support rows other labels; the graph does not change."""
        check_is_fitted(self)
        self.support_.relabel(self.support_.positions(ids), y)
        return self._edited(refit)

    @property
    def classes_(self) -> NDArray[Any]:
        return self._fitted().support_.labels.classes

    @property
    def space_(self) -> Space:
        return self._fitted().support_.space

    @property
    def support_size_(self) -> int:
        return len(self._fitted().support_)

    @property
    def ids_(self) -> NDArray[np.int64]:
        return self._fitted().support_.ids.numpy()

    @property
    def class_temperatures_(self) -> NDArray[np.float64]:
        own, many = self._fitted().parameters_.log_bandwidths, len(self.classes_)
        return self.temperature_ * (np.ones(many) if own is None else own.exp().numpy())

    @property
    def loo_proba_(self) -> Any:
        p = self.log_probs_of(self.loo_neighborhood()).exp().to(self.support_.dtype)
        return p if self._torch else p.numpy()

    @property
    def unreachable_(self) -> NDArray[np.int64]:
        return self._fitted().support_.unreachable(self.k_)

    @property
    def n_conflicting_duplicates_(self) -> int:
        return self._fitted().support_.conflicting_duplicates(self.k_)

    def _fitted(self) -> NEDClassifier:
        check_is_fitted(self, "support_")
        return self

    @property
    def recipe_(self) -> Recipe:
        """Which parameters are given and which are fitted, from the options as they are now."""
        if isinstance(self.prior, str):
            check_choice(self.prior, "prior", ("support", "uniform"))
        check_space(self.space)
        return Recipe.of(self.temperature, self.sharpness, self.background, self.bandwidth)

    def _usable_k(self, before: int) -> int:
        """``k``, or the whole support where it has fewer rows than the default; said when new."""
        rows = len(self.support_)
        if self.k != DEFAULT_K or rows >= DEFAULT_K:
            check_k(self.k, rows, "k", "the support")
            return int(self.k)
        if before != rows:
            fewer = f"the support has {rows} rows, fewer than the default k={DEFAULT_K}"
            self._warn(f"{fewer}: all of them vote. Pass k={rows} or fewer to choose.")
        return rows

    def _fit(self, recipe: Recipe, support: LabeledSupport, as_torch: bool) -> NEDClassifier:
        self.warnings_: list[str] = []
        self.stale_: tuple[str, ...] = ()
        self.support_, self._torch = support, as_torch
        self.k_ = self._usable_k(before=0)
        if {self.space, support.space.name} != {"raw"} and (sentence := flatness(support)):
            self._warn(sentence)
        return self._learn(recipe, None)

    def _learn(self, recipe: Recipe, evidence: Evidence | None, fit: Any = None) -> NEDClassifier:
        """Fit on held-out rows, or leave-one-out on the support itself; or use a ``fit``."""
        labels, own = self.support_.labels, evidence is None or evidence.leave_one_out
        if evidence is None and recipe.names:
            evidence = self.support_.own_evidence(self.k_)
        fit = fit or fit_recipe(recipe, evidence, len(labels.classes), self.n_features_in_)
        for sentence in fit.warnings:
            self._warn(sentence)
        self._use(with_prior(fit.parameters, labels.counts(), self.prior))
        self.fitted_ = fit.kept
        self.stale_ = ("space_",) * ("space_" in self.stale_)  # fit() alone mends it
        self.fitted_on_ = "leave-one-out" if own else "held-out"
        if evidence is not None and own and not labels.soft:
            self._check_collapse(evidence)
        return self

    def _use(self, parameters: NEDParameters) -> None:
        self.parameters_ = parameters
        self.temperature_ = parameters.temperature
        self.sharpness_ = parameters.sharpness
        self.background_ = parameters.background
        self.effective_dimension_ = parameters.effective_dimension

    def _check_collapse(self, evidence: Evidence) -> None:
        """Rows that no neighbor could set right do not count; with one neighbor all do."""
        best = best_class(self.log_probs_of(evidence.neighborhood), evidence.neighborhood)
        lost = len(self.support_.unreachable(self.k_)) if self.k_ > 1 else 0
        accuracy = float((best == evidence.targets).sum()) / max(len(evidence) - lost, 1)
        if len(self.classes_) > 1 and accuracy > 0.999:
            self._warn(
                f"leave-one-out accuracy is {accuracy:.4f}: either the task is easy, or the "
                "support is what the embedding was trained on and its classes have collapsed, so "
                "that new rows will be less certain than these. Fit on held-out rows: "
                "calibrate(X, y), calib= or --calib."
            )

    def _edited(self, refit: bool) -> NEDClassifier:
        self.k_ = self._usable_k(before=self.k_)
        recipe, self.stale_ = self.recipe_, ("space_",) * self.space_.fitted
        if refit and (self.fitted_on_ == "leave-one-out" or not recipe.names):
            return self.refit()
        prior, counts = self.parameters_.prior, self.support_.labels.counts()
        if prior is not None and len(prior) != len(counts):
            # New classes count by their rows and take the common bandwidth until the next fit.
            shared = replace(self.parameters_, log_bandwidths=None)
            self._use(with_prior(shared, counts, self.prior))
        self.stale_ = (*recipe.names, "prior_", *self.stale_)
        if self.fitted_on_ == "held-out":
            self._warn("the support has changed since calibration: call calibrate(X, y) again.")
        return self

    def _warn(self, sentence: str) -> None:
        self.warnings_.append(sentence)
        warnings.warn(sentence, UserWarning, stacklevel=3)

    def _rows(self, X: Any) -> Tensor:
        return rows_of(self._fitted(), X).to(self.support_.like)
