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
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from vicinal.audits.record import Audit, Media
from vicinal.files import write_atomically
from vicinal.report import facts, words
from vicinal.report.figures import structure, trust
from vicinal.report.payload import Payload, fill
from vicinal.report.svg import Figure

SCRIPTS = ("base.js", "media.js", "state.js", "panel.js", "gallery.js", "labels.js", "charts.js",
           "live.js", "start.js")  # fmt: skip
MEGABYTE = 1_000_000


def render(audit: Audit, media: Media | None = None, *, max_mb: float = 10.0) -> str:
    """The page as one HTML text of at most ``max_mb`` megabytes, data and thumbnails inside."""
    view = view_of(audit, media)
    shell = page(view, Payload("{}", (), 0, 0, 0, 0))
    payload = fill(audit, media, int(max_mb * MEGABYTE) - len(shell.encode()) - 4096)
    return page(view, payload)


def save_report(
    audit: Audit, path: str | Path, media: Media | None = None, *, max_mb: float = 10.0
) -> None:
    """Write :func:`render`'s page; the file appears whole or not at all."""
    write_atomically(path, render(audit, media or audit.media, max_mb=max_mb))


def notebook_frame(audit: Audit, media: Media | None = None, *, height: int = 820) -> str:
    """The page in a frame of its own for ``_repr_html_``: no widget, no extension, no network."""
    text = html.escape(render(audit, media, max_mb=6.0), quote=True)
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{height}" '
        f'style="border:1px solid #ccc" title="vicinal report" srcdoc="{text}"></iframe>'
    )


def live_files(
    audit: Audit,
    media: Media | None = None,
    *,
    token: str,
    max_mb: float = 200.0,
    full_media: bool = False,
) -> dict[str, bytes]:
    """What ``vicinal explore`` serves: the page, its data and its thumbnails, by file name.

    ``full_media``: the server also has full-size pictures at ``media/query/ROW``.
    """
    payload = fill(audit, media, int(max_mb * MEGABYTE))
    view = {**view_of(audit, media), "full_media": full_media}
    return {
        "index.html": page(view, payload, token=token).encode("utf-8", "replace"),
        "data.json": payload.json.encode("utf-8", "replace"),
        "sprites.css": payload.css.encode("ascii"),
    }


def view_of(audit: Audit, media: Media | None) -> dict[str, Any]:
    """Everything the template prints that does not depend on which cards fit."""
    return {
        "audit": audit,
        "media": media,
        "headline": facts.headline(audit),
        "best": facts.recommended(audit) if audit.heads else None,
        "shares": facts.verdict_shares(audit),
        "meaning": facts.MEANING,
        "effects": facts.effect_sentences(audit),
        "limits": facts.limits(audit),
        "fit_groups": facts.fit_groups(audit),
        "figures": figures(audit),
        "full_media": False,
    }


def figures(audit: Audit) -> dict[str, list[Figure]]:
    """The charts of each section, in reading order; a missing section has none."""
    charts: dict[str, list[Figure | None]] = {
        "reliability": [
            trust.reliability(head, picks=head.name == audit.cases.head)
            for head in heads_in_order(audit)
            if head.bins
        ],
        "trust": [
            trust.risk_coverage(audit.risk_coverage) if audit.risk_coverage else None,
        ],
        "sweep": [trust.sweep(audit.sweep) if audit.sweep and audit.sweep.k else None],
        "credibility": [
            form(audit.credibility)
            for form in (trust.credibility, trust.p_values)
            if audit.credibility
        ],
        "classes": [
            structure.borders(audit.borders, audit.classes)
            if audit.borders and audit.borders.pairs
            else None,
            structure.prior_shift(audit.prior_shift, audit.classes) if audit.prior_shift else None,
        ],
        "layers": [
            form(audit.layers)
            for form in (structure.layers, structure.layer_history)
            if audit.layers
        ],
        "network": list(network_figures(audit)),
    }
    return {key: [chart for chart in drawn if chart] for key, drawn in charts.items()}


def heads_in_order(audit: Audit) -> list[Any]:
    """The recommended head first, then as given."""
    return sorted(audit.heads, key=lambda head: head.name != audit.recommended)


def network_figures(audit: Audit) -> list[Figure]:
    view = audit.network
    if view is None:
        return []
    drawn = [
        structure.histogram(
            view.density, "density", "How crowded the network finds each row",
            f"{words.plural(view.n, 'row')} of the {view.rows_of}; {view.how}. Ranks are "
            "comparable, absolute counts are not.",
            view.density.name, "crowd" if view.rows_of == "query" else None,
        )
    ]  # fmt: skip
    if view.denoising is not None:
        note = (
            "Small: many alike rows average label noise out. Large: a wrong label is learned as "
            "it is. "
        )
        drawn.append(
            structure.histogram(
                view.denoising, "denoising", "Self-denoising factor",
                note + view.denoising_note, view.denoising.name,
            )
        )  # fmt: skip
    return drawn


def page(view: dict[str, Any], payload: Payload, token: str | None = None) -> str:
    """The template with its own hashes in the policy. With ``token``, the live form."""
    live = token is not None
    style = asset("page.css") + ("" if live else payload.css)
    script = "(() => {\n'use strict';\n" + "\n".join(map(asset, SCRIPTS)) + "\n})();"
    return environment().get_template("page.html").render(
        **view,
        payload=payload,
        packed="" if live else payload.packed,
        style=style,
        script=script,
        policy=policy(script, style, live),
        token=token,
    )  # fmt: skip


def policy(script: str, style: str, live: bool) -> str:
    """What the page may do: run its own script, apply its own style, show inline images."""
    own = "'self' " if live else ""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{fingerprint(script)}'",
            f"style-src {own}'{fingerprint(style)}'",
            f"img-src {own}data:",
            *(["connect-src 'self'"] if live else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def fingerprint(text: str) -> str:
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
        trim_blocks=True,
        lstrip_blocks=True,
    )
    forms: list[Callable[..., str]] = [
        *(words.clean, words.short, words.percent, words.points, words.decimal),
        *(words.count, words.plural, words.signed, words.sentence),
    ]
    env.filters.update({form.__name__: form for form in forms})
    env.filters["at_floor"] = facts.at_floor
    return env
