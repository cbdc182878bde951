"""Which head to use: the lowest out-of-fold NLL, unless a simpler one cannot be told from it.

A head whose NLL is within one standard error of the lowest (of the difference, row by row) counts
as equal. Where support rows left out in turn fit the heads, equals are compared on them as well.
Those still equal are as good as one another, and the first in ``ORDER`` is recommended: those that
can be kept before those that cannot, then those that fit fewer numbers. Raw votes are never
recommended, nor is eq. 3's NED beside the one with a background: a class that no neighbor has has
probability 0, and the next row may be of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from vicinal.audits.familiarity import familiar_by
from vicinal.audits.fitting import Losses
from vicinal.audits.heads import Fold, blend_of, logistic_weight
from vicinal.audits.inputs import warn
from vicinal.audits.pictures import floats
from vicinal.audits.scoring import Scored
from vicinal.audits.sections import Recommendation
from vicinal.confidence.blend import Blend
from vicinal.confidence.made_from import MadeFrom
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.labels import at_codes

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

KEEPABLE = ("ned", "ned_fitted", "logistic_scaled", "logistic", "ned_linear")  # simplest first
ORDER = (*KEEPABLE, "knn_smoothed", "softmax", "softmax_scaled")
BEYOND_CHANCE = 3.0  # standard errors


class Choice(NamedTuple):
    """Names of heads: of the lowest NLL, recommended, kept; NLL of ``head`` less that of ``best``.

    Without any finite NLL ``gap`` is None. ``left_out``: support rows that had a say.
    """

    best: str
    head: str
    kept: str
    gap: float | None = None
    gap_se: float | None = None
    left_out: int = 0


def keepable(prior: str) -> tuple[str, ...]:
    """The linear part knows the support's class shares only: with another prior it stays out."""
    return KEEPABLE if prior == "support" else KEEPABLE[:2]


def choice_of(
    scored: dict[str, Scored], prior: str = "support", left_out: dict[str, Losses] | None = None
) -> Choice:
    """The recommended head and the one that is kept, by the rows that were scored.

    ``left_out``: what heads lose on support rows left out in turn, where these are as good.
    """
    known = {name: scored[name] for name in ORDER if name in scored}
    losses = {name: score.row_losses for name, score in known.items() if score.nll is not None}
    if "ned_fitted" in losses:
        losses.pop("ned", None)
    can = {name: loss for name, loss in losses.items() if name in keepable(prior)}
    if not can:
        return Choice("ned", "ned", "ned")
    best, equal = best_and_equals(losses)
    head, say = simplest(equal, losses, left_out)
    kept = head if head in can else simplest(best_and_equals(can)[1], can, left_out)[0]
    return Choice(best, head, kept, *gap_of(losses[head], losses[best]), say)


def best_and_equals(losses: dict[str, Losses]) -> tuple[str, list[str]]:
    """The lowest mean loss, and those within one standard error of it, in their order."""
    best = min(losses, key=lambda name: float(losses[name].mean()))
    gaps = {name: gap_of(loss, losses[best]) for name, loss in losses.items()}
    return best, [name for name, (gap, se) in gaps.items() if gap <= se]


def simplest(
    equal: list[str], losses: dict[str, Losses], left_out: dict[str, Losses] | None
) -> tuple[str, int]:
    """The first of the equals; of those that left-out rows, too, cannot tell from the best."""
    both = {
        name: np.concatenate([losses[name], left_out[name]])
        for name in equal
        if left_out and name in left_out
    }
    if len(both) < 2:
        return equal[0], 0
    chosen = best_and_equals(both)[1][0]
    return chosen, len(both[chosen]) - len(losses[chosen])


def gap_of(loss: Losses, lowest: Losses) -> tuple[float, float]:
    """The mean difference, row by row, and its standard error."""
    gap = loss - lowest
    return float(gap.mean()), float(gap.std()) / math.sqrt(len(gap))


def kept_blend(facts: Facts) -> NEDLinear:
    """The kept head with its linear part, at the weights of all held-out rows."""
    task, held_out, codes = facts.task, facts.fitting.held_out, facts.sets.query.codes
    first, rows = facts.fitting.folds[0], None
    if first.fitted_on is not None and codes is not None:
        rows = torch.as_tensor(codes >= 0).nonzero()[:, 0]
    more = None if first.more is None else facts.split.held_out
    fold = Fold(held_out, first.scored, held_out.neighborhood, rows, more)
    if facts.shown == "ned_linear":
        blend = blend_of(task, fold, facts.ned.parameters_)
    else:
        blend = Blend(0.0, logistic_weight(task, facts.shown == "logistic_scaled", fold), 0.0)
    linear = facts.linear.head
    linear.classes_ = facts.sets.classes  # it was fitted to their codes
    a, b, background, odds = blend
    return NEDLinear(weights=(a, b, odds), background=background).fit_parts(facts.ned, linear)


def recommendation_of(facts: Facts) -> Recommendation:
    """The choice in a record, with the sentences that say why."""
    choice, answer = facts.choice, facts.answer
    share = None if answer.linear_share is None else float(answer.linear_share.mean())
    return Recommendation(
        head=choice.head,
        best=choice.best,
        kept=choice.kept,
        why=" ".join(filter(None, [*_why(facts, choice), familiar_by(facts)])),
        gap=choice.gap,
        gap_se=choice.gap_se,
        linear_share=share,
        weights=facts.kept.weights if isinstance(facts.kept, NEDLinear) else (),
    )


def _why(facts: Facts, choice: Choice) -> list[str]:
    title = {name: answer.title for name, answer in facts.answers.items()}
    best, head, kept = (title.get(name, name) for name in (choice.best, choice.head, choice.kept))
    score = facts.scored.get(choice.best)
    if choice.gap is None or score is None or score.nll is None:
        how = f", the best on the rows that the heads were fitted on ({facts.fitting.how})"
        rest = "" if choice.gap is None else how
        return [f"No head could be scored on the query: {kept} is kept{rest}."]
    lowest, rows = f"{best} has the lowest NLL, {_number(score)}", f"{choice.left_out:,}"
    if any(other.nll is not None and other.nll < score.nll for other in facts.scored.values()):
        lowest = f"Of heads that leave no class without probability, {lowest}"
    lines = [f"{lowest}."]
    if choice.head != choice.best:
        why = "simpler" if not choice.left_out else f"chosen with {rows} left-out support rows"
        lines = [
            f"{lowest}; {head} ({facts.scored[choice.head].nll:.3f}) is {why}, and behind it by no "
            "more than one standard error of their difference."
        ]
    elif choice.left_out:
        lines = [f"{lowest}, and no simpler head comes near it on {rows} left-out support rows."]
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

    Then the embedding has been trained on them, and what is said of support rows (wrong labels,
    leave-one-out scores) is too kind; or the two were not drawn alike. Harder is what wrong labels
    in the support do.
    """
    if facts.sets.leave_one_out or facts.score is None or facts.score.nll is None:
        return
    log_probs, codes = facts.support_log_probs, facts.sets.codes
    right = (log_probs.argmax(1) == codes).double().numpy()
    held = facts.score.right[facts.score.codes[facts.score.rows] >= 0].astype(float)
    loss = -at_codes(log_probs, codes).numpy()
    if max(_excess(right, held), _excess(-loss, -facts.score.row_losses)) <= BEYOND_CHANCE:
        return
    warn(
        f"support rows, left out in turn, are easier than held-out rows beyond chance (accuracy "
        f"{right.mean():.3f} against {held.mean():.3f}, NLL {loss.mean():.3f} against "
        f"{facts.score.row_losses.mean():.3f}): either the embedding was trained on them, and "
        "wrong labels it has memorized are not seen, or the held-out rows come from elsewhere "
        "(other people, other days). Trust the scores on held-out rows."
    )


def _excess(own: Losses, other: Losses) -> float:
    """How many standard errors the mean of ``own`` lies above that of ``other``."""
    if len(own) < 2 or len(other) < 2:
        return 0.0
    error = math.sqrt(own.var(ddof=1) / len(own) + other.var(ddof=1) / len(other))
    gap = float(own.mean() - other.mean())
    return gap / error if error > 0 else math.copysign(math.inf, gap) if gap else 0.0


def made_from(facts: Facts) -> MadeFrom:
    """The model, its layer and how images were read, as far as they are known here."""
    config, model, sets = facts.about.config, facts.model, facts.sets
    called = zip(map(str, sets.classes.tolist()), sets.names, strict=True)
    names = {label: name for label, name in called if label != name}
    if model is None:
        about, normalize = facts.about, facts.settings.normalize
        return MadeFrom(about.model, size=config.get("size"), normalize=normalize, names=names,
                        features=about.features)  # fmt: skip
    reading = {name: config[name] for name in ("weights", "size", "gray") if config.get(name)}
    reading |= {name: floats(config[name], name) for name in ("mean", "std") if config.get(name)}
    reading |= {"arguments": tuple(config["model_arg"])} if config.get("model_arg") else {}
    return MadeFrom(
        model=facts.about.model or model.name,
        embedding=model.source.embedding,
        normalize=facts.settings.normalize,
        names=names,
        **reading,
    )
