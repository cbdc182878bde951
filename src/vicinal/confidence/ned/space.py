r"""Which space to compare rows in: chosen by the log-loss of rows that no candidate was fitted to.

Leave-one-out is blind here. A space that saw a row's label has drawn the row to its class: on 2,500
features of birds the leave-one-out loss of the whitened space is 0.54 where new rows have 2.9. So
the rows are dealt into folds; a candidate is fitted without a fold, and its rows are searched
among the others. The lowest mean loss wins, but a simpler space within one standard error of it (of
the paired difference) is taken instead. What the choice costs does not grow with the support: about
900 rows are scored, whatever its size.

The chosen space is then fitted to all rows. Where it looks at labels, it is also fitted without
each fold in turn (:class:`vicinal.confidence.support.CrossFit`), and everything that is fitted or
said leave-one-out rests on these neighborhoods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_k
from vicinal.confidence.ned.fit import coarse, descend, fit_mask, reachable, row_losses
from vicinal.confidence.support import CrossFit, Evidence, LabeledSupport
from vicinal.labels import Labels
from vicinal.neighbors.learned import best_steps, learned_space
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import ExactSearch, make_search
from vicinal.neighbors.spaces import (
    LABELED,
    RAW,
    SPACES,
    Space,
    Whitening,
    plain_space,
    whitened_space,
)

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

FOLDS = 5
SCORED = 900  # rows, at most
FORMS = (Whitening(0.3, "sphere"), Whitening(0.3, "columns"))  # the better one goes on
AT_MOST = 100  # k by default: as many, or the whole support
FEW = 10  # rows with which nothing can be chosen
Fit = Callable[[Tensor, Tensor], Space]  # rows, codes -> space


@dataclass(frozen=True, eq=False)
class SpaceFit:
    """The space, what stands in for its leave-one-out graph, and each candidate's mean loss."""

    space: Space = RAW
    crossed: CrossFit | None = None
    losses: dict[str, float] = field(default_factory=dict)


class Task(NamedTuple):
    """What a candidate is scored by: rows with labels, their folds, and how neighbors are found."""

    x: Float[Tensor, "n d"]
    labels: Labels
    fold: Int[Tensor, " n"]
    k: int
    metric: str
    temperature: float | None  # given, or None: fitted in each space


def check_space(name: object) -> None:
    check_choice(name, "space", (*SPACES, "fit"))


def fit_space(
    name: str,
    x: Float[Tensor, "n d"],
    labels: Labels,
    *,
    k: int,
    metric: str,
    temperature: float | None,
) -> SpaceFit:
    """A space by its name, or the one that held-out rows choose (``"fit"``).

    Parameters
    ----------
    name : one of ``SPACES``, or ``"fit"``.
    x, labels : the support.
    k, metric : how its neighbors will be found.
    temperature : where it is given; None is fitted.
    """
    few = len(x) < FEW or int((labels.counts() > 1).sum()) < 2
    if name == "raw" or (name == "fit" and few):
        return SpaceFit()
    if name not in (*LABELED, "fit"):
        return SpaceFit(plain_space(name, x))
    task = Task(x, labels, folds_of(labels, min(FOLDS, len(x))), k, metric, temperature)
    if few:
        return _cross_fitted(whitening(Whitening()), task, {})
    scored = dict(_candidates(name, task))
    losses = {title: loss for title, (_, loss) in scored.items()}
    chosen = simplest_of_the_best(losses) if name == "fit" else name
    means = {title: float(loss.mean()) for title, loss in losses.items()}
    return _cross_fitted(scored[chosen][0], task, means)


def support_in_space(
    ned: NEDClassifier, x: Float[Tensor, "n d"], labels: Labels, ids: Tensor | None = None
) -> LabeledSupport:
    """The rows in the space that ``ned.space`` names or chooses, ready to be searched."""
    k = min(ned.k, len(x)) if ned.k == AT_MOST else ned.k
    check_k(k, len(x), "k", "the support")
    given = ned.recipe_.temperature
    fit = fit_space(ned.space, x, labels, k=k, metric=ned.metric, temperature=given)
    ned.space_losses_ = fit.losses
    search = make_search(ned.search, ned.metric).build(fit.space(x))
    return LabeledSupport(search, labels, ids, space=fit.space, crossed=fit.crossed)


def simplest_of_the_best(losses: dict[str, Float[Tensor, " m"]]) -> str:
    """The first whose loss is within a standard error of the lowest; simpler ones come first.

    >>> simplest_of_the_best({"raw": torch.tensor([1.0, 1.2]), "unit": torch.tensor([0.9, 1.3])})
    'raw'
    """
    best = min(losses.values(), key=lambda loss: float(loss.mean()))
    for name, loss in losses.items():
        gap = loss - best
        if float(gap.mean()) <= float(gap.std()) / math.sqrt(len(gap)):
            return name
    raise AssertionError("the lowest is within reach of itself")


def folds_of(labels: Labels, count: int) -> Int[Tensor, " n"]:
    """Each class dealt over the folds, in an order that does not depend on that of the rows."""
    codes = labels.codes.argmax(1) if labels.soft else labels.codes
    shuffled = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[codes[shuffled].argsort(stable=True)]
    fold = torch.empty(len(codes), dtype=torch.long)
    fold[by_class] = torch.arange(len(codes)) % count
    return fold


def whitening(form: Whitening) -> Fit:
    return lambda x, codes: whitened_space(x, codes, form)


def learning(form: Whitening, steps: int) -> Fit:
    return lambda x, codes: learned_space(x, codes, form, steps=steps)


def _plain(name: str) -> Fit:
    return lambda x, codes: plain_space(name, x)


def _candidates(name: str, task: Task) -> Iterator[tuple[str, tuple[Fit, Tensor]]]:
    """Each with its losses, in order of simplicity; a learned one where whitening was no loss."""
    lowest = math.inf
    if name == "fit":
        for plain in (known for known in SPACES if known not in LABELED):
            try:
                loss = held_out_losses(_plain(plain), task)
            except InputError:
                continue  # rows of one column, or none that varies: no such space
            lowest = min(lowest, float(loss.mean()))
            yield plain, (_plain(plain), loss)
    best, loss = _best_whitening(task)
    yield "whitened", (whitening(best), loss)
    if name != "whitened" and (name == "learned" or bool(loss.mean() < lowest)):
        rest = task.fold != 0
        steps = best_steps(task.x[rest], task.labels.codes[rest], best)
        yield "learned", (learning(best, steps), held_out_losses(learning(best, steps), task))


def _best_whitening(task: Task) -> tuple[Whitening, Tensor]:
    """The better form, then more shrinkage where that helps, or else less."""
    grid = {form: held_out_losses(whitening(form), task) for form in FORMS}

    def best() -> Whitening:
        return min(grid, key=lambda form: float(grid[form].mean()))

    form = best()
    for shrinkage in (0.6, 0.9):
        more = form._replace(shrinkage=shrinkage)
        grid[more] = held_out_losses(whitening(more), task)
        if best() != more:
            break
    if best() == form:
        less = form._replace(shrinkage=0.1)
        grid[less] = held_out_losses(whitening(less), task)
    return best(), grid[best()]


def held_out_losses(fit: Fit, task: Task) -> Float[Tensor, " m"]:
    """-log p of scored rows among the rows of the other folds, in a space fitted to those alone."""
    parts = [_searched(fit, task, f, rows) for f, rows in _scored(task)]
    k = min(found.k for found, _ in parts)
    distances = torch.cat([found.distances[:, :k] for found, _ in parts])
    indices = torch.cat([found.indices[:, :k] for found, _ in parts])
    rows = torch.cat([rows for _, rows in parts])
    found = Neighborhood(distances, indices).labeled(task.labels.codes)
    evidence = Evidence(found, task.labels.codes[rows], task.labels.counts(), leave_one_out=True)
    return _losses_at_best(evidence, task.temperature, task.x.shape[1])


def _scored(task: Task) -> Iterator[tuple[int, Tensor]]:
    """Folds, and which of their rows are scored: all of few, or as many as suffice."""
    size = len(task.x) // FOLDS
    folds = min(int(task.fold.max()) + 1, math.ceil(SCORED / max(size, 1)))
    for f in range(folds):
        rows = (task.fold == f).nonzero()[:, 0]
        at = torch.linspace(0, len(rows) - 1, min(len(rows), SCORED // folds)).long()
        yield f, rows[at]


def _searched(fit: Fit, task: Task, f: int, rows: Tensor) -> tuple[Neighborhood, Tensor]:
    rest = (task.fold != f).nonzero()[:, 0]
    space = fit(task.x[rest], task.labels.codes[rest])
    search = ExactSearch(task.metric).build(space(task.x[rest]))
    found = search.query(space(task.x[rows]), min(task.k, len(rest))).cpu()
    return Neighborhood(found.distances, rest[found.indices]), rows


def _losses_at_best(
    evidence: Evidence, temperature: float | None, dimensions: int
) -> Float[Tensor, " m"]:
    """Losses with T, an exponent and a floor of prior fitted to the same rows: three numbers."""
    count = len(evidence.counts)
    v = np.zeros(count + 4)
    v[-1] = -math.log(len(evidence))
    usable = evidence.rows(reachable(evidence, True))  # the same rows in every space
    v = coarse(v, usable.rows(torch.linspace(0, len(usable) - 1, min(len(usable), 200)).long()))
    if temperature is not None:
        v[0] = math.log(temperature) if 0 < temperature < math.inf else v[0]
    free = fit_mask(count, temperature is None, False, True, True)
    return row_losses(descend(v, usable, free, dimensions, steps=15)[0], usable)


def _cross_fitted(fit: Fit, task: Task, losses: dict[str, float]) -> SpaceFit:
    space = fit(task.x, task.labels.codes)
    if not space.labeled:
        return SpaceFit(space, None, losses)
    spaces = []
    for f in range(int(task.fold.max()) + 1):
        rest = (task.fold != f).nonzero()[:, 0]
        spaces.append(fit(task.x[rest], task.labels.codes[rest]))
    return SpaceFit(space, CrossFit(task.x, task.fold, tuple(spaces)), losses)
