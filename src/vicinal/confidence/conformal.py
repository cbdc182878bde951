r"""Sets of labels that hold the true one with a promised chance, whatever the classifier.

A nonconformity score :math:`a(x, c)` says how strange label c would be for x. Against the scores
:math:`a_1, …, a_n` of calibration rows with their true labels,

.. math:: p_c(x) = \frac{1 + \#\{i : a_i \ge a(x, c)\}}{n + 1}, \qquad
          \text{set}(x) = \{c : p_c(x) > \alpha\}.

If calibration rows and x are exchangeable, the set misses the true label with chance at most
:math:`\alpha`, for every n (Vovk et al. 2005); leaving out the ones breaks that. The smoothed
p-value :math:`(\#\{a_i > a\} + u(\#\{a_i = a\} + 1))/(n + 1)`, u uniform, is exact: where scores
are counts, ties are the rule and the plain one is cautious. *Mondrian* compares with calibration
rows of class c only, so the promise holds within each class.

Scores: ``"lac"`` 1 − p(c) (Sadinle 2019): smallest sets on average, **may be empty** where the
classifier is torn; ``"aps"`` the probability of all labels at least as likely as c (Romano 2020),
times-u for the last group if smoothed; ``"raps"`` the same plus :math:`\lambda` for each label
beyond ``k_reg`` (Angelopoulos 2021), which keeps the tail of many classes out of the sets;
``"dknn"`` neighbors of another class, over all layers. Unsmoothed, the surest row has the largest
score its top label can have, and the rule alone would empty just these sets: ``"aps"`` and
``"raps"`` without ``random_state`` always hold the top label.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_tensor,
    check_choice,
    check_distributions,
    check_finite,
    check_share,
)
from vicinal.confidence.estimator import Estimator
from vicinal.labels import known_codes

SCORES = ("lac", "aps", "raps", "dknn")


class Calibration(NamedTuple):
    """Nonconformity of calibration rows with their true class (as a column number)."""

    scores: Float[Tensor, " m"]
    classes: Int[Tensor, " m"]
    mondrian: bool


def warn_of_missing_classes(codes: Int[Tensor, " m"], classes: NDArray[Any]) -> None:
    """Mondrian ranks need rows of every class: without any, (1 + 0) / (0 + 1) = 1."""
    missing = sorted(set(range(len(classes))) - set(codes.tolist()))
    if missing:
        names = ", ".join(str(classes[c]) for c in missing[:5])
        warnings.warn(
            f"{len(missing)} classes have no calibration row ({names}): with mondrian=True "
            "their p-value is always 1.",
            stacklevel=3,
        )


def conformal_p_values(
    scores: Float[Tensor, "n c"],
    calibration: Calibration,
    uniform: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c"]:
    """p-values of every label; smoothed if a uniform number for each row is given.

    >>> cal = Calibration(torch.tensor([0.0, 1.0, 1.0]), torch.zeros(3, dtype=torch.long), False)
    >>> conformal_p_values(torch.tensor([[0.0, 1.0, 2.0]]), cal)
    tensor([[1.0000, 0.7500, 0.2500]], dtype=torch.float64)
    """
    columns, mine = [], calibration.scores.sort().values
    for c, column in enumerate(scores.T.contiguous()):
        if calibration.mondrian:
            mine = calibration.scores[calibration.classes == c].sort().values
        at_least = len(mine) - torch.searchsorted(mine, column, right=False)
        above = len(mine) - torch.searchsorted(mine, column, right=True)
        u = 1 if uniform is None else uniform.double()  # 1: all that are tied count
        columns.append((above + u * (at_least - above + 1)).double() / (len(mine) + 1))
    return torch.stack(columns, 1)


def aps_scores(
    p: Float[Tensor, "n c"], uniform: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "n c"]:
    """Mass of the labels more likely than c, plus the mass of those just as likely (or u of it).

    Grouping equal probabilities keeps the score free of the order of the classes.
    """
    p = p.double()
    values, order = p.sort(1, descending=True)
    start = torch.cat([torch.ones_like(values[:, :1]), values[:, 1:] - values[:, :-1]], 1) != 0
    group = start.cumsum(1) - 1
    mass = torch.zeros_like(values).scatter_add_(1, group, values)
    reached = mass.cumsum(1).gather(1, group)
    own = mass.gather(1, group)
    score = reached if uniform is None else reached - (1 - uniform.double())[:, None] * own
    return torch.empty_like(score).scatter_(1, order, score)


def raps_scores(
    p: Float[Tensor, "n c"],
    uniform: Float[Tensor, " n"] | None = None,
    *,
    k_reg: int = 5,
    lam: float = 0.01,
) -> Float[Tensor, "n c"]:
    r"""APS plus :math:`\lambda\,(\#\{j : p_j \ge p_c\} - k_{reg})_+`.

    >>> raps_scores(torch.tensor([[0.5, 0.25, 0.25]]), k_reg=2, lam=0.1)
    tensor([[0.5000, 1.1000, 1.1000]], dtype=torch.float64)
    """
    values = (-p.double()).sort(1).values
    rank = torch.searchsorted(values, -p.double(), right=True)
    return aps_scores(p, uniform) + lam * (rank - k_reg).clamp(min=0)


class _NotCalibrated(InputError, NotFittedError):
    """What scikit-learn's users catch."""


class ConformalSets(Estimator):
    """Prediction sets around a fitted classifier: any with ``predict_proba``, or a DeepKNN.

    ``calibrate(X, y)`` on rows that neither the classifier nor its embedding was fitted on.

    Parameters
    ----------
    base : the fitted classifier.
    score : ``"lac"``, ``"aps"``, ``"raps"`` or ``"dknn"`` (a DeepKNN's).
    alpha : how often a set may miss the true label.
    mondrian : keep the promise within each class.
    empty : ``"keep"`` sets without any plausible label, or put the most plausible one there
        (``"top"``: sets only grow, the promise stays; ``forced_`` counts such rows).
    random_state : smooth scores and p-values, with this seed.
    k_reg, lam : of ``"raps"``: how many labels are free, and what each further one costs.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> x = np.linspace(-3, 3, 60)[:, None]; y = (x[:, 0] > 0).astype(int)
    >>> base = LogisticRegression().fit(x[::2], y[::2])
    >>> sets = ConformalSets(base, alpha=0.2).calibrate(x[1::2], y[1::2])
    >>> sets.prediction_sets([[2.5]])
    array([[False,  True]])
    """

    def __init__(
        self,
        base: Any,
        score: str = "lac",
        alpha: float = 0.1,
        *,
        mondrian: bool = False,
        empty: str = "keep",
        random_state: int | None = None,
        k_reg: int = 5,
        lam: float = 0.01,
    ) -> None:
        self.base = base
        self.score = score
        self.alpha = alpha
        self.mondrian = mondrian
        self.empty = empty
        self.random_state = random_state
        self.k_reg = k_reg
        self.lam = lam

    def calibrate(self, X: Any, y: Any) -> Self:
        """Remember the scores of held-out rows with their true labels."""
        check_choice(self.score, "score", SCORES)
        check_choice(self.empty, "empty", ("keep", "top"))
        check_share(self.alpha, "alpha")
        numbers = hasattr(self.k_reg, "__float__") and hasattr(self.lam, "__float__")
        if not numbers or not 0 <= self.k_reg < math.inf or not 0 <= self.lam < math.inf:
            raise InputError(
                "`k_reg` and `lam` must be finite and not negative, "
                f"got {self.k_reg!r} and {self.lam!r}."
            )
        self.classes_ = np.asarray(self.base.classes_)
        scores = self._scores(X, stream=0)
        unknown = "holds {}, which the base classifier does not know. No set could hold it: "
        unknown += "leave such rows out, or fit the base with that class."
        codes = known_codes(y, len(scores), self.classes_, unknown)
        own = scores.gather(1, codes[:, None]).squeeze(1)
        self.calibration_ = Calibration(own, codes, bool(self.mondrian))
        if self.mondrian:
            warn_of_missing_classes(codes, self.classes_)
        counts = torch.bincount(codes, minlength=len(self.classes_))
        self.rows_ = counts.numpy() if self.mondrian else np.array(len(codes))
        return self

    fit = calibrate

    def p_values(self, X: Any) -> Any:
        """(n, c): how plausible each label is against the calibration rows."""
        return self._kind(self._ranked(X)[0], X)

    def prediction_sets(self, X: Any, alpha: float | None = None) -> Any:
        """(n, c) bool: the labels with p > alpha; ``forced_`` counts rows given their top label."""
        alpha = self.alpha if alpha is None else alpha
        check_share(alpha, "alpha")
        p, scores = self._ranked(X)
        sets: Bool[Tensor, "n c"] = p > alpha
        top = torch.zeros_like(sets).scatter_(1, scores.argmin(1, keepdim=True), True)
        if self.score in ("aps", "raps") and self.random_state is None:
            lacking = ~(sets & top).any(1)
        else:
            lacking = ~sets.any(1) & (self.empty == "top")
        self.forced_ = int(lacking.sum())
        sets |= top & lacking[:, None]
        return self._kind(sets, X)

    predict_set = prediction_sets

    def predict(self, X: Any) -> Any:
        return self.base.predict(X)

    @property
    def smallest_p_(self) -> Any:
        """1 / (n + 1): below it alpha leaves nothing out (per class if Mondrian)."""
        return 1 / (self.rows_ + 1)

    def _ranked(self, X: Any) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
        """p-values and scores of every label."""
        if not hasattr(self, "calibration_"):
            raise _NotCalibrated(
                "ConformalSets has no calibration rows yet. "
                "Call calibrate(X, y) with held-out rows."
            )
        scores = self._scores(X, stream=1)
        uniform = None if self.random_state is None else self._uniform(len(scores), stream=2)
        return conformal_p_values(scores, self.calibration_, uniform), scores

    def _scores(self, X: Any, stream: int) -> Float[Tensor, "n c"]:
        if self.score == "dknn":
            if not hasattr(self.base, "nonconformity"):
                raise InputError(
                    "`score`='dknn' needs a fitted DeepKNN as `base`, got "
                    f"{type(self.base).__name__}. Use score='lac' or 'aps' for other classifiers."
                )
            return as_tensor(self.base.nonconformity(X), "scores").double()
        if not hasattr(self.base, "predict_proba"):
            raise InputError(
                f"`score`={self.score!r} needs a `base` with predict_proba, got "
                f"{type(self.base).__name__}."
            )
        p = as_tensor(self.base.predict_proba(X), "probabilities").double()
        check_finite(p, "probabilities")
        check_distributions(p, "probabilities")
        if self.score == "lac":
            return 1 - p
        uniform = None if self.random_state is None else self._uniform(len(p), stream)
        if self.score == "aps":
            return aps_scores(p, uniform)
        return raps_scores(p, uniform, k_reg=self.k_reg, lam=self.lam)

    def _uniform(self, n: int, stream: int) -> Float[Tensor, " n"]:
        # separate streams: calibration scores, new scores and p-values must be independent
        return torch.from_numpy(np.random.default_rng([self.random_state or 0, stream]).random(n))

    def _kind(self, value: Tensor, X: Any) -> Any:
        sample = next(iter(X.values())) if hasattr(X, "values") and self.score == "dknn" else X
        return value if isinstance(sample, Tensor) else value.cpu().numpy()
