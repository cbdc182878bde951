"""The sections of an audit of rows that are not all in memory: as always, but numbered as all are.

Most sections read the anchors and the query's sample as if they were the sets. Those that name
support rows, or count them, are made here: neighbors are numbered among all rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vicinal.audits import data
from vicinal.audits.facts import Facts
from vicinal.audits.inputs import LabeledRows
from vicinal.audits.label_records import LabelAudit
from vicinal.audits.map import map_of
from vicinal.audits.parts import Parts
from vicinal.audits.record import SupportRows
from vicinal.audits.sampled import READ, Whole, compared, ids_of
from vicinal.audits.sections import ClassFacts, Data, Duplicates, Map, PriorShift, SetFacts
from vicinal.audits.streamed_head import anchors_head
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.sharded import Source, rows_at


def sections_of_all(
    facts: Facts, support: Whole, query: Whole | None, labels: LabelAudit, parts: Parts
) -> dict[str, Any]:
    """Every field of the record but ``provenance``, ``warnings`` and ``scale``."""
    from vicinal.audits.audit import SECTIONS  # it calls this function, in the end

    own = {
        "data": lambda f: data_of_all(f, support, query),
        "labels": lambda f: labels,
        "class_facts": lambda f: class_facts_of_all(f, support, labels),
        "map": lambda f: map_of_anchors(f, support),
        "duplicates": lambda f: duplicates_of_all(f, support, parts),
        "hubs": lambda f: data.hubs(f.neighborhood.indices, f.weights, len(support)),
        "prior_shift": lambda f: prior_shift_of_all(f, support, query),
        "head": lambda f: anchors_head(f, support),
        "support": lambda f: None,
    }
    found = {name: own.get(name, section)(facts) for name, section in SECTIONS.items()}
    found["support"] = support_of_all(found["cases"].neighbors, labels, support)
    return found


def support_of_all(
    neighbors: tuple[tuple[int, ...], ...], labels: LabelAudit, support: Whole
) -> SupportRows:
    """The support rows that some list names, with their ids from the files."""
    assert support.codes is not None
    named = {suspect.row for suspect in labels.suspects}
    named = named.union(*neighbors, *(suspect.neighbors for suspect in labels.suspects))
    rows = torch.tensor(sorted(named), dtype=torch.long)
    return SupportRows(
        tuple(rows.tolist()), ids_of(support, rows), tuple(support.codes[rows].tolist())
    )


def data_of_all(facts: Facts, support: Whole, query: Whole | None) -> Data:
    from vicinal.audits.audit import data_of

    found, count = data_of(facts), len(facts.sets.classes)
    own = set_facts(facts.sets.support, support, count)
    asked = set_facts(facts.sets.query, query or support, count)
    if query is None:
        asked = dataclasses.replace(own, name=facts.sets.query.name)
    return dataclasses.replace(found, support=own, query=asked)


def set_facts(some: LabeledRows, whole: Whole, classes: int) -> SetFacts:
    """Of the whole set; the sample says what it is called and of which kind its numbers are."""
    if not whole.sampled:
        return some.facts()
    counts = np.zeros(0, dtype=np.int64)
    if whole.codes is not None:
        counts = torch.bincount(whole.codes[whole.codes >= 0], minlength=classes).numpy()
        counts = counts[counts > 0]
    return dataclasses.replace(
        some.facts(),
        rows=len(whole),
        classes=len(counts),
        smallest_class=int(counts.min()) if len(counts) else None,
        largest_class=int(counts.max()) if len(counts) else None,
        fingerprint=whole.fingerprint,
    )


def class_facts_of_all(facts: Facts, support: Whole, labels: LabelAudit) -> tuple[ClassFacts, ...]:
    from vicinal.audits.audit import SECTIONS

    assert support.codes is not None
    count = len(facts.sets.classes)
    rows = torch.bincount(support.codes, minlength=count).tolist()
    given = torch.tensor([suspect.given for suspect in labels.suspects], dtype=torch.long)
    suspects = torch.bincount(given, minlength=count).tolist()
    return tuple(
        dataclasses.replace(each, support=rows[each.label], suspects=suspects[each.label])
        for each in SECTIONS["class_facts"](facts)
    )


def map_of_anchors(facts: Facts, support: Whole) -> Map | None:
    """Drawn and scored among the anchors: the map shows no other support rows."""
    drawn = map_of(facts)
    if drawn is None:
        return None
    rows = support.some[list(drawn.support_row)].tolist()
    return dataclasses.replace(drawn, support_row=tuple(rows))


def duplicates_of_all(facts: Facts, support: Whole, parts: Parts) -> Duplicates:
    from vicinal.audits.audit import warn_of_duplicates

    near = facts.neighborhood
    scored = None if facts.score is None else (facts.score.rows, facts.score.right)
    if facts.space.name == "raw":
        within = sum(int(part["duplicate"].sum()) for part in parts.read("duplicate"))
    else:
        rows = compared(support.rows, facts.settings)
        near = _as_given(near, facts.sets.query.as_given, rows)
        within = data.equal_rows(block for _, block in rows.blocks(READ))
    found = data.duplicates(near, within, scored)
    if not facts.sets.leave_one_out:
        warn_of_duplicates(found, near.size)
    return found


def _as_given(near: Neighborhood, rows: Tensor, support: Source) -> Neighborhood:
    """First and last neighbors at their distances before any map; their rows are read once more."""
    indices = near.indices[:, [0, -1]]
    named, place = indices.unique(return_inverse=True)
    own = rows_at(support, named, READ)
    gaps = [(rows - own[column]).square().sum(1) for column in place.T]
    return Neighborhood(torch.stack(gaps, 1), indices)


def prior_shift_of_all(facts: Facts, support: Whole, query: Whole | None) -> PriorShift | None:
    from vicinal.audits.audit import warn_of_shift

    codes = None if query is None else query.codes
    if codes is None or not facts.scored:
        return None
    assert support.codes is not None
    shift = data.prior_shift(support.codes, codes, len(facts.sets.classes), facts.settings.seed)
    warn_of_shift(shift)
    return shift
