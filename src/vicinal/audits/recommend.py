"""Which head to use: the lowest out-of-fold NLL, unless a simpler one cannot be told from it.

A head whose NLL is within one standard error of the lowest (of the difference, row by row) counts
as equal; of equals the first in ``ORDER`` is recommended: those that can be kept before those that
cannot, then those that fit fewer numbers. Raw votes are never recommended: a class that nobody
voted for has probability 0, and the next row may be of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vicinal.audits.heads import Fold, blend_of, logistic_weight
from vicinal.audits.inputs import warn
from vicinal.audits.scoring import Scored
from vicinal.audits.sections import Recommendation
from vicinal.confidence.blend import Blend
from vicinal.confidence.ned_linear import NEDLinear

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

KEEPABLE = ("ned", "ned_fitted", "logistic_scaled", "logistic", "ned_linear")  # simplest first
ORDER = (*KEEPABLE, "knn_smoothed", "softmax", "softmax_scaled")
BEYOND_CHANCE = 3.0  # standard errors


class Choice(NamedTuple):
    """Names of heads: of the lowest NLL, recommended, kept; NLL of ``head`` less that of ``best``.

    Without any finite NLL ``gap`` is None.
    """

    best: str
    head: str
    kept: str
    gap: float | None = None
    gap_se: float | None = None


def keepable(prior: str) -> tuple[str, ...]:
    """The linear part knows the support's class shares only: with another prior it stays out."""
    return KEEPABLE if prior == "support" else KEEPABLE[:2]


def choice_of(scored: dict[str, Scored], prior: str = "support") -> Choice:
    """The recommended head and the one that is kept, by the rows that were scored."""
    known = {name: scored[name] for name in ORDER if name in scored}
    known = {name: score for name, score in known.items() if score.nll is not None}
    can = {name: score for name, score in known.items() if name in keepable(prior)}
    if not can:
        return Choice("ned", "ned", "ned")
    head, best, gap, se = simplest_of_the_best(known)
    kept = head if head in can else simplest_of_the_best(can)[0]
    return Choice(best, head, kept, gap, se)


def simplest_of_the_best(scored: dict[str, Scored]) -> tuple[str, str, float, float]:
    """The first within one standard error of the lowest, the lowest, their gap, its error."""
    best = min(scored, key=lambda name: scored[name].nll or 0.0)
    for name, score in scored.items():
        gap = score.row_losses - scored[best].row_losses
        mean, se = float(gap.mean()), float(gap.std()) / math.sqrt(len(gap))
        if mean <= se:
            return name, best, mean, se
    raise AssertionError("the lowest is within reach of itself")


def kept_blend(facts: Facts) -> NEDLinear:
    """The kept head with its linear part, at the weights of all held-out rows."""
    task, held_out, codes = facts.task, facts.split.held_out, facts.sets.query.codes
    rows = None
    if facts.split.folds[0].fitted_on is not None and codes is not None:
        rows = torch.as_tensor(codes >= 0).nonzero()[:, 0]
    fold = Fold(held_out, facts.split.folds[0].scored, held_out.neighborhood, rows)
    if facts.shown == "ned_linear":
        blend = blend_of(task, fold, facts.ned.parameters_)
    else:
        blend = Blend(0.0, logistic_weight(task, fold, facts.shown == "logistic_scaled"), 0.0)
    linear = facts.linear.head
    linear.classes_ = facts.sets.classes  # it was fitted to their codes
    head = NEDLinear(weights=(blend.neighbors, blend.linear), background=blend.background)
    return head.fit_parts(facts.ned, linear)


def recommendation_of(facts: Facts) -> Recommendation:
    """The choice in a record, with the sentences that say why."""
    choice, answer = facts.choice, facts.answer
    share = None if answer.linear_share is None else float(answer.linear_share.mean())
    weights: tuple[float, ...] = ()
    if isinstance(facts.kept, NEDLinear):
        weights = (facts.kept.blend_.neighbors, facts.kept.blend_.linear)
    return Recommendation(
        head=choice.head,
        best=choice.best,
        kept=choice.kept,
        why=" ".join(_why(facts, choice)),
        gap=choice.gap,
        gap_se=choice.gap_se,
        linear_share=share,
        weights=weights,
    )


def _why(facts: Facts, choice: Choice) -> list[str]:
    title = {name: answer.title for name, answer in facts.answers.items()}
    best, head, kept = (title.get(name, name) for name in (choice.best, choice.head, choice.kept))
    score = facts.scored.get(choice.best)
    if choice.gap is None or score is None or score.nll is None:
        rest = (
            "." if choice.gap is None else f", chosen on rows it was fitted on: {facts.split.how}."
        )
        return [f"No head could be scored on the query: {kept} is kept{rest}"]
    lines = [f"{best} has the lowest NLL, {_number(score)}."]
    if choice.head != choice.best:
        lines = [
            f"{best} has the lowest NLL, {_number(score)}; {head} "
            f"({facts.scored[choice.head].nll:.3f}) is within one standard error of it and simpler."
        ]
    if choice.kept != choice.head:
        lines.append(
            f"{head} cannot be saved with a support alone: verdicts, threshold and the saved head "
            f"are those of {kept}, the best that can (NLL {facts.scored[choice.kept].nll:.3f})."
        )
    return lines


def _number(score: Scored) -> str:
    return f"{score.nll:.3f}" + (f" ± {score.nll_se:.3f}" if score.nll_se is not None else "")


def warn_of_seen_support(facts: Facts) -> None:
    """Support rows, left out in turn, that are easier than held-out rows by more than chance.

    Then the embedding has probably been trained on them, and what is said of support rows (wrong
    labels, leave-one-out scores) is too kind. Harder is what wrong labels in the support do.
    """
    if facts.sets.leave_one_out or facts.score is None or facts.score.nll is None:
        return
    log_probs, codes = facts.support_log_probs, facts.sets.codes
    right = (log_probs.argmax(1) == codes).double().numpy()
    held = facts.score.right[facts.score.codes[facts.score.rows] >= 0].astype(float)
    loss = -log_probs.gather(1, codes[:, None])[:, 0].numpy()
    easier = max(_excess(right, held), _excess(-loss, -facts.score.row_losses))
    if easier <= BEYOND_CHANCE:
        return
    warn(
        f"support rows, left out in turn, are easier than held-out rows beyond chance (accuracy "
        f"{right.mean():.3f} against {held.mean():.3f}, NLL {loss.mean():.3f} against "
        f"{facts.score.row_losses.mean():.3f}): the embedding was probably trained on them. Wrong "
        "labels it has memorized are not seen; trust the scores on held-out rows."
    )


def _excess(own: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """How many standard errors the mean of ``own`` lies above that of ``other``."""
    if len(own) < 2 or len(other) < 2:
        return 0.0
    error = math.sqrt(own.var(ddof=1) / len(own) + other.var(ddof=1) / len(other))
    gap = float(own.mean() - other.mean())
    return gap / error if error > 0 else math.copysign(math.inf, gap) if gap else 0.0
