r"""On which rows the heads are fitted: the query's halves in turn, or support rows left out.

A support row that is left out is as good as a new one, unless the embedding was trained on it or
the support's labels are worse than the query's. So support rows fit the heads wherever held-out
rows do not object: there are mostly more of them, no query row is spent, and a query of a few dozen
labels has enough to judge by. The query objects if eq. 3's NED (with a background of 1/(n+1)) is
likelier at the temperature of its one half, asked about the other, than at the support's own
leave-one-out temperature, by more than two standard errors of the difference. Where it does not
and support rows are few, the linear part is weighed on both: on the support's and on the other
half's. With a calibration set nothing of this is asked: it was given to be fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.heads import Answer, Fold, ned_in_blocks
from vicinal.audits.inputs import Sets, warn
from vicinal.checks import InputError, plural
from vicinal.confidence.blend import blended_log_probs
from vicinal.confidence.ned.fit import least_background
from vicinal.confidence.ned.posterior import NEDParameters, with_prior
from vicinal.confidence.ned_linear import enough_rows
from vicinal.confidence.support import Evidence
from vicinal.labels import log_class_shares
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

OBJECTS = 2.0  # standard errors
MIN_FOLD_ROWS = 50  # labeled rows; with fewer the fit is said to be weak
MOST = 5_000  # rows that are asked, of a half of the query, and of the support
Losses = NDArray[np.float64]


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
        found = replace(found, points=sets.calib.rows[sets.calib.codes >= 0])
        _check_some(found, "calib")
        how = f"fitted on {plural(len(sets.calib.rows), 'calibration row')}"
        return Split(found, (Fold(found, everyone, neighborhood.double()),), how)
    codes = sets.query.codes
    if sets.leave_one_out or codes is None or int((codes >= 0).sum()) < 4:
        found = Evidence(graph, sets.codes, counts, leave_one_out=True)
        whole = Fold(found, everyone, neighborhood.double())
        return Split(found, (whole,), "leave-one-out on the support")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(everyone)))
    halves = (order[: len(order) // 2].sort().values, order[len(order) // 2 :].sort().values)
    near = [neighborhood.rows(half).double() for half in halves]
    folds = tuple(
        Fold(
            _evidence(near[at], codes[halves[at]], counts),
            halves[1 - at],
            near[1 - at],
            fitted_on=halves[at][codes[halves[at]] >= 0],
        )
        for at in (0, 1)
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
    known = codes >= 0
    return Evidence(neighborhood.rows(known), codes[known], counts, leave_one_out=False)


def _check_some(evidence: Evidence, where: str) -> None:
    if len(evidence) == 0:
        raise InputError(f"no row of {where} has a label of the support. Check the class names.")


def fitting_of(facts: Facts) -> Split:
    """The split that heads are fitted by; verdicts are measured on the query's halves as before."""
    split, codes = facts.split, facts.sets.codes
    half = max(len(fold.evidence) for fold in split.folds)
    if split.folds[0].fitted_on is None or len(codes) < half:
        return split
    own = Evidence(facts.graph, codes, split.held_out.counts, leave_one_out=True)
    assert facts.sets.query.codes is not None
    if objects(own, split.folds, facts.sets.query.codes):
        return split
    how = f"fitted on {len(codes):,} support rows, each left out in turn; judged on the query"
    if len(codes) < enough_rows(len(own.counts)):
        how += ", whose halves help each other to weigh a linear part"
        folds = tuple(fold._replace(evidence=own, more=fold.evidence) for fold in split.folds)
    else:
        folds = tuple(fold._replace(evidence=own, fitted_on=None) for fold in split.folds)
    return split._replace(held_out=own, folds=folds, how=how)


def objects(own: Evidence, folds: Sequence[Fold], codes: Int[Tensor, " m"]) -> bool:
    """Whether the query's own temperature, out of fold, is surely better for it than ``own``'s."""
    if own.plain_temperature is None:
        return True  # neighbors of the own class only: the classes have collapsed
    gains = []
    for fold in folds:
        theirs = fold.evidence.some(MOST).plain_temperature
        if theirs is not None:
            known = (codes[fold.scored] >= 0).nonzero()[:, 0][:MOST]
            near, targets = fold.neighborhood.rows(known), codes[fold.scored][known]
            mine, other = (
                _losses(Evidence(near, targets, own.counts, False), fit.temperature)
                for fit in (own.plain_temperature, theirs)
            )
            gains.append(mine - other)
    gain = np.concatenate([*gains, np.zeros(0)])
    return len(gain) > 1 and gain.mean() > OBJECTS * gain.std(ddof=1) / np.sqrt(len(gain))


def _losses(evidence: Evidence, temperature: float) -> Losses:
    count = len(evidence.counts)
    plain = NEDParameters(temperature, 1.0, least_background(evidence))
    parameters = with_prior(plain, evidence.counts, "support")
    log_probs = ned_in_blocks(evidence.neighborhood, count, parameters)[0].double()
    return -log_probs.gather(1, evidence.targets[:, None])[:, 0].numpy()


def left_out_losses(facts: Facts) -> dict[str, Losses]:
    """What the heads lose on support rows left out in turn, where these fit them; else nothing.

    They have fitted their p numbers on n such rows, which flatters each by p/n nats in the mean
    (Akaike): that is added.
    """
    own = facts.fitting.held_out
    if facts.split.held_out.leave_one_out or not own.leave_one_out:
        return {}
    if facts.settings.prior != "support":
        return {}  # their classes are as frequent as in the support
    rows = torch.linspace(0, len(own) - 1, min(len(own), MOST)).long()
    codes = own.targets[rows]
    near: tuple[str, ...] = ("ned", "ned_fitted")
    answers = {name: facts.answers[name] for name in near if name in facts.answers}
    some, count = own.rows(rows).neighborhood, len(own.counts)
    log_probs = {
        name: ned_in_blocks(some, count, answer.parameters[0])[0].double()
        for name, answer in answers.items()
    }
    for name in ("logistic", "logistic_scaled", "ned_linear"):
        if name in facts.answers:
            answers[name] = facts.answers[name]
            blend, line = answers[name].blends[0], facts.linear.support[rows]
            shares = log_class_shares(own.targets, line.shape[1], leave_one_out=True)[rows]
            log_probs[name] = blended_log_probs(log_probs["ned_fitted"], line, shares, blend)
    return {
        name: numbers(name, answers[name]) / len(own)
        - found.gather(1, codes[:, None])[:, 0].numpy()
        for name, found in log_probs.items()
    }


def numbers(name: str, answer: Answer) -> int:
    """How many were fitted for a head's answer."""
    widths = answer.parameters[0].log_bandwidths
    neighbors = 3 + (0 if widths is None else len(widths) + 1)
    fitted = {"ned": 1, "ned_fitted": neighbors, "logistic": 0, "logistic_scaled": 1}
    return fitted.get(name, neighbors + 4)
