"""Where classes touch, how layers mix them, and how crowded the network finds each row."""

from __future__ import annotations

from typing import Any

from vicinal.audits.record import Audit
from vicinal.audits.sections import Borders, Histogram, NetworkView, PriorShift
from vicinal.report.figures.trust import histogram_rows
from vicinal.report.svg import Figure, Plot, ticks
from vicinal.report.words import clean, count, name, percent, plural

MOST_CLASSES = 20  # with more bars than this nothing is read
MOST_SQUARES = 12  # on a side of the heat map
MOST_POINTS = 5000
ROOMY = 22  # a square this wide holds its value
SCALE = 28  # the height of the shades above the squares, with their numbers


def borders(record: Borders, classes: tuple[str, ...]) -> Figure | None:
    """Share of the between-class edge weight for each pair: darker means the classes touch."""
    if len(classes) < 3 or not record.pairs:  # all weight between two is between these two
        return None
    touch: dict[int, float] = {}
    for pair in record.pairs:
        touch[pair.a] = touch.get(pair.a, 0.0) + pair.share
        touch[pair.b] = touch.get(pair.b, 0.0) + pair.share
    shown = sorted(sorted(touch, key=lambda c: -touch[c])[:MOST_SQUARES])
    place = {label: i for i, label in enumerate(shown)}
    size = len(shown)
    edge = 14 + 7 * max(len(name(classes[label], 14, classes)) for label in shown)
    cell = max(ROOMY, min(44, (384 - edge) // size))
    side = edge + 8 + cell * size
    plot = Plot((0, size), (0, size), side, side + SCALE, edge, 8, 8 + SCALE, edge)
    inside = [pair for pair in record.pairs if pair.a in place and pair.b in place]
    most = max((pair.share for pair in inside), default=1.0)
    for label, i in place.items():
        named = name(classes[label], 14, classes)
        plot.text(edge - 6, plot.sy(size - i - 0.5) + 4, named, "tick end")
        plot.slanted(plot.sx(i + 0.5) + 5, plot.sy(0) + 12, named)
        plot.bar((i, i + 1), (size - i - 1, size - i), "self", 0.5)
    for pair in inside:
        for a, b in ((pair.a, pair.b), (pair.b, pair.a)):
            at = place[a], size - 1 - place[b]
            both = " and ".join(name(classes[code], 24, classes) for code in (a, b))
            said = f"{both}: {100 * pair.share:.3g} %"
            _cell(plot, at, pair.share, heat_step(pair.share / most))
            plot.clickable((at[0], at[0] + 1), f"pair={a}~{b}", said, (at[1], at[1] + 1))
    _scale(plot, most)
    note = f"In % of all between-class edge weight; {record.how}."
    if (hidden := len(touch) - size) > 0:
        verb = "touches less is" if hidden == 1 else "touch less are"
        note += f" {plural(hidden, 'class', 'classes')} that {verb} in the table only."
    return Figure(
        "borders",
        "Which classes touch",
        note,
        plot.draw("Heat map of class borders", "heatmap"),
        ("class", "class", "share"),
        [[classes[p.a], classes[p.b], f"{100 * p.share:.3g} %"] for p in record.pairs[:200]],
    )


def _scale(plot: Plot, most: float) -> None:
    """The shades and what they stand for: by square roots, so half the way is a quarter."""
    left, right = plot.sx(plot.x[0]), plot.sx(plot.x[1])
    ends = [left + (right - left) * end / 9 for end in (0, *(s + 0.5 for s in range(1, 9)), 9)]
    for shade in range(1, 10):  # as heat_step rounds
        low, high = ends[shade - 1 : shade + 1]
        plot.swatch((low, 16), (high - low, 8), f"heat{shade}")
    for part, kind in ((0.0, "tick"), (0.25, "tick middle"), (1.0, "tick end")):
        at = left + (right - left) * part**0.5
        plot.text(at, 11, f"{100 * most * part:.3g}" + " %" * (part == 1), kind)


def _cell(plot: Plot, at: tuple[int, int], share: float, shade: int) -> None:
    """One square of the heat map with its value."""
    x, y = at
    plot.bar((x, x + 1), (y, y + 1), f"heat{shade}", 0.5)
    ink = "middle light" if shade >= 7 else "middle ink"
    plot.text(plot.sx(x + 0.5), plot.sy(y + 0.5) + 4, heat_value(share), ink)


def heat_value(share: float) -> str:
    """In percent; the heading says so.

    >>> heat_value(0.21), heat_value(0.0034), heat_value(0.0004), heat_value(0.00004)
    ('21', '.3', '.04', '0')
    """
    digits = 0 if share >= 0.095 or share < 0.00005 else 1 if share >= 0.00095 else 2
    return f"{100 * share:.{digits}f}".replace("0.", ".")


def heat_step(share: float) -> int:
    """One of nine shades; square root, so that small borders are told from none."""
    return max(1, min(9, round(9 * share**0.5)))


def prior_shift(record: PriorShift, classes: tuple[str, ...]) -> Figure:
    """Class shares side by side: the support votes with its own frequencies."""
    order = sorted(range(len(classes)), key=lambda c: -abs(record.support[c] - record.query[c]))
    shown = sorted(order[:MOST_CLASSES])
    most = max([*record.support, *record.query], default=0.1) * 1.1 or 0.1
    row = 22
    edge = 16 + 7 * max((len(name(classes[label], 18, classes)) for label in shown), default=1)
    plot = Plot((0, most), (0, len(shown)), 360, 44 + row * len(shown), edge, 14, 4, 40)
    for i, label in enumerate(shown):
        top = len(shown) - i
        plot.text(edge - 6, plot.sy(top - 0.5) + 4, name(classes[label], 18, classes), "tick end")
        plot.bar((0, record.support[label]), (top - 0.48, top - 0.14), "soft", 0)
        plot.bar((0, record.query[label]), (top - 0.86, top - 0.52), "second", 0)
        said = f"{name(classes[label], 24, classes)}: show its rows"
        plot.clickable((0, most), f"class={label}", said, (top - 0.9, top - 0.1))
    plot.bottom_axis(ticks(0, most, 4), lambda v: f"{100 * v:.3g}", "share of rows, %")
    few = f"; the {MOST_CLASSES} classes that differ most" if len(shown) < len(classes) else ""
    return Figure(
        "prior-shift",
        "Class shares in support and query",
        f"Upper bar support, lower bar query{few}. The shares differ by {percent(record.distance)} "
        f"of the rows in all; sampling alone gives about {percent(record.by_chance)}.",
        plot.draw("Class shares in support and query"),
        ("class", "support", "query"),
        [
            [name, percent(s), percent(q)]
            for name, s, q in zip(classes, record.support, record.query, strict=True)
        ],
    )


def density(view: NetworkView) -> Figure:
    """N_S of each row: how many rows the network treats alike."""
    rows = f"{plural(view.n, 'row')} of the {view.rows_of}"
    note = f"{rows}; {view.how}. Ranks are comparable, absolute counts are not."
    pick = "crowd" if view.rows_of == "query" else None
    title = "How crowded the network finds each row"
    return histogram(view.density, "density", title, note, pick)


def denoising(view: NetworkView) -> Figure | None:
    if view.denoising is None:
        return None
    note = (
        "Small: many alike rows average label noise out. Large: a wrong label is learned as it is. "
    )
    title = "Self-denoising factor"
    return histogram(view.denoising, "denoising", title, note + view.denoising_note)


def histogram(
    record: Histogram, key: str, title: str, note: str, pick: str | None = None
) -> Figure:
    """Plain counts; with ``pick``, a click on a bin filters the gallery by that column."""
    most = max(record.counts, default=1) * 1.1 or 1
    plot = Plot((record.edges[0], record.edges[-1]), (0, most), height=220)
    plot.left_axis(ticks(0, most, 4), lambda v: count(int(v)), "rows")
    for i, value in enumerate(record.counts):
        span = (record.edges[i], record.edges[i + 1])
        plot.bar(span, (0, value), "soft")
        if pick and value:
            description = f"{plural(value, 'row')} from {span[0]:.3g} to {span[1]:.3g}: show them"
            plot.clickable(span, f"{pick}={span[0]:g}~{span[1]:g}", description)
    about = 5 if len(f"{ticks(*plot.x)[0]:g}") < 6 else 3  # long labels would touch
    axis = record.name.replace("of N_S", "of crowding (N_S)")
    plot.bottom_axis(ticks(*plot.x, about), lambda v: f"{v:g}", axis)
    rows = histogram_rows([record])
    return Figure(key, title, note, plot.draw(title), ("from", "to", "rows"), rows)


def fit_map_data(audit: Audit, support: list[int]) -> dict[str, Any] | None:
    """The points of the fit map, an even sample of them where there are very many.

    ``support``: the rows of the support that the page has; a point names its place among them.
    """
    network = audit.network
    if network is None or not network.fit_map:
        return None
    kept = network.fit_map[:: max(1, -(-len(network.fit_map) // MOST_POINTS))]
    of_query = network.fit_rows_of == "query"
    place = {} if of_query else {row: i for i, row in enumerate(support)}
    return {
        "query": of_query,
        "row": [point.row for point in kept],
        "place": [place.get(point.row, -1) for point in kept],
        "x": [round(point.density, 1) for point in kept],
        "y": [round(point.variance, 3) for point in kept],
        "group": [clean(point.group) for point in kept],
    }


def network_data(audit: Audit) -> dict[str, Any] | None:
    """Rows that stand for each bin of density, and single rows' similarity histograms."""
    network = audit.network
    if network is None:
        return None
    return {
        "query": network.rows_of == "query",
        "examples": network.density.examples,
        "similarity": {h.name: [h.edges, h.counts] for h in network.similarity},
    }
