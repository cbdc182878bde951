"""The linear view of a support: fitted once, and asked about rows it has not seen.

One fit serves everything: the rows of logistic regression in the table of heads, the linear part of
the head that is kept, and what is said of the support's own rows, out of fold. Whether columns are
standardized first (measurements in units of their own) or keep their proportions (embeddings) is
what out-of-fold rows prefer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.confidence.linear import LinearClassifier
from vicinal.neighbors.spaces import plain_space

LOGISTIC_ROWS = 20_000
TRIED_ROWS, TRIED_FOLDS = 600, 3  # on which both scalings are tried


@dataclass(frozen=True, eq=False)
class LinearView:
    """Calibrated log-probabilities; the support's are out of fold, ``calib`` its labeled rows."""

    head: LinearClassifier
    support: Float[Tensor, "n c"]
    query: Float[Tensor, "m c"]
    calib: Float[Tensor, "h c"] | None
    notes: tuple[str, ...] = ()


def linear_view(
    support: tuple[Float[Tensor, "n d"], Int[Tensor, " n"]],
    query: Float[Tensor, "m d"] | None,
    calib: Float[Tensor, "h d"] | None,
    *,
    seed: int,
) -> LinearView:
    """Fit the support's rows, or a sample of many; every class has a row in it.

    Parameters
    ----------
    support : rows as they came, and their codes.
    query : rows to be judged; None: the support itself, out of fold.
    calib : labeled held-out rows.
    seed : of the sample.
    """
    x, codes = support
    rows = sample(codes, LOGISTIC_ROWS, seed)
    head = better_linear(x[rows], codes[rows], seed)
    out_of_fold, notes = head.oof_log_proba_, tuple[str, ...]()
    if len(rows) < len(x):
        notes = (f"fitted on {len(rows):,} of {len(x):,} support rows",)
        out_of_fold = head.predict_log_proba(x.numpy())  # the other rows were not seen at all
        out_of_fold[rows.numpy()] = head.oof_log_proba_
        head.oof_log_proba_ = out_of_fold
    own = torch.from_numpy(out_of_fold)
    asked = own if query is None else head.predict_log_proba(query)
    return LinearView(
        head, own, asked, None if calib is None else head.predict_log_proba(calib), notes
    )


def sample(codes: Int[Tensor, " n"], most: int, seed: int) -> Int[Tensor, " s"]:
    """Positions of at most so many rows, drawn at random, the first of every class among them.

    >>> sample(torch.tensor([0, 0, 0, 1]), 2, 0)
    tensor([0, 3])
    """
    if len(codes) <= most:
        return torch.arange(len(codes))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(codes)))
    used, code = codes.unique(return_inverse=True)
    first = torch.full((len(used),), len(codes))
    first = first.scatter_reduce(0, code, torch.arange(len(codes)), "amin")
    rest = order[~torch.isin(order, first)]
    return torch.cat([first, rest])[: max(most, len(first))].sort().values


def better_linear(x: Float[Tensor, "n d"], codes: Int[Tensor, " n"], seed: int) -> LinearClassifier:
    """Of rows in proportion, or of standardized columns: what out-of-fold rows (of many some) say.

    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 1e4])
    >>> codes = (x[:, 0] > 0).long()
    >>> (better_linear(x, codes, 0).predict(x) == codes).double().mean() > 0.95
    tensor(True)
    """
    if x.shape[1] < 2 or bool((x == x[0]).all()):
        return fitted_linear(x, codes, columns=False)  # there are no proportions
    rows = sample(codes, TRIED_ROWS, seed)
    own = codes[rows].unique(return_inverse=True)[1][:, None].numpy()
    losses = {}
    for columns in (False, True):
        tried = fitted_linear(x[rows], codes[rows], columns=columns, folds=TRIED_FOLDS)
        losses[columns] = -float(np.take_along_axis(tried.oof_log_proba_, own, 1).mean())
    return fitted_linear(x, codes, columns=losses[True] < losses[False])


def fitted_linear(
    x: Float[Tensor, "n d"], codes: Int[Tensor, " n"], *, columns: bool, folds: int = 5
) -> LinearClassifier:
    """Logistic regression of the rows, or (``columns``) of their standardized columns."""
    labels: NDArray[np.int64] = codes.numpy()
    if not columns:
        return LinearClassifier(folds=folds).fit(x, labels)
    scaled = plain_space("standardized", x.double())
    assert scaled.shift is not None
    assert scaled.matrix is not None
    head = LinearClassifier(folds=folds).fit(scaled(x.double()), labels)
    head.coef_ = head.coef_ * scaled.matrix.numpy()  # W'((x - μ)/σ) = (W/σ)'x - (W/σ)'μ
    head.intercept_ = head.intercept_ - head.coef_ @ scaled.shift.numpy()
    return head
