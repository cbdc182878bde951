r"""Classes as Gaussians of one covariance: three ways to be far from all of them.

.. math::
    M(x) = \min_c (x-\mu_c)^\top \Sigma_w^{-1} (x-\mu_c) \qquad
    M_0(x) = (x-\mu)^\top \Sigma_t^{-1} (x-\mu) \qquad
    R(x) = \|(I - P P^\top)(x - \mu)\|

*Mahalanobis* (Lee et al. 2018), *relative Mahalanobis* :math:`M - M_0` (Ren et al. 2021) and ViM's
*residual* (Wang et al. 2022): what is left beside the principal directions P that carry 90 % of the
variance. :math:`\Sigma_w` is the covariance within classes, :math:`\Sigma_t` that of all rows,
each shrunk toward a multiple of the identity (OAS, Chen et al. 2010), so that more dimensions than
rows and columns that never vary are no obstacle.

Counts, sums and scatter add up: what rows contributed can be taken out again, which makes
cross-fitting as cheap as one fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import as_matrix
from vicinal.evaluation.inputs import as_classes, by_class, row_order

PRINCIPAL = 0.9  # of the variance
EXACTLY = 512  # dimensions
LEAST = 1e-6  # shrinkage: a column that never varied stays invertible


class Moments(NamedTuple):
    """Of some rows, about a common center: rows per class, their sums, Σ x xᵀ."""

    counts: Float[Tensor, " c"]
    sums: Float[Tensor, "c d"]
    scatter: Float[Tensor, "d d"]

    def without(self, gone: Moments) -> Moments:
        return Moments(*(mine - theirs for mine, theirs in zip(self, gone, strict=True)))


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """Class means and the two covariances, about a common center; factored when first asked."""

    center: Float[Tensor, " d"]
    means: Float[Tensor, "c d"]
    mean: Float[Tensor, " d"]  # of all rows
    within: Float[Tensor, "d d"]
    total: Float[Tensor, "d d"]
    counts: Float[Tensor, " c"]
    classes: Int[Tensor, " c"]  # the codes that have rows

    @property
    def rows(self) -> float:
        return float(self.counts.sum())

    @cached_property
    def _within(self) -> tuple[Float[Tensor, "d d"], float]:
        return _factor(self.within, self.rows)

    @cached_property
    def _total(self) -> tuple[Float[Tensor, "d d"], float]:
        return _factor(self.total, self.rows)

    @cached_property
    def _principal(self) -> Float[Tensor, "d r"]:
        """The fewest directions that carry the principal share of the variance."""
        wide = len(self.total) > EXACTLY  # float32, twice as fast, tells directions well enough
        try:
            values, vectors = torch.linalg.eigh(self.total.float() if wide else self.total)
        except RuntimeError:  # of few rows it need not converge in so few digits
            values, vectors = torch.linalg.eigh(self.total)
        values, vectors = values.clamp_min(0).flip(0), vectors.flip(1)
        needed = int((values.cumsum(0) < PRINCIPAL * values.sum()).sum()) + 1
        return vectors[:, : min(needed, len(values) - 1)].double().contiguous()

    def mahalanobis(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Squared, to the nearest class mean."""
        return self._gaps(rows)[2].amin(1)

    def _gaps(self, rows: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, "n c"]]:
        """Rows and class means whitened, and their squared distances."""
        map_, means = self._within[0].to(rows.dtype), self.means @ self._within[0]
        white = (rows - self.center.to(rows.dtype)) @ map_
        squares = white.double().square().sum(1, keepdim=True) + means.square().sum(1)
        gaps = squares - 2 * (white @ means.T.to(rows.dtype)).double()
        return white.double(), means, gaps.clamp_min(0)

    def left_out(self, rows: Float[Tensor, "n d"], codes: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        r"""``mahalanobis`` of rows that are in the fit, each as if it had not been.

        Taking a row at :math:`r` from its class mean out changes the covariance by
        :math:`b\,rr^\top`, so by Sherman and Morrison, with :math:`q = r^\top\Sigma^{-1}r`,
        :math:`v^\top\Sigma'^{-1}v = v^\top\Sigma^{-1}v + b\,(v^\top\Sigma^{-1}r)^2/(1-bq)`.
        """
        white, means, gaps = self._gaps(rows)
        at = torch.searchsorted(self.classes, codes)
        counts, r = self.counts[at], white - means[at]
        q, alone = r.square().sum(1), counts < 2
        grown = torch.where(alone, 1.0, counts / (counts - 1))
        b = (1 - self._within[1]) * grown / self.rows
        slack = (1 - b * q).clamp_min(1e-9)
        across = (white * r).sum(1, keepdim=True) - r @ means.T
        gaps = gaps + across.square() * (b / slack)[:, None]
        own = torch.where(alone, torch.inf, grown.square() * q / slack)
        found = gaps.scatter(1, at[:, None], own[:, None]).amin(1)
        return torch.where(found.isinf(), q, found)

    def left_out_overall(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """``overall`` of rows that are in the fit, each as if it had not been."""
        q, grown = self.overall(rows), self.rows / max(self.rows - 1, 1)
        return grown**2 * q / (1 - (1 - self._total[1]) * grown / self.rows * q).clamp_min(1e-9)

    def overall(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Squared, to the mean of all rows under their whole covariance."""
        x = rows - (self.center + self.mean).to(rows.dtype)
        return (x @ self._total[0].to(rows.dtype)).double().square().sum(1)

    def residual(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The length of what the principal directions do not explain."""
        x, p = rows - (self.center + self.mean).to(rows.dtype), self._principal.to(rows.dtype)
        return (x - (x @ p) @ p.T).double().norm(dim=1)


def moments(
    rows: Float[Tensor, "n d"], codes: Int[Tensor, " n"], classes: int, center: Float[Tensor, " d"]
) -> Moments:
    """What the Gaussians need of these rows."""
    x = rows.double() - center
    sums = torch.zeros(classes, x.shape[1], dtype=torch.float64).index_add_(0, codes, x)
    return Moments(torch.bincount(codes, minlength=classes).double(), sums, x.T @ x)


def gaussians_of(found: Moments, center: Float[Tensor, " d"]) -> ClassGaussians:
    """From moments; a class without rows has no Gaussian.

    >>> x, y = torch.tensor([[0.0], [2.0], [10.0], [12.0]]), torch.tensor([0, 0, 1, 1])
    >>> fitted = gaussians_of(moments(x, y, 2, x.mean(0).double()), x.mean(0).double())
    >>> fitted.mahalanobis(torch.tensor([[1.0], [13.0]]))
    tensor([0., 4.], dtype=torch.float64)
    """
    present = found.counts > 0
    counts, sums, n = found.counts[present], found.sums[present], float(found.counts.sum())
    means, mean = sums / counts[:, None], sums.sum(0) / n
    total = found.scatter / n - torch.outer(mean, mean)
    spread = found.scatter / n - (means * (counts / n)[:, None]).T @ means
    return ClassGaussians(center, means, mean, spread, total, counts, present.nonzero().flatten())


def class_gaussians(
    rows: Float[Tensor, "n d"], codes: Int[Tensor, " n"], classes: int
) -> ClassGaussians:
    """The Gaussians of labeled rows."""
    center = rows.double().mean(0)
    return gaussians_of(moments(rows, codes, classes, center), center)


def gaussian_scores(support: Any, labels: Any, query: Any) -> dict[str, Tensor]:
    """``"relative_mahalanobis"`` and ``"vim"``, its residual alone, under shrunk covariances."""
    x, rows = as_matrix(support, "support").double(), as_matrix(query, "query").double()
    x, y = by_class(x, as_classes(labels, len(x), "labels"))
    names, group = y.unique(return_inverse=True)
    fitted = class_gaussians(x, group, len(names))
    place = torch.from_numpy(row_order(rows.numpy()))
    ordered = rows[place.argsort()]
    relative = fitted.mahalanobis(ordered) - fitted.overall(ordered)
    return {"relative_mahalanobis": relative[place], "vim": fitted.residual(ordered)[place]}


def _factor(covariance: Float[Tensor, "d d"], rows: float) -> tuple[Float[Tensor, "d d"], float]:
    """What whitens rows from the right, and how much of the covariance is the identity's."""
    d, eye = len(covariance), torch.eye(len(covariance), dtype=torch.float64)
    level = covariance.diagonal().mean().clamp_min(0)
    squares, trace = covariance.square().sum(), level * d
    spread = (rows + 1) * (squares - trace.square() / d)  # scikit-learn's form of the formula
    wanted = squares + trace.square()
    share = float((wanted / spread).clamp(LEAST, 1)) if float(spread) > 0 else 1.0
    factor, failed = torch.linalg.cholesky_ex((1 - share) * covariance + share * level * eye)
    if bool(failed) or not bool(factor.diagonal().gt(0).all()):  # nothing varies but by rounding
        return eye / (level.sqrt() if float(level) > 0 else 1.0), 1.0
    return torch.linalg.solve_triangular(factor, eye, upper=False).T.contiguous(), share
