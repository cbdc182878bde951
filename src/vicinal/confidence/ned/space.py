r"""Which space to compare rows in: chosen by the log-loss of rows that no candidate was fitted to.

Leave-one-out is blind here. A space that saw a row's label has drawn the row to its class: on 2,500
features of birds the leave-one-out loss of the whitened space is 0.54 where new rows have 2.9. So
the rows are dealt into folds; a candidate is fitted without a fold, and its rows are searched
among the others. Candidates that 300 rows put three standard errors behind the best are dropped,
the others are scored on 600. The lowest mean loss wins, but a simpler space within one standard
error of it (of the paired difference) is taken instead. What the choice costs does not grow with
the support: 4,000 rows of it suffice, 20 of each class at least.

The chosen space is then fitted to all rows. Where it looks at labels,
:class:`vicinal.confidence.support.CrossFit` takes the place of the leave-one-out graph, and
everything that is fitted or said leave-one-out rests on its neighborhoods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_k
from vicinal.confidence.ned.fit import coarse, descend, fit_mask, reachable, row_losses
from vicinal.confidence.support import CrossFit, Evidence, LabeledSupport
from vicinal.labels import Labels, folds_of
from vicinal.neighbors.learned import Form, best_steps
from vicinal.neighbors.search import make_search
from vicinal.neighbors.spaces import LABELED, RAW, SPACES, Space, Whitening, span_coordinates

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

DEFAULT_K = 100  # of NED: as many neighbors, or the whole of a smaller support
FOLDS = 5
FIRST, SCORED = 300, 600  # rows that sort candidates out, and rows that decide
POOL = 4_000  # rows to choose by, or 20 per class
FORMS = (Whitening(0.3, "sphere"), Whitening(0.3, "columns"))  # the better one goes on
FEW = 10  # rows with which nothing can be chosen
# Learning takes as long as the graph of 8,000 rows: a second or two for a small support, and a
# small part of the time of a large one. In between it must be asked for by name.
LEARN_BELOW, LEARN_ABOVE = 5_000, 40_000
Losses = Float[Tensor, " m"]


@dataclass(frozen=True, eq=False)
class SpaceFit:
    """The space, what stands in for its leave-one-out graph, and each candidate's mean loss."""

    space: Space = RAW
    crossed: CrossFit | None = None
    losses: dict[str, float] = field(default_factory=dict)


class SpaceTask(NamedTuple):
    """What a candidate is scored by: rows with labels, their folds, and how neighbors are found."""

    x: Float[Tensor, "n d"]
    labels: Labels
    fold: Int[Tensor, " n"]
    k: int
    metric: str
    temperature: float | None  # given, or None: fitted in each space
    span: Float[Tensor, "n r"] | None = None  # x in coordinates of its span, see pool_of


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
    form, losses = Form(name), dict[str, Losses]()
    fold = folds_of(labels.codes, min(FOLDS, len(x)))
    if name in (*LABELED, "fit") and few:
        form = Form("whitened")
    elif name in (*LABELED, "fit"):
        task = pool_of(SpaceTask(x, labels, fold, k, metric, temperature))
        form, losses = choose(name, task, learn=not LEARN_BELOW < len(x) < LEARN_ABOVE)
    space = form(x, labels.codes)
    crossed = CrossFit(x, fold, form) if space.labeled else None
    return SpaceFit(space, crossed, {title: float(loss.mean()) for title, loss in losses.items()})


def support_in_space(
    ned: NEDClassifier, x: Float[Tensor, "n d"], labels: Labels, ids: Tensor | None = None
) -> LabeledSupport:
    """The rows in the space that ``ned.space`` names or chooses, ready to be searched."""
    k = min(ned.k, len(x)) if ned.k == DEFAULT_K else ned.k
    check_k(k, len(x), "k", "the support")
    given = ned.recipe_.temperature
    fit = fit_space(ned.space, x, labels, k=k, metric=ned.metric, temperature=given)
    ned.space_losses_ = fit.losses
    rows = fit.space(x)
    search = make_search(ned.search, ned.metric, shape=(len(rows), rows.shape[1])).build(rows)
    return LabeledSupport(search, labels, ids, space=fit.space, crossed=fit.crossed)


def flatness(support: LabeledSupport) -> str | None:
    """What to say where the mapped rows span fewer directions than their classes need."""
    rows, classes = support.rows, len(support.labels.classes)
    needed = min(classes - 1, rows.shape[1])
    some = torch.linspace(0, len(rows) - 1, min(len(rows), 2 * needed + 20)).long()
    if len(rows) <= needed or _rank(rows[some]) >= needed or (rank := _rank(rows)) >= needed:
        return None
    return (
        f"the rows span {rank} directions in the {support.space.name} space, too few to set "
        f"{classes} classes apart: some will be taken for one another. The embedding has "
        "collapsed, or most of its columns are copies; check it."
    )


def _rank(rows: Tensor) -> int:
    return int(torch.linalg.matrix_rank(rows - rows.mean(0)))


def pool_of(task: SpaceTask) -> SpaceTask:
    """The rows to choose by."""
    n, enough = len(task.x), max(POOL, 20 * len(task.labels.classes))
    if n <= enough:
        return task._replace(span=span_coordinates(task.x))
    some = torch.randperm(n, generator=torch.Generator().manual_seed(1))[:enough]
    labels = Labels(task.labels.classes, task.labels.codes[some])
    x = task.x[some]
    return task._replace(x=x, labels=labels, fold=task.fold[some], span=span_coordinates(x))


def choose(name: str, task: SpaceTask, *, learn: bool) -> tuple[Form, dict[str, Losses]]:
    """The form that is named or wins, and the losses of all on the same rows, simplest first.

    ``learn``: a learned space may be tried, which it is where whitening is the best so far.
    """
    forms, losses = dict[str, Form](), dict[str, Losses]()
    for plain in SPACES[:-2] if name == "fit" else ():
        try:
            losses[plain] = held_out_losses(Form(plain), task, FIRST)
        except InputError:
            continue  # rows of one column, or none that varies: no such space
        forms[plain] = Form(plain)
    forms["whitened"], losses["whitened"] = _best_whitening(task)
    running, learn = in_reach(losses, errors=3), name == "learned" or (name == "fit" and learn)
    count = SCORED if len(running) > 1 or learn else FIRST
    if len(task.x) > FIRST < count:
        losses = {title: held_out_losses(forms[title], task, count) for title in losses}
    best = min(running, key=lambda title: float(losses[title].mean()))
    if learn and best == "whitened":
        forms["learned"] = _learned(forms["whitened"], task)
        if forms["learned"].steps or name == "learned":  # without a step it is the whitened space
            losses["learned"] = held_out_losses(forms["learned"], task, count)
            running.append("learned")
    chosen = in_reach({title: losses[title] for title in running})[0] if name == "fit" else name
    return forms[chosen], losses


def in_reach(losses: dict[str, Losses], errors: float = 1.0) -> list[str]:
    """Those within so many standard errors (of the paired difference) of the lowest mean loss.

    >>> in_reach({"raw": torch.tensor([1.0, 1.2]), "unit": torch.tensor([0.9, 1.3])})
    ['raw', 'unit']
    """
    best = min(losses.values(), key=lambda loss: float(loss.mean()))
    gaps = {name: loss - best for name, loss in losses.items()}
    return [
        name
        for name, gap in gaps.items()
        if float(gap.mean()) <= errors * float(gap.std()) / math.sqrt(len(gap))
    ]


def _learned(whitened: Form, task: SpaceTask) -> Form:
    rest, (form, x) = task.fold != 0, whitened.in_span(task.x, task.span)
    steps = best_steps(x[rest], task.labels.codes[rest], form.whitening)
    return Form("learned", whitened.whitening, steps)


def _best_whitening(task: SpaceTask) -> tuple[Form, Losses]:
    """The better form, then more shrinkage where that helps, or else less."""
    grid = {form: held_out_losses(Form("whitened", form), task, FIRST) for form in FORMS}

    def best() -> Whitening:
        return min(grid, key=lambda form: float(grid[form].mean()))

    form = best()
    for shrinkage in (0.6, 0.9):
        more = form._replace(shrinkage=shrinkage)
        grid[more] = held_out_losses(Form("whitened", more), task, FIRST)
        if best() != more:
            break
    if best() == form:
        less = form._replace(shrinkage=0.1)
        grid[less] = held_out_losses(Form("whitened", less), task, FIRST)
    return Form("whitened", best()), grid[best()]


def held_out_losses(form: Form, task: SpaceTask, count: int) -> Losses:
    """-log p of scored rows among the rows of the other folds, in a space fitted to those alone."""
    rows, codes = torch.cat(list(_scored(task, count))), task.labels.codes
    crossed = CrossFit(task.x, task.fold, form, task.span)
    found = crossed.neighborhood(task.k, task.metric, codes, asked=rows).labeled(codes)
    evidence = Evidence(found, codes[rows], task.labels.counts(), leave_one_out=True)
    return _losses_at_best(evidence, task.temperature, task.x.shape[1])


def _scored(task: SpaceTask, count: int) -> Iterator[Tensor]:
    """Of some folds which of their rows are scored: all of few, or as many as suffice."""
    folds = min(int(task.fold.max()) + 1, math.ceil(count / max(len(task.x) // FOLDS, 1)))
    for f in range(folds):
        rows = (task.fold == f).nonzero()[:, 0]
        yield rows[torch.linspace(0, len(rows) - 1, min(len(rows), count // folds)).long()]


def _losses_at_best(evidence: Evidence, temperature: float | None, dimensions: int) -> Losses:
    """Losses with T, an exponent and a floor of prior fitted to the same rows: three numbers."""
    count = len(evidence.counts)
    v = np.zeros(count + 4)
    v[-1] = -math.log(len(evidence))
    usable = evidence.rows(reachable(evidence, True))  # the same rows in every space
    some = torch.linspace(0, len(usable) - 1, min(len(usable), 150)).long()
    v = coarse(v, usable.rows(some), points=12)
    if temperature is not None:
        v[0] = math.log(temperature) if 0 < temperature < math.inf else v[0]
    free = fit_mask(count, temperature is None, False, True, True)
    return row_losses(descend(v, usable, free, dimensions, steps=8)[0], usable)
