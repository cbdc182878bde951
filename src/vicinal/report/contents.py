"""The contents of the page: its sections in reading order, each with its charts.

A section is one line of :func:`contents` and the template of the same key in ``assets/sections``;
what it draws is a function of its part of the record in ``figures``, what it says one in ``facts``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from vicinal.audits.record import Audit
from vicinal.report.figures import structure, trust
from vicinal.report.svg import Figure

Part = TypeVar("Part")  # of the record


class Section(NamedTuple):
    key: str  # of its template, and its place in the page's address
    label: str
    title: str
    charts: Sequence[Figure] = ()


def contents(audit: Audit) -> list[Section]:
    layers = drawn(audit.layers, structure.layers, structure.layer_history)
    credibility = drawn(audit.credibility, trust.credibility, trust.p_values)
    network = drawn(audit.network, structure.density, structure.denoising)
    return [
        Section("trust", "Trust", "How far to trust it", trust_charts(audit)),
        Section("credibility-section", "Credibility", "Credibility", credibility),
        Section("cases", "Cases", "Look at cases"),
        Section("labels", "Labels", "Labels to review"),
        Section("classes", "Classes", "Classes and data", class_charts(audit)),
        Section("layers-section", "Layers", "Layers", layers),
        Section("network", "Network", "The network’s own view", network),
        Section("map", "Map", "Map"),
        Section("stress", "Stress", "Stress"),
        Section("limits", "Limits", "Limits and provenance"),
    ]


def drawn(part: Part | None, *forms: Callable[[Part], Figure | None]) -> list[Figure]:
    """A part of the record in each of these forms; a missing part has no chart."""
    return [chart for form in forms if (chart := form(part)) is not None] if part else []


def trust_charts(audit: Audit) -> list[Figure]:
    """Reliability of each head, the recommended one first, then the choices of k and threshold."""
    heads = sorted(audit.heads, key=lambda head: head.name != audit.recommended)
    reliability = [trust.reliability(h, h.name == audit.cases.head) for h in heads if h.bins]
    choices = drawn(audit.sweep, trust.sweep) + drawn(audit.risk_coverage, trust.risk_coverage)
    return reliability + choices


def class_charts(audit: Audit) -> list[Figure]:
    return drawn(audit.borders, lambda part: structure.borders(part, audit.classes)) + drawn(
        audit.prior_shift, lambda part: structure.prior_shift(part, audit.classes)
    )
