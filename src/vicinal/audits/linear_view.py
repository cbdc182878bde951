"""The linear view of a support: fitted once, and asked about rows it has not seen.

One fit serves everything: the rows of logistic regression in the table of heads, the linear part of
the head that is kept, and what is said of the support's own rows, out of fold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.confidence.linear import LinearClassifier

LOGISTIC_ROWS = 20_000


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

    Rows are as they came; without a query the support itself is asked about, out of fold.
    """
    x, codes = support
    rows = sample(codes, LOGISTIC_ROWS, seed)
    head = LinearClassifier().fit(x[rows], codes[rows].numpy())
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
