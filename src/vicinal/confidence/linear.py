r"""Multinomial logistic regression with nothing left to choose: what a linear head would say.

.. math:: \min_{W, b}\; \frac1n \sum_i -\log \operatorname{softmax}(W^\top x_i + b)_{y_i}
          + \frac{\lambda}{2} \|W\|^2, \qquad
          p(c \mid x) = \operatorname{softmax}\bigl((W^\top x + b)/T\bigr)_c

Rows are centered and divided by one common scale, so that their mean squared length is 1 and λ
means the same everywhere; columns keep their proportions, so a rotation changes nothing. Only where
one column varies ten times as much as most do, or as little, as measurements in units of their own
do, columns of unit deviation are tried as well, and held-out rows choose. λ is the
one with the lowest cross-validated log-loss, T calibrates the logits of rows that their own model
has not seen (Guo et al. 2017; a normal prior on log T and half a pseudo-row of any class keep it
finite where every row is right). One pseudo-row at the center, shared by all classes, keeps the
intercepts finite: a class that a fold does not know has a small probability there, not none.

Three things make it cheap. The rows are written in their principal directions, where the curvature
is almost diagonal and divided out. All folds descend as one problem, so that each pass over the
rows is one product of matrices. And λ falls step by step from where the answer is the class shares,
each step starting where the last one ended, until held-out rows object.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_positive, same_kind
from vicinal.confidence.bundle import Kept
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.minimum import Vector, minimum
from vicinal.confidence.support import rows_of
from vicinal.labels import folds_of, hard_labels_of, named

PATH = tuple(10.0**-e for e in range(2, 9))  # λ, strong to weak
LEAST_GAIN = 1e-3  # nats: less is not worth a weaker λ
STEPS, LAST_STEPS = 8, 16  # of L-BFGS at each λ, and at the chosen one
CHOOSING = 2_000  # held-out rows that choose λ, or 20 per class
MAX_ROWS = 3_000  # one number needs no more (20 per class at least)
UNLIKE = 10.0  # times the usual spread of a column, or a tenth: units of their own, perhaps
_ELEMENTS, _BLOCK = 1 << 20, 4096


class Coordinates(NamedTuple):
    """Rows in their principal directions: ``(x - center) @ basis``, mean squared length 1."""

    center: Float[Tensor, " d"]
    basis: Float[Tensor, "d r"]


def column_scales(x: Float[Tensor, "n d"]) -> list[Float[Tensor, " d"]]:
    """What columns may be multiplied by: 1, and where their spreads are unlike one over those."""
    spread, as_they_are = x.std(0, correction=0), torch.ones_like(x[0])
    varies = spread > 16 * torch.finfo(torch.float32).eps * x.abs().amax(0)  # not by rounding alone
    unlike = (spread[varies] / spread[varies].median()).log().abs() > math.log(UNLIKE)
    if not bool(unlike.any()):
        return [as_they_are]
    return [as_they_are, torch.where(varies, 1 / spread, 0.0)]


def principal_coordinates(
    x: Float[Tensor, "n d"], columns: Float[Tensor, " d"]
) -> tuple[Coordinates, Float[Tensor, "n r"]]:
    """Directions in which rows of scaled columns differ (n - 1 at most), and the rows in them."""
    center = x.mean(0)
    z = (x - center) * columns
    scale = float(z.square().sum(1).mean().sqrt())
    if scale > 0:
        z = z / scale
    wide = z.shape[1] > z.shape[0]
    values, vectors = torch.linalg.eigh((z @ z.T if wide else z.T @ z) / len(z))
    kept = values > 1e-10 * values[-1].clamp_min(1e-10)  # constant columns have no direction
    vectors = vectors[:, kept]
    if wide:
        vectors = z.T @ (vectors / (len(z) * values[kept]).sqrt())
    return Coordinates(center, vectors * columns[:, None] / (scale or 1.0)), z @ vectors


class Problem:
    """m logistic regressions on the same rows, each without the rows it has ``held`` out.

    Their parameters are one matrix (r + 1, m c): m blocks of c columns, the intercepts last.
    """

    def __init__(
        self,
        rows: Float[Tensor, "n r"],
        codes: Int[Tensor, " n"],
        classes: int,
        held: Bool[Tensor, "n m"],
    ) -> None:
        self.rows, self.codes, self.classes = rows, codes, classes
        self.shares = (~held).to(rows) / (~held).sum(0)  # of each row in each model's mean loss
        self.variances = rows.square().mean(0)

    def log_probs(self, weights: Tensor, rows: Tensor) -> Float[Tensor, "n m c"]:
        z = torch.addmm(weights[-1], rows, weights[:-1])
        return z.unflatten(1, (-1, self.classes)).log_softmax(2)

    def loss_and_gradient(self, weights: Tensor, l2: float) -> tuple[float, Tensor]:
        """Summed over the models."""
        log_prior = weights[-1].unflatten(0, (-1, self.classes)).log_softmax(1)
        few = self.shares.amax(0)[:, None]  # one row's share: that of the pseudo-row
        loss = 0.5 * l2 * float(weights[:-1].square().sum(dtype=torch.float64)) - float(
            (few * log_prior).mean(1).sum()
        )
        gradient = l2 * weights
        gradient[-1] = (few * (log_prior.exp() - 1 / self.classes)).flatten()
        block = max(_ELEMENTS // weights.shape[1], 1)
        parts = (self.rows.split(block), self.codes.split(block), self.shares.split(block))
        for rows, codes, shares in zip(*parts, strict=True):
            log_p, own = self.log_probs(weights, rows), codes[:, None, None]
            own = own.expand(-1, shares.shape[1], 1)
            loss -= float((log_p.gather(2, own)[:, :, 0] * shares).sum(dtype=torch.float64))
            error = log_p.exp_().mul_(shares[:, :, None])
            error = error.scatter_add_(2, own, -shares[:, :, None]).flatten(1)
            gradient[:-1].addmm_(rows.T, error)
            gradient[-1] += error.sum(0)
        return loss, gradient

    def descend(self, start: Tensor, l2: float, steps: int, tolerance: float = 1e-5) -> Tensor:
        """L-BFGS in coordinates where the curvature, about h σ² + λ at ``start``, is 1.

        h is the mean of p (1 - p) over classes: 1/c at W = 0, less where the answers are sure.
        """
        some = self.rows[:: len(self.rows) // _BLOCK + 1]
        sure = self.log_probs(start, some).exp_().square().sum(2).mean()
        h = ((1 - sure) / max(self.classes - 1, 1)).clamp_min(1e-6)
        unit = torch.cat([self.variances * h + l2, h[None]]).rsqrt()[:, None]

        def objective(v: Vector) -> tuple[float, Vector]:
            weights = torch.from_numpy(v).view_as(start).to(start) * unit
            loss, gradient = self.loss_and_gradient(weights, l2)
            return loss, (gradient * unit).double().flatten().numpy()

        stops = {"maxiter": steps, "ftol": tolerance, "gtol": 1e-7}
        found = minimum(objective, (start / unit).double().flatten().numpy(), stops)
        return torch.from_numpy(found.x).view_as(start).to(start) * unit


class PathFit(NamedTuple):
    """What cross-validation chose, the fold models there, and what they say of held-out rows."""

    l2: float
    temperature: float
    loss: float  # calibrated, out of fold
    weights: Float[Tensor, "r1 mc"]
    log_probs: Float[Tensor, "n c"]  # out of fold, at T = 1


def fit_path(problem: Problem, fold: Int[Tensor, " n"], given: float | None = None) -> PathFit:
    """Lower λ by decades until the calibrated out-of-fold loss has risen, then once in between.

    With a ``given`` λ the path leads there. Of many rows some folds choose for all, which then
    start at W = 0: a model that has seen a row does not unlearn it in a few steps where λ is small.
    """
    rows, codes, count = problem.rows, problem.codes, problem.classes
    folds = few = problem.shares.shape[1]
    if given is None:
        few = min(folds, math.ceil(folds * max(CHOOSING, 20 * count) / len(rows)))
    some, asked = Problem(rows, codes, count, problem.shares[:, :few] == 0), fold < few
    weights, ends, losses = rows.new_zeros(rows.shape[1] + 1, few * count), [], []
    for l2 in PATH if given is None else (v for v in PATH if v > given):
        weights = some.descend(weights, l2, STEPS)
        if given is None:
            ends.append(weights)
            log_probs = _out_of_fold(some, weights, rows[asked], fold[asked])
            losses.append(calibrated(log_probs, codes[asked])[1])
            if len(losses) > 2 and losses[-1] > min(losses[:-1]) - LEAST_GAIN:
                break
    if given is None:
        at = int(np.argmin(losses))
        given, weights = _vertex(at, losses), ends[at]
    if few < folds:
        weights = rows.new_zeros(rows.shape[1] + 1, folds * count)
    weights = problem.descend(weights, given, LAST_STEPS)
    log_probs = _out_of_fold(problem, weights, rows, fold)
    return PathFit(given, *calibrated(log_probs, codes), weights, log_probs)


def calibrated(log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> tuple[float, float]:
    """T and the mean loss there, with a normal prior of deviation 1/2 on log T.

    Half a pseudo-row is as the others but of any class: n rows that were all right do not show that
    the next one will be.
    """
    n, enough = len(codes), max(MAX_ROWS, 20 * log_probs.shape[1])
    rows = torch.linspace(0, n - 1, min(n, enough)).long()
    log_probs, codes = log_probs[rows], codes[rows]

    def loss(u: float) -> float:
        scaled = (log_probs * math.exp(-u)).log_softmax(1)
        own, any_class = scaled.gather(1, codes[:, None]).mean(), scaled.mean()
        return 2 * u**2 / n - float(own) - 0.5 * float(any_class) / n

    found = minimize_scalar(loss, bounds=(-3.5, 3.5), method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x), float(found.fun)


class LinearClassifier(Kept, ClassifierMixin, Estimator):
    """Logistic regression with λ by cross-validation and a temperature fitted out of fold.

    Parameters
    ----------
    l2 : None chooses it. A number is λ for rows of mean squared length 1.
    folds : of the cross-validation; at most one per row.

    After ``fit``: ``l2_``, ``temperature_``, ``classes_``; ``coef_`` (c, d) and ``intercept_`` (c,)
    of the unscaled logits; ``oof_log_proba_`` (n, c), what the models of the other folds say of
    each training row, calibrated; ``folds_`` (n,), in which fold each row was.

    >>> X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]])
    >>> head = LinearClassifier(folds=3).fit(X, ["a", "a", "a", "b", "b", "b"])
    >>> head.predict([[0.3], [0.9]])
    array(['a', 'b'], dtype='<U1')
    """

    def __init__(self, l2: float | None = None, folds: int = 5) -> None:
        self.l2 = l2
        self.folds = folds

    def fit(self, X: Any, y: Any) -> Self:
        """Fit rows ``X`` with labels ``y`` (n,); soft labels are refused."""
        x = rows_of(self, X, reset=True).double()
        labels = hard_labels_of(y, len(x), "a linear head is fitted to one class per row")
        if len(x) < 2:
            raise InputError(
                "a linear head needs at least 2 rows, got 1 sample: nothing could be held out."
            )
        if isinstance(self.folds, bool) or not isinstance(self.folds, int) or self.folds < 2:
            raise InputError(f"`folds` must be a whole number of at least 2, got {self.folds!r}.")
        if self.l2 is not None:
            check_positive(self.l2, "l2")
        codes, count = labels.codes, len(labels.classes)
        fold = folds_of(codes, min(self.folds, len(x)))
        held = fold[:, None] == torch.arange(int(fold.max()) + 1)
        ways = [principal_coordinates(x.cpu(), columns) for columns in column_scales(x.cpu())]
        paths = [fit_path(Problem(z.float(), codes, count, held), fold, self.l2) for _, z in ways]
        (coordinates, z), path = min(zip(ways, paths, strict=True), key=lambda way: way[1].loss)
        whole = Problem(z.float(), codes, count, torch.zeros(len(x), 1, dtype=torch.bool))
        start = path.weights.unflatten(1, (-1, count)).mean(1)
        weights = whole.descend(start, path.l2, 2 * LAST_STEPS, 1e-6).double()
        coef = coordinates.basis @ weights[:-1]
        self.classes_: NDArray[Any] = labels.classes
        self.l2_, self.temperature_, self.folds_ = path.l2, path.temperature, fold.numpy()
        self.coef_: Vector = coef.T.contiguous().numpy()
        self.intercept_: Vector = (weights[-1] - coordinates.center @ coef).numpy()
        self.oof_log_proba_: Vector = (path.log_probs / path.temperature).log_softmax(1).numpy()
        return self

    def logits(self, X: Any) -> Any:
        """W'x + b (n, c) in float64, at T = 1."""
        check_is_fitted(self)
        x = rows_of(self, X).double()
        coef, intercept = (torch.from_numpy(v).to(x) for v in (self.coef_, self.intercept_))
        return same_kind(torch.addmm(intercept, x, coef.T), X)

    def predict_log_proba(self, X: Any, scaled: bool = True) -> Any:
        """Log-probabilities (n, c); ``scaled=False`` gives those at T = 1."""
        z = as_tensor(self.logits(X), "logits")
        return same_kind((z / (self.temperature_ if scaled else 1.0)).log_softmax(1), X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (n, c) in the order of ``classes_``."""
        return same_kind(as_tensor(self.predict_log_proba(X), "logits").exp(), X)

    def predict(self, X: Any) -> Any:
        """The most probable class; the temperature has no say in it."""
        best = as_tensor(self.logits(X), "logits").argmax(1)
        return named(self.classes_, best, X)


def _out_of_fold(problem: Problem, weights: Tensor, rows: Tensor, fold: Tensor) -> Tensor:
    parts = zip(rows.split(_BLOCK), fold.split(_BLOCK), strict=True)
    return torch.cat(
        [problem.log_probs(weights, x)[torch.arange(len(x)), f] for x, f in parts]
    ).double()


def _vertex(at: int, losses: list[float]) -> float:
    """λ at the lowest point of the parabola through the lowest loss and its two sides."""
    if not 0 < at < len(losses) - 1:
        return PATH[at]
    before, here, after = losses[at - 1 : at + 2]
    bend = before - 2 * here + after
    return float(PATH[at] * 10 ** (0.5 * (after - before) / bend if bend > 0 else 0.0))
