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

Four things make it cheap. The rows are written in their principal directions, where the curvature
is almost diagonal and divided out. All folds descend as one problem, so that each pass over the
rows is one product of matrices. λ falls step by step from where the answer is the class shares,
each step starting where the last one ended, until held-out rows object. And of many rows some go
that way, all only the last part of it.
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

from vicinal.checks import InputError, as_tensor, as_weights, check_positive, same_kind
from vicinal.confidence.bundle import Kept
from vicinal.confidence.estimator import Estimator
from vicinal.confidence.minimum import Vector, minimum
from vicinal.confidence.support import rows_of
from vicinal.labels import folds_of, hard_labels_of, named
from vicinal.neighbors.product import product

PATH = tuple(10.0**-e for e in range(2, 7))  # λ, strong to weak
LEAST_GAIN = 1e-3  # nats: less is not worth a weaker λ
STEPS, LAST = 8, 16  # of L-BFGS at each λ, and at the last; half of them where some rows lead there
CHOOSING = 2_000  # rows that choose λ, or 20 per class
MAX_ROWS = 3_000  # one number needs no more (20 per class at least)
UNLIKE = 10.0  # times the usual spread of a column, or a tenth: units of their own, perhaps
_ELEMENTS, _BLOCK = 1 << 19, 4096


class Coordinates(NamedTuple):
    """Rows in their principal directions: ``(x - center) @ basis``, mean squared length 1."""

    center: Float[Tensor, " d"]
    basis: Float[Tensor, "d r"]


def column_scales(x: Float[Tensor, "n d"], share: Float[Tensor, " n"]) -> list[Tensor]:
    """What columns may be multiplied by: 1, and where their spreads are unlike one over those."""
    spread, as_they_are = (share @ (x - share @ x).square()).sqrt(), torch.ones_like(x[0])
    varies = spread > 16 * torch.finfo(torch.float32).eps * x.abs().amax(0)  # not by rounding alone
    unlike = (spread[varies] / spread[varies].median()).log().abs() > math.log(UNLIKE)
    if not bool(unlike.any()):
        return [as_they_are]
    return [as_they_are, torch.where(varies, 1 / spread, 0.0)]


def principal_coordinates(
    x: Float[Tensor, "n d"], columns: Float[Tensor, " d"], share: Float[Tensor, " n"]
) -> tuple[Coordinates, Float[Tensor, "n r"]]:
    """Directions in which rows of scaled columns differ (n - 1 at most), and the rows in them."""
    center = share @ x
    z = (x - center) * columns
    scale = float((share @ z.square().sum(1)).sqrt())
    if scale > 0:
        z = z / scale
    wide, part = z.shape[1] > z.shape[0], z * share.sqrt()[:, None]
    values, vectors = torch.linalg.eigh(part @ part.T if wide else part.T @ part)
    kept = values > 1e-10 * values[-1].clamp_min(1e-10)  # constant columns have no direction
    vectors = vectors[:, kept]
    if wide:
        vectors = part.T @ (vectors / values[kept].sqrt())
    return Coordinates(center, vectors * columns[:, None] / (scale or 1.0)), z @ vectors


class Problem:
    """m logistic regressions on the same rows, each without the weight it has ``held`` out.

    Their parameters are (m, c, r + 1), the intercepts last: rows have a last column of ones.
    """

    def __init__(
        self,
        rows: Float[Tensor, "n r"],
        codes: Int[Tensor, " n"],
        classes: int,
        held: Bool[Tensor, "n m"] | Float[Tensor, "n m"],
        weight: Float[Tensor, " n"],
    ) -> None:
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self.codes, self.classes, self.weight, self.held = codes, classes, weight, held.double()
        kept = (self.weight[:, None] - self.held).T
        self.few = (1 / kept.sum(1, keepdim=True)).to(rows)  # one row's share: the pseudo-row's
        self.shares = (kept / kept.sum(1, keepdim=True)).to(rows)  # (m, n) of each model's loss

    def of(self, rows: Int[Tensor, " s"]) -> Problem:
        """The same of some rows; in the order of their folds a pass skips who has them held out."""
        parts = self.rows[rows, :-1], self.codes[rows]
        return Problem(*parts, self.classes, self.held[rows], self.weight[rows])

    def loss_and_gradient(self, weights: Tensor, l2: float) -> tuple[float, Tensor]:
        """Summed over the models."""
        log_prior = weights[..., -1].log_softmax(1)
        penalty = 0.5 * l2 * float(weights[..., :-1].square().sum(dtype=torch.float64))
        loss, gradient = penalty - float((self.few * log_prior).mean(1).sum()), l2 * weights
        gradient[..., -1] = self.few * (log_prior.exp() - 1 / self.classes)
        block = max(_ELEMENTS // weights[..., 0].numel(), 1)
        parts = (self.rows.split(block), self.codes.split(block), self.shares.split(block, 1))
        for rows, codes, shares in zip(*parts, strict=True):
            at = (shares > 0).any(1).nonzero()[:, 0]  # the models that look at these rows
            log_p, own = log_probs(weights[at], rows), codes.expand(len(at), 1, -1)
            shares = shares[at, None]
            loss -= float((log_p.gather(1, own) * shares).sum(dtype=torch.float64))
            error = log_p.exp_().mul_(shares).scatter_add_(1, own, -shares)
            slope = product(error.flatten(0, 1), rows.T)
            gradient.index_add_(0, at, slope.view(len(at), self.classes, -1))
        return loss, gradient

    def descend(self, start: Tensor, l2: float, steps: int, tolerance: float = 1e-5) -> Tensor:
        """L-BFGS in coordinates where the curvature, about h σ² + λ at ``start``, is 1.

        h is the mean of p (1 - p) over classes: 1/c at W = 0, less where the answers are sure.
        """
        some = self.rows[:: len(self.rows) // _BLOCK + 1]
        sure = log_probs(start, some).exp_().square().sum(1).mean()
        h = ((1 - sure) / max(self.classes - 1, 1)).clamp_min(1e-6)
        curvature = self.rows.square().mean(0) * h
        curvature[:-1] += l2
        unit = curvature.rsqrt()

        def objective(v: Vector) -> tuple[float, Vector]:
            weights = torch.from_numpy(v).view_as(start).to(start) * unit
            loss, gradient = self.loss_and_gradient(weights, l2)
            return loss, (gradient * unit).double().flatten().numpy()

        stops = {"maxiter": steps, "ftol": tolerance, "gtol": 1e-7}
        found = minimum(objective, (start / unit).double().flatten().numpy(), stops)
        return torch.from_numpy(found.x).view_as(start).to(start) * unit

    def out_of_fold(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each row held out, what the model says, which row, and how much of its weight."""
        fold, row = self.held.T.nonzero(as_tuple=True)
        own = [log_probs(w[None], self.rows[row[fold == f]])[0].T for f, w in enumerate(weights)]
        return torch.cat(own).double(), row, self.held[row, fold]


def log_probs(weights: Float[Tensor, "m c r1"], rows: Float[Tensor, "n r1"]) -> Tensor:
    """(m, c, n): along a last axis of few classes a softmax is slow."""
    z = product(weights.flatten(0, 1), rows)
    return z.view(*weights.shape[:2], len(rows)).log_softmax(1)


class PathFit(NamedTuple):
    """What cross-validation chose, the fold models there, and what they say of held-out rows."""

    l2: float
    temperature: float
    loss: float  # calibrated, out of fold
    weights: Float[Tensor, "m c r1"]
    log_probs: Float[Tensor, "n c"]  # out of fold, at T = 1


def fit_path(problem: Problem, given: float | None = None) -> PathFit:
    """Lower λ by decades until the calibrated out-of-fold loss has risen, then once in between.

    With a ``given`` λ the path leads there. Of many rows some choose λn, which is the same for all,
    and where all begin: each fold's model has seen none of the fold's rows.
    """
    rows, count = problem.rows, problem.classes
    enough = min(len(rows), max(CHOOSING, 20 * count))
    some, ratio = problem.of(torch.linspace(0, len(rows) - 1, enough).long()), enough / len(rows)
    ends, losses, half = list[Tensor](), list[float](), 1 if ratio == 1 else 2
    weights = rows.new_zeros(len(problem.shares), count, rows.shape[1])
    for l2 in PATH if given is None else (v for v in PATH if v * ratio > given):
        weights = some.descend(weights, l2, STEPS // half)
        if given is None:
            ends.append(weights)
            log_probs, row, weight = some.out_of_fold(weights)
            losses.append(calibrated(log_probs, some.codes[row], weight)[1])
            if len(losses) > 2 and losses[-1] > min(losses[:-1]) - LEAST_GAIN:
                break
    if given is None:
        at = int(np.argmin(losses))
        given, weights = _vertex(at, losses) * ratio, ends[at]
    weights = problem.descend(weights, given, LAST // half)
    log_probs, row, weight = problem.out_of_fold(weights)
    found = calibrated(log_probs, problem.codes[row], weight)
    log_probs *= (weight / problem.weight[row])[:, None]
    own = log_probs.new_zeros(len(rows), count).index_add_(0, row, log_probs)
    return PathFit(given, *found, weights, own)


def calibrated(
    log_probs: Float[Tensor, "n c"],
    codes: Int[Tensor, " n"],
    weight: Float[Tensor, " n"] | None = None,
) -> tuple[float, float]:
    """T and the mean loss there, with a normal prior of deviation 1/2 on log T.

    Half a pseudo-row is as the others but of any class: n rows that were all right do not show that
    the next one will be.
    """
    weight = torch.ones(len(codes)).double() if weight is None else weight
    n, enough = float(weight.sum()), max(MAX_ROWS, 20 * log_probs.shape[1])
    rows = torch.linspace(0, len(codes) - 1, min(len(codes), enough)).long()
    share, below = weight[rows] / weight[rows].sum(), log_probs[rows].double()
    below = below - below.amax(1, keepdim=True)
    own, any_class = share @ below.gather(1, codes[rows, None])[:, 0], share @ below.mean(1)

    def loss(u: float) -> float:
        by = math.exp(-u)
        norm = float(share @ (below * by).exp_().sum(1).log_())
        return 2 * u**2 / n + norm - by * float(own) + 0.5 * (norm - by * float(any_class)) / n

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
    each training row, calibrated; ``folds_`` (n,), in which fold (most of) each row was.

    >>> X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]])
    >>> head = LinearClassifier(folds=3).fit(X, ["a", "a", "a", "b", "b", "b"])
    >>> head.predict([[0.3], [0.9]])
    array(['a', 'b'], dtype='<U1')
    """

    def __init__(self, l2: float | None = None, folds: int = 5) -> None:
        self.l2 = l2
        self.folds = folds

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit rows ``X`` with labels ``y`` (n,); soft labels are refused.

        A row of weight 3 is three copies, which are dealt over the folds as rows are; rows that are
        equal are one row of their weights' sum, and one of weight 0 is not there.
        """
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
        first, weight, of = distinct_rows(x.cpu(), labels.codes, as_weights(sample_weight, len(x)))
        used, codes = labels.codes[first].unique(return_inverse=True)
        rows, count = x.cpu()[first], len(used)
        held = dealt(codes, weight, min(self.folds, max(int(weight.sum()), 2)))
        share, by_fold = weight / weight.sum(), held.argmax(1).argsort(stable=True)
        ways = [principal_coordinates(rows, c, share) for c in column_scales(rows, share)]
        problems = [Problem(z.float(), codes, count, held, weight).of(by_fold) for _, z in ways]
        paths = [fit_path(problem, self.l2) for problem in problems]
        (coordinates, z), path = min(zip(ways, paths, strict=True), key=lambda way: way[1].loss)
        whole = Problem(z.float(), codes, count, torch.zeros_like(held[:, :1]), weight)
        start = path.weights.mean(0, keepdim=True)
        weights = whole.descend(start, path.l2, LAST << (len(rows) <= MAX_ROWS), 1e-6)[0].T
        coef = coordinates.basis @ weights[:-1].double()
        self.classes_: NDArray[Any] = labels.classes[used.numpy()]
        self.l2_, self.temperature_ = path.l2, path.temperature
        self.coef_: Vector = coef.T.contiguous().numpy()
        self.intercept_: Vector = (weights[-1] - coordinates.center @ coef).numpy()
        own = (path.log_probs / path.temperature).log_softmax(1)[by_fold.argsort()[of]]
        out, fold = of < 0, held.argmax(1)[of]
        if bool(out.any()):  # a row without weight was not seen at all
            own[out], fold[out] = as_tensor(self.predict_log_proba(x[out]), "X").cpu(), -1
        self.oof_log_proba_, self.folds_ = own.numpy(), fold.numpy()
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


def distinct_rows(x: Tensor, codes: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of weight above 0, equal ones of one class as one: the place of each, its weight, and
    which of them every row is, -1 for none. Where all weigh 1 and differ they stay as they came.
    """
    kept = (weight > 0).nonzero()[:, 0]
    keys = torch.cat([codes[kept, None].to(x), x[kept] + 0.0], 1).numpy()  # -0 is 0
    of = torch.full((len(x),), -1)
    if bool((weight[kept] == 1).all()) and len({hash(row.tobytes()) for row in keys}) == len(keys):
        of[kept] = torch.arange(len(kept))
        return kept, weight[kept], of
    _, first, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    of[kept] = torch.from_numpy(number.reshape(-1))
    sums = np.bincount(number.reshape(-1), weight[kept].numpy())
    return kept[torch.from_numpy(first)], torch.from_numpy(sums), of


def dealt(codes: Tensor, weight: Tensor, count: int) -> Float[Tensor, "n f"]:
    """How much of each row is in which fold: copies, in the order of ``folds_of``, fold by fold.

    >>> dealt(torch.tensor([0, 0]), torch.tensor([1.0, 3.0]).double(), 2).sum(0)
    tensor([2., 2.], dtype=torch.float64)
    """
    order = folds_of(codes, len(codes)).argsort()
    unit = min(1.0, float(weight.sum()) / count)
    end = (weight[order].cumsum(0) / unit)[:, None]

    def before(place: Tensor) -> Tensor:
        turns = (place / count).floor()
        return turns + (place - turns * count - torch.arange(count)).clamp(0, 1)

    held = torch.empty(len(codes), count, dtype=torch.float64)
    held[order] = unit * (before(end) - before(end - weight[order, None] / unit))
    return held


def _vertex(at: int, losses: list[float]) -> float:
    """λ at the lowest point of the parabola through the lowest loss and its two sides."""
    if not 0 < at < len(losses) - 1:
        return PATH[at]
    before, here, after = losses[at - 1 : at + 2]
    bend = before - 2 * here + after
    return float(PATH[at] * 10 ** (0.5 * (after - before) / bend if bend > 0 else 0.0))
