r"""The space in which rows are compared: one linear map before the distances.

.. math:: x \mapsto (x - \mu) A, \qquad \text{then, where asked,} \quad z \mapsto z / \|z\|

============= ============================ ================================== ====
name          :math:`\mu`                   :math:`A`                          unit
============= ============================ ================================== ====
raw           0                            I                                  no
unit          0                            I                                  yes
centered-unit the mean                     I                                  yes
standardized  the mean                     1 / standard deviation             no
whitened      the mean                     :math:`S^{-1/2}`                   yes
learned       the mean                     :math:`S^{-1/2} Q B`               yes
============= ============================ ================================== ====

with :math:`S = (1 - s) W + s \frac{\operatorname{tr} W}{d} I`, the within-class covariance W shrunk
toward a sphere (s > 0, so more columns than rows are no obstacle), or toward its own diagonal, and
then without unit rows. The last two look at the labels:
rows they were fitted on seem better separated than new rows will be.
:mod:`vicinal.neighbors.learned` has Q and B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice
from vicinal.neighbors.distances import unit_rows

SPACES = ("raw", "unit", "centered-unit", "standardized", "whitened", "learned")  # simplest first
LABELED = ("whitened", "learned")
WIDE = 2  # times as many columns as rows: then the span of the rows is worked in
Labels = Int[Tensor, " n"] | Float[Tensor, "n c"]


@dataclass(frozen=True, eq=False)
class Space:
    """x -> (x - shift) @ matrix, then unit rows; None leaves a step out, and raw rows as they are.

    ``matrix`` is (d, r), or (d,) for a diagonal one.

    >>> Space("unit", unit=True)(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    name: str = "raw"
    shift: Float[Tensor, " d"] | None = None
    matrix: Float[Tensor, "d r"] | Float[Tensor, " d"] | None = None
    unit: bool = False

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
        if self.shift is not None:
            x = x - self.shift.to(x)
        if self.matrix is not None:
            x = x * self.matrix.to(x) if self.matrix.ndim == 1 else x @ self.matrix.to(x)
        return unit_rows(x) if self.unit else x

    @property
    def fitted(self) -> bool:
        """Was anything learned from rows?"""
        return self.shift is not None

    @property
    def labeled(self) -> bool:
        """Did it look at the labels of the rows it was fitted on?"""
        return self.name in LABELED


RAW = Space()


def plain_space(name: str, x: Float[Tensor, "n d"]) -> Space:
    """One of the spaces that no label is needed for.

    >>> plain_space("standardized", torch.tensor([[0.0, 7.0], [2.0, 7.0]])).matrix
    tensor([1., 0.])
    """
    check_choice(name, "space", [known for known in SPACES if known not in LABELED])
    if name == "raw":
        return RAW
    if name == "unit":
        check_directions(name, x)
        return Space(name, unit=True)
    mean = x.mean(0, dtype=torch.float64)
    if name == "centered-unit":
        check_directions(name, x)
        return Space(name, mean.to(x), unit=True)
    spread = (x.double() - mean).square().mean(0).sqrt()
    # A constant column says nothing; its rounding must not be blown up to a column of noise.
    varies = spread > 16 * torch.finfo(x.dtype).eps * mean.abs()
    if not bool(varies.any()):
        raise InputError(
            "`space`='standardized' needs a column that varies: all are constant, so all rows are "
            "the same. Check the embeddings, or pass space='raw'."
        )
    scale = torch.where(varies, 1 / spread.masked_fill(~varies, 1.0), 0.0)
    return Space(name, mean.to(x), scale.to(x))


class Whitening(NamedTuple):
    """How S is made of W: shrunk by ``shrinkage``, toward a sphere or each column's own spread.

    Toward a sphere is for embeddings, whose columns are of one kind, and unit rows follow. Toward
    the columns is for measurements in units of their own; their lengths are kept.
    """

    shrinkage: float = 0.6
    toward: str = "sphere"  # | "columns"


USUAL = Whitening()


def whitened_space(x: Float[Tensor, "n d"], labels: Labels, whitening: Whitening = USUAL) -> Space:
    r"""The space in which the shrunk within-class covariance S is a sphere.

    Any root of :math:`S^{-1}` gives the same distances; this is the one of Cholesky, or of far more
    columns than rows the symmetric one.

    >>> x = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    >>> space = whitened_space(x, torch.tensor([0, 0, 1, 1]), Whitening(0.1))
    >>> bool(space.matrix[0, 0] > 3 * space.matrix[1, 1])  # noise lies along the second column
    True
    """
    check_choice(whitening.toward, "toward", ("sphere", "columns"))
    if not 0 < whitening.shrinkage <= 1:
        raise InputError(f"`shrinkage` must be above 0 and at most 1, got {whitening.shrinkage!r}.")
    wide = labels.ndim == 1 and x.shape[1] > WIDE * len(x)
    if wide:
        mean, residual = class_residuals(x, labels)
        own, within = residual.double().square().mean(0), None
    else:
        mean, within = within_covariance(x, labels)
        own = within.diagonal()
    s, unit = whitening.shrinkage, whitening.toward == "sphere" and len(mean) > 1
    rounding = (16 * torch.finfo(x.dtype).eps * x.abs().max().double()).square()
    if float(own.mean()) <= float(rounding):  # classes of one row, or equal ones: nothing is noise
        return Space("whitened", mean.to(x), torch.eye(len(mean)).to(x), unit)
    target = own.mean().expand(len(own))
    if whitening.toward == "columns":
        varies = own > (16 * torch.finfo(x.dtype).eps * mean).square()
        target = torch.where(varies, own, target)  # a constant column is left in the mean's unit
    if within is None:
        return Space("whitened", mean.to(x), _wide_root(residual, target, s), unit)
    root = torch.linalg.cholesky((1 - s) * within + s * target.diag())
    eye = torch.eye(len(mean), dtype=root.dtype, device=root.device)
    inverse = torch.linalg.solve_triangular(root, eye, upper=False)
    return Space("whitened", mean.to(x), inverse.T.to(x).contiguous(), unit)


def _wide_root(
    residual: Float[Tensor, "n d"], target: Float[Tensor, " d"], s: float
) -> Float[Tensor, "d d"]:
    r"""A root of :math:`S^{-1}` by the n eigenvalues that W has at most.

    With :math:`R = X \operatorname{diag}(t)^{-1/2}` and :math:`R R^\top / n = V \Lambda V^\top`,

    .. math:: M^{-1/2} = s^{-1/2} I - \frac1n R^\top V \frac{1 - s}
              {\sqrt{s m} (\sqrt s + \sqrt m)} V^\top R, \qquad m = s + (1 - s) \Lambda
    """
    scale = target.rsqrt().to(residual)
    rows = residual * scale
    values, vectors = torch.linalg.eigh((rows @ rows.T).double() / len(rows))
    root = (s + (1 - s) * values.clamp_min(0)).sqrt()
    bend = (1 - s) / (s**0.5 * root * (s**0.5 + root)) / len(rows)
    matrix = rows.T @ (((vectors * bend) @ vectors.T).to(rows) @ rows)
    matrix = matrix.neg_()
    matrix.diagonal().add_(s**-0.5)
    return matrix.mul_(scale[:, None])


def span_coordinates(x: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
    """Of far more columns than rows: the rows in a basis of their span; else the rows as they are.

    All lengths and products are kept, so a space that asks for no more finds what it found in the
    columns. For rows that are all at hand: a new one has a part outside.

    >>> span_coordinates(torch.tensor([[3.0, 0.0, 4.0]])).abs()
    tensor([[5.]])
    """
    if x.shape[1] <= WIDE * len(x):
        return x
    return torch.linalg.qr(x.double().T, mode="r").R.T.to(x).contiguous()


def class_residuals(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " d"], Float[Tensor, "n d"]]:
    """The mean, and each row less the mean of its class."""
    mean = x.mean(0, dtype=torch.float64)
    rows = x - mean.to(x)
    counts, sums = class_sums(rows, labels)
    means = (sums / counts[:, None]).to(rows)
    return mean, rows - means[labels.unique(return_inverse=True)[1]]


def within_covariance(
    x: Float[Tensor, "n d"], labels: Labels
) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    r"""The mean and :math:`W = \frac1n \sum_i \sum_c Y_{ic} (x_i - \mu_c)(x_i - \mu_c)^\top`.

    In float64, but for the products of float32 rows, which are centered first.
    """
    # From residuals, not as total less between: collapsed classes would drown in the rounding.
    if labels.ndim == 1:
        mean, residual = class_residuals(x, labels)
        return mean, _products(residual) / len(x)
    mean = x.mean(0, dtype=torch.float64)
    rows = x - mean.to(x)
    counts, sums = class_sums(rows, labels)
    means = sums / counts[:, None]
    shares = labels[:, labels.sum(0) > 0].double()
    residual = rows - (shares @ means).to(rows)
    between = means.T @ (counts.diag() - shares.T @ shares) @ means
    return mean, (_products(residual) + (between + between.T) / 2) / len(x)


def _products(rows: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Of the columns with one another, in float64 where float32 would lose them to its range."""
    reach = float(rows.abs().max()) if rows.dtype == torch.float32 else 1.0
    rows = rows if 2.0**-56 < reach < 2.0**56 else rows.double()
    return (rows.T @ rows).double()


def class_sums(
    rows: Float[Tensor, "n d"], labels: Labels
) -> tuple[Float[Tensor, " c"], Float[Tensor, "c d"]]:
    """How many rows each class that is present has, and their sum; float64."""
    if labels.ndim == 2:
        counts = labels.sum(0, dtype=torch.float64)
        sums = (labels.to(rows).T @ rows).double()
        return counts[counts > 0], sums[counts > 0]
    used, codes = labels.unique(return_inverse=True)
    sums = torch.zeros(len(used), rows.shape[1], dtype=torch.float64, device=rows.device)
    return torch.bincount(codes).double(), sums.index_add_(0, codes, rows.double())


def check_directions(name: str, x: Tensor) -> None:
    """Of a single column only the sign has a direction."""
    if x.shape[1] < 2:
        raise InputError(
            f"`space`={name!r} keeps directions only, and rows of one column have none but their "
            "sign. Pass space='raw' or 'standardized'."
        )
