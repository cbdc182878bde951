"""One self-contained page: facts and figures rendered here, interaction by one inlined script.

The page may load nothing: its content security policy names the hashes of its own script and style
and forbids every connection. The live form (``vicinal explore``) is the same page with its data
fetched from its own server.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jinja2

from vicinal.audits.record import Audit, Media
from vicinal.checks import InputError
from vicinal.files import reading, write_atomically
from vicinal.report import facts, opening, words
from vicinal.report.figures import depth, stress, structure, trust
from vicinal.report.figures.reliability import reliability
from vicinal.report.payload import Payload, fill
from vicinal.report.svg import Figure

Part = TypeVar("Part")  # of the record
SCRIPTS = ("base.js", "media.js", "state.js", "panel.js", "gallery.js", "labels.js", "charts.js",
           "threshold.js", "follow.js", "colors.js", "map.js", "opening.js", "live.js",
           "start.js")  # fmt: skip
MEGABYTE = 1_000_000
MOST_CARDS = 10_000  # in a file; with more it opens slowly, and nobody looks at so many


class Section(NamedTuple):
    key: str  # of its template, and its place in the page's address
    label: str
    title: str
    charts: Sequence[Figure] = ()


def contents(audit: Audit) -> list[tuple[Any, Section]]:
    """The sections in reading order, each beside what it needs to be shown.

    A line here is a template of that key in assets/sections.
    """
    layers = drawn(audit.layers, depth.layers, depth.layer_history)
    ranks = drawn(audit.credibility, trust.credibility, trust.p_values)
    network = drawn(audit.network, structure.density, structure.denoising)
    stressed = drawn(audit.stress, stress.verdicts_under_stress)
    classes = drawn(audit.borders, lambda part: structure.borders(part, audit.classes))
    classes += drawn(audit.prior_shift, lambda part: structure.prior_shift(part, audit.classes))
    known = audit.class_facts or classes or audit.duplicates or audit.hubs
    return [
        (audit.map, Section("map", "Map", "Map")),
        (True, Section("cases", "Cases", "Look at cases")),
        (audit.labels, Section("labels", "Labels", "Labels to review")),
        (audit.heads, Section("trust", "Trust", "How far to trust it", trust_charts(audit))),
        (audit.credibility, Section("credibility-section", "Credibility", "Credibility", ranks)),
        (audit.unknowns, Section("unknowns", "Unknowns", "Unknown inputs")),
        (known, Section("classes", "Classes", "Classes and data", classes)),
        (audit.layers, Section("layers-section", "Layers", "Layers", layers)),
        (audit.network, Section("network", "Network", "The network’s own view", network)),
        (audit.stress, Section("stress", "Stress", "Stress", stressed)),
        (True, Section("limits", "Limits", "Limits and provenance")),
    ]


def drawn(part: Part | None, *forms: Callable[[Part], Figure | None]) -> list[Figure]:
    """A part of the record in each of these forms; a missing part has no chart."""
    return [chart for form in forms if (chart := form(part)) is not None] if part else []


def trust_charts(audit: Audit) -> list[Figure]:
    """Reliability of each head, the recommended one first, then the choices of k and threshold."""
    heads = sorted(audit.heads, key=lambda head: head.name != audit.recommended)
    diagrams = [reliability(h, h.name == audit.cases.head) for h in heads if h.bins]
    choices = drawn(audit.sweep, trust.sweep) + drawn(audit.risk_coverage, trust.risk_coverage)
    return diagrams + choices


def render(
    audit: Audit, media: Media | None = None, *, max_mb: float = 10.0, predict: str = ""
) -> str:
    """The page as one HTML text of at most ``max_mb`` megabytes, data and thumbnails inside.

    Parameters
    ----------
    audit, media : the record, and what its rows look like.
    max_mb : how large the text may be; cards are left out to keep to it.
    predict : where a live page sends what is typed or dropped; empty: it is not live.
    """
    view = view_of(audit, media, predict)
    shell = len(page(view, Payload("{}")).encode("utf-8", "replace")) + 4096
    payload = fill(audit, media, int(max_mb * MEGABYTE) - shell, MOST_CARDS)
    if shell + payload.size > max_mb * MEGABYTE:
        least = (shell + payload.size) / MEGABYTE
        raise InputError(
            f"a page of {max_mb:g} MB has no room for this audit even without cards: it takes "
            f"{least:.2f} MB. Give --max-mb {least + 0.1:.1f} or more."
        )
    return page(view, payload)


def save_report(
    audit: Audit,
    path: str | Path,
    media: Media | None = None,
    *,
    max_mb: float = 10.0,
    predict: str = "",
) -> None:
    """Write :func:`render`'s page; the file appears whole or not at all.

    Parameters
    ----------
    audit : the record to show.
    path : the HTML file to write.
    media : what the rows look like; without it the media that the audit carries, if any.
    max_mb : how large the file may be; how many cards did not fit is said on the page.
    predict : the command that judges new rows with the head that was kept, if there is one.
    """
    write_atomically(path, render(audit, media or audit.media, max_mb=max_mb, predict=predict))


def notebook_frame(audit: Audit, media: Media | None = None, *, height: int = 820) -> str:
    """The page in a frame of its own for ``_repr_html_``: no widget, no extension, no network."""
    text = html.escape(render(audit, media, max_mb=6.0), quote=True)
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{height}" '
        f'style="border:1px solid #ccc" title="vicinal report" srcdoc="{text}"></iframe>'
    )


def live_files(
    audit: Audit, media: Media | None = None, *, token: str, max_mb: float = 200.0
) -> dict[str, bytes]:
    """What ``vicinal explore`` serves: the page, its data and its thumbnails, by file name.

    Parameters
    ----------
    audit : the record to show.
    media : what its rows look like; None: cards show numbers only.
    token : what the page has to show the server with every request.
    max_mb : how large data and thumbnails may be together.
    """
    # The record comes from a file: parts of it that do not fit together are the file's fault.
    with reading(f"the audit {audit.name!r}", "Its parts do not fit together; run it again."):
        payload = fill(audit, media, int(max_mb * MEGABYTE))
        index = page(view_of(audit, media), payload, token=token)
        return {
            "index.html": index.encode("utf-8", "replace"),
            "data.json": payload.json.encode("utf-8", "replace"),
            "sprites.css": payload.css.encode("ascii"),
        }


def view_of(audit: Audit, media: Media | None, predict: str = "") -> dict[str, Any]:
    """Everything the template prints that does not depend on which cards fit."""
    listed = contents(audit)
    reasons = {key.split("_")[0] for key in audit.not_checked}
    absent = [s.label for content, s in listed if not content and s.label.lower() not in reasons]
    parts = {
        "facts": facts,
        "opening": opening,
        "sections": [section for content, section in listed if content],
        "absent": [name.lower() for name in absent if name != "Unknowns"],
    }
    return {"audit": audit, "media": media, "predict": predict, **parts}


def page(view: dict[str, Any], payload: Payload, token: str | None = None) -> str:
    """The template with its own hashes in the policy. With ``token``, the live form."""
    live = token is not None
    style = asset("page.css") + ("" if live else payload.css)
    script = inlined(*SCRIPTS)
    return environment().get_template("page.html").render(
        **view,
        payload=payload,
        packed="" if live else payload.packed,
        style=style,
        script=script,
        policy=policy(script, style, live),
        token=token,
    )  # fmt: skip


def inlined(*parts: str) -> str:
    """One script of these files, inside one function."""
    return "(() => {\n'use strict';\n" + "\n".join(map(asset, parts)) + "\n})();"


def policy(script: str, style: str, live: bool = False) -> str:
    """What the page may do: run its own script, apply its own style, show inline images."""
    own = "'self' " if live else ""
    connect = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src '{integrity(script)}'; "
        f"style-src {own}'{integrity(style)}'; img-src {own}data:; {connect}"
        "base-uri 'none'; form-action 'none'"
    )


def integrity(text: str) -> str:
    """The hash by which a content security policy knows a script or a style."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def asset(name: str) -> str:
    return (resources.files("vicinal.report") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def environment() -> jinja2.Environment:
    """Everything is escaped: names and texts come from users."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda v: words.unbroken(v) if type(v) is str else v,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    forms: list[Callable[..., str]] = [
        *(words.clean, words.short, words.name, words.percent, words.points, words.level),
        *(words.decimal, words.count, words.plural, words.signed, words.sentence, words.capital),
        *(words.flags, words.map_words),
    ]
    env.filters.update({form.__name__: form for form in forms})
    env.filters["at_floor"] = facts.at_floor
    return env
