"""Two audits' sides of the rows that both judged: rows are paired by id, and so are neighbors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from vicinal.audits.files import samples_table
from vicinal.audits.record import Audit
from vicinal.audits.resampling import Floats
from vicinal.checks import InputError, plural


@dataclass(frozen=True)
class Run:
    """One audit's side of the rows that both judged."""

    audit: Audit
    rows: list[int]

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """As ``samples.csv`` has them: classes by name, also those that the support lacks."""
        table = samples_table(self.audit)
        return {name: [values[i] for i in self.rows] for name, values in table.items()}

    @property
    def labeled(self) -> Run:
        """Those of the rows that have a label."""
        rows = zip(self.rows, self.columns["label"], strict=True)
        return Run(self.audit, [row for row, label in rows if label is not None])

    @property
    def answers(self) -> dict[str, tuple[Floats, Floats, Floats]]:
        """Of each head: right or wrong, confidence and log loss."""
        n, at = len(self.audit.cases.id), np.array(self.rows, dtype=np.int64)
        return {
            head.name: (head.right(n)[at].astype(float), head.confidence(n)[at], head.loss(n)[at])
            for head in self.audit.head_rows
        }

    @property
    def neighbors(self) -> list[list[str]]:
        """Ids of the nearest support rows."""
        names = self.audit.support_names
        return [[names[row] for row in self.audit.cases.neighbors[i]] for i in self.rows]


def same_rows(a: Audit, b: Audit, names: tuple[str, str]) -> tuple[Run, Run]:
    """Both sides of the rows that both have, in the order of ``a``."""
    for audit, run in zip((a, b), names, strict=True):
        if len(set(audit.cases.id)) < len(audit.cases.id):
            twice = next(name for name, n in Counter(audit.cases.id).items() if n > 1)
            raise InputError(
                f"several query rows of {run} have the id {twice!r}, and rows are paired by id. "
                "Audit again with unique ids."
            )
    place = {name: row for row, name in enumerate(b.cases.id)}
    rows = [row for row, name in enumerate(a.cases.id) if name in place]
    if not rows:
        numbered = [x.cases.id == tuple(map(str, range(len(x.cases.id)))) for x in (a, b)]
        why = "Audit the same query set."
        if numbered[0] != numbered[1]:
            why = f"{names[numbered.index(True)]} has numbers for ids: give both query sets 'ids'."
        raise InputError(f"{names[0]} and {names[1]} have no query row in common (by id). {why}")
    first, second = Run(a, rows), Run(b, [place[a.cases.id[row]] for row in rows])
    pairs = zip(first.columns["label"], second.columns["label"], strict=True)
    differ = sum(p != q for p, q in pairs if p is not None and q is not None)
    if differ:
        why = "the ids do not name the same rows, or labels were changed. Give both sets the same."
        if set(a.classes).isdisjoint(b.classes):
            why = f"classes have other names ({a.classes[0]!r} and {b.classes[0]!r}, for example). "
            why += "Audit both with the same --classes."
        raise InputError(
            f"{plural(differ, 'row has', 'rows have')} another label in {names[1]} than in "
            f"{names[0]}: {why}"
        )
    return first, second


def unlike(runs: tuple[Run, Run], names: tuple[str, str], left: int) -> Iterator[str]:
    """Of rows left out, and of classes that a run lacks: it is never right on their rows."""
    a, b = (run.audit for run in runs)
    if left:
        lead = f"{plural(left, 'row is', 'rows are')} in only one of the runs, and left out"
        yield f"{lead}: every value is of the {plural(len(runs[0].rows), 'row')} of both."
    for audit, other, (name, lacking) in ((a, b, names), (b, a, names[::-1])):
        if more := [label for label in audit.classes if label not in set(other.classes)]:
            shown = ", ".join(more[:5]) + (", …" if len(more) > 5 else "")
            yield f"{name} knows classes that {lacking} does not: {shown}."


def overlap_of(first: Run, second: Run) -> tuple[float | None, int | None]:
    """Share of the ten nearest support rows (by id) that both runs have; None if no id is."""
    near = list(zip(first.neighbors, second.neighbors, strict=True))
    k = min(10, *(len(ids) for pair in near for ids in pair))
    if k == 0 or {*chain(*first.neighbors)}.isdisjoint(chain(*second.neighbors)):
        return None, None
    return float(np.mean([len({*p[:k]} & {*q[:k]}) / k for p, q in near])), k
