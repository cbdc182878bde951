"""Folds: what is fitted is never scored on the rows it was fitted on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vicinal.audits.inputs import Sets, warn
from vicinal.checks import InputError
from vicinal.confidence.support import Evidence
from vicinal.neighbors.neighborhood import Neighborhood

MIN_FOLD_ROWS = 50  # labeled rows; with fewer the fit is said to be weak


class Fold(NamedTuple):
    """Fit on ``evidence``; score the query rows ``scored``, whose neighbors are here in float64."""

    evidence: Evidence
    scored: Int[Tensor, " s"]
    neighborhood: Neighborhood
    fitted_on: Int[Tensor, " f"] | None = None  # query rows in the evidence, if they are query rows


class Split(NamedTuple):
    """How what is fitted is kept from the rows it is judged on, with the sentence that says so.

    ``held_out`` are all rows a fit may look at, ``folds`` which of them serve which query rows.
    """

    held_out: Evidence
    folds: tuple[Fold, ...]
    how: str


def split_of(
    sets: Sets,
    neighborhood: Neighborhood,
    graph: Neighborhood,
    calib: Neighborhood | None,
    seed: int,
) -> Split:
    """Calibration rows if there are any, else two halves of the query, else leave-one-out."""
    counts = torch.bincount(sets.codes, minlength=len(sets.classes)).double()
    everyone = torch.arange(len(sets.query.rows))
    if sets.calib is not None and calib is not None:
        assert sets.calib.codes is not None
        found = _evidence(calib, sets.calib.codes, counts)
        _check_some(found, "calib")
        how = f"fitted on {len(sets.calib.rows):,} calibration rows"
        return Split(found, (Fold(found, everyone, neighborhood.double()),), how)
    codes = sets.query.codes
    if sets.leave_one_out or codes is None or int((codes >= 0).sum()) < 4:
        found = Evidence(graph, sets.codes, counts, leave_one_out=True)
        whole = Fold(found, everyone, neighborhood.double())
        return Split(found, (whole,), "leave-one-out on the support")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(everyone)))
    halves = (order[: len(order) // 2].sort().values, order[len(order) // 2 :].sort().values)
    folds = tuple(
        Fold(
            _evidence(neighborhood.rows(fit), codes[fit], counts),
            score,
            neighborhood.rows(score).double(),
            fitted_on=fit,
        )
        for fit, score in (halves, halves[::-1])
    )
    for fold in folds:
        _check_some(fold.evidence, "one half of the query")
    smallest = min(len(fold.evidence) for fold in folds)
    if smallest < MIN_FOLD_ROWS:
        warn(
            f"each half of the query has only about {smallest} labeled rows to fit on: pass a "
            "larger query or --calib."
        )
    sizes = " + ".join(f"{len(half):,}" for half in halves)
    held_out = _evidence(neighborhood, codes, counts)
    return Split(held_out, folds, f"2-fold cross-fit on query ({sizes})")


def _evidence(neighborhood: Neighborhood, codes: Tensor, counts: Tensor) -> Evidence:
    """Of the rows whose class the support has."""
    known = (codes >= 0).nonzero().flatten()
    return Evidence(neighborhood.rows(known), codes[known], counts, leave_one_out=False)


def _check_some(evidence: Evidence, where: str) -> None:
    if len(evidence) == 0:
        raise InputError(f"no row of {where} has a label of the support. Check the class names.")
