r"""On which rows the heads are fitted: the query's halves in turn, or support rows left out.

A support row that is left out is as good as a new one, unless the embedding was trained on it or
the support's labels are worse than the query's. So support rows fit the heads wherever held-out
rows do not object: there are mostly more of them, no query row is spent, and a query of a few dozen
labels has enough to judge by. The query objects if either speaks for its own half, out of fold:

- one number: eq. 3's NED at the half's temperature is likelier than at the support's, by more than
  two standard errors and by more than p/(2n) nats a row, what a fit of p numbers to n rows costs;
- all that is fitted, its cost included: the other half's labels are twenty times as likely by NED
  with everything fitted, and with the linear part, and that is half a standard error at least.

Few rows show by the first what is wrong, and many by the second what one number does not. Where the
query does not object and support rows are few, the linear part is weighed on both: on the support's
and on the other half's. With a calibration set nothing of this is asked: it was given to be fitted
on.
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

from vicinal.audits.heads import HEADS, Answer, Fold, ned_in_blocks
from vicinal.audits.inputs import Sets, warn
from vicinal.checks import InputError, plural
from vicinal.confidence.blend import blended_log_probs
from vicinal.confidence.ned.fit import least_background
from vicinal.confidence.ned.posterior import NEDParameters, with_prior
from vicinal.confidence.ned_linear import enough_rows
from vicinal.confidence.support import Evidence
from vicinal.labels import at_codes, log_class_shares
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

SURELY, HARDLY = 2.0, 0.5  # standard errors: of one number, and of all of them
LIKELIER = 3.0  # nats in all, odds of twenty to one
NUMBERS = 7  # that NED and a blend fit
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
    few = len(codes) < enough_rows(len(own.counts))
    folds = tuple(
        fold._replace(evidence=own, more=fold.evidence)
        if few
        else fold._replace(evidence=own, fitted_on=None)
        for fold in split.folds
    )
    if objects(facts, folds):
        return split
    how = f"fitted on {len(codes):,} support rows, each left out in turn; judged on the query"
    how += ", whose halves help each other to weigh a linear part" * few
    return split._replace(held_out=own, folds=folds, how=how)


def objects(facts: Facts, own: Sequence[Fold]) -> bool:
    """Whether the query's labels are likelier by what its halves fit than by ``own`` folds."""
    if own[0].evidence.plain_temperature is None:
        return True  # neighbors of the own class only: the classes have collapsed
    codes = facts.sets.query.codes
    assert codes is not None
    asked = [[_some(fold, codes) for fold in folds] for folds in (own, facts.split.folds)]
    gain = _gains_of_temperature(asked[0], asked[1], codes)
    cost = NUMBERS / 2 * len(gain) / min(len(fold.evidence) for fold in asked[1])
    if len(gain) > 1 and gain.sum() > max(cost, SURELY * gain.std(ddof=1) * np.sqrt(len(gain))):
        return True
    tasks = [facts.task_on(folds) for folds in asked]
    rows = torch.cat([fold.scored for fold in asked[0]])
    for name in ["ned_fitted"] + ["ned_linear"] * (facts.settings.prior == "support"):
        mine, theirs = (_losses(HEADS[name](task).log_probs[rows], codes[rows]) for task in tasks)
        gain = mine - theirs
        if not gain.sum() > max(LIKELIER, HARDLY * gain.std() * np.sqrt(len(gain))):
            return False
    return True


def _gains_of_temperature(
    own: Sequence[Fold], theirs: Sequence[Fold], codes: Int[Tensor, " m"]
) -> Losses:
    """What each row gains by the temperature of the query's other half; none where it has none."""
    gains = [np.zeros(0)]
    for mine, other in zip(own, theirs, strict=True):
        ours, found = mine.evidence.plain_temperature, other.evidence.some(MOST).plain_temperature
        if ours is not None and found is not None:
            before, after = (
                _losses(_at_temperature(mine, fit.temperature), codes[mine.scored])
                for fit in (ours, found)
            )
            gains.append(before - after)
    return np.concatenate(gains)


def _at_temperature(fold: Fold, temperature: float) -> Tensor:
    """Log-probabilities of its rows by eq. 3, with the least background."""
    plain = NEDParameters(temperature, 1.0, least_background(fold.evidence))
    parameters = with_prior(plain, fold.evidence.counts, "support")
    return ned_in_blocks(fold.neighborhood, len(fold.evidence.counts), parameters)[0]


def _losses(log_probs: Tensor, targets: Int[Tensor, " s"]) -> Losses:
    return -at_codes(log_probs.double(), targets).numpy()


def _some(fold: Fold, codes: Int[Tensor, " m"]) -> Fold:
    """The fold with as many of its labeled rows to score as tell two fits apart."""
    known = (codes[fold.scored] >= 0).nonzero()[:, 0][:MOST]
    return fold._replace(scored=fold.scored[known], neighborhood=fold.neighborhood.rows(known))


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
        name: numbers(name, answers[name]) / len(own) - at_codes(found, codes).numpy()
        for name, found in log_probs.items()
    }


def numbers(name: str, answer: Answer) -> int:
    """How many were fitted for a head's answer."""
    widths = answer.parameters[0].log_bandwidths
    neighbors = 3 + (0 if widths is None else len(widths) + 1)
    fitted = {"ned": 1, "ned_fitted": neighbors, "logistic": 0, "logistic_scaled": 1}
    return fitted.get(name, neighbors + 4)
