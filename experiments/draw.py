"""How the pictures look: light, 600 px wide, eight-bit, drawn from the stored numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from vicinal.files import write_atomically

COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
THEIRS = {"color": "#222222", "marker": "|", "markersize": 11, "linestyle": "none"}
LIMIT = 60_000  # bytes


def figure(height: float = 3.0) -> Figure:
    """600 px wide; ``set_figheight`` in ``draw`` makes it taller (1 is 100 px)."""
    made = Figure(figsize=(6, height), dpi=100, layout="constrained")
    FigureCanvasAgg(made)
    return made


def tidy(ax: Axes, title: str = "", x: str = "", y: str = "") -> Axes:
    """Small labels, no box."""
    ax.set_title(title.replace("_", " "), fontsize=9)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def over_seeds(values: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error of (seeds, points)."""
    v = np.asarray(values, dtype=float)
    error = v.std(0, ddof=1) / len(v) ** 0.5 if len(v) > 1 else np.zeros(v.shape[1:])
    return v.mean(0), error


def curves(ax: Axes, x: Sequence[float], lines: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """A line per name with a band of one standard error; values are (seeds, points).

    Beyond as many as there are colors, the lines are dashed.
    """
    for at, (name, values) in enumerate(lines.items()):
        (mean, error), color = over_seeds(values), COLORS[at % len(COLORS)]
        style = {"color": color, "linestyle": "-" if at < len(COLORS) else "--", "linewidth": 1.4}
        ax.plot(x, mean, label=name, marker="o", markersize=3, **style)
        ax.fill_between(x, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)


def bars(ax: Axes, groups: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Bars by group and name with standard errors; values are one per seed."""
    names = list(next(iter(groups.values())))
    width = 0.8 / len(names)
    for at, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        told = [over_seeds([[v] for v in group[name]]) for group in groups.values()]
        places = np.arange(len(groups)) + (at - (len(names) - 1) / 2) * width
        ax.bar(places, [m[0] for m, _ in told], width, yerr=[e[0] for _, e in told], color=color,
               label=name, error_kw={"linewidth": 0.8})  # fmt: skip
    ax.set_xticks(range(len(groups)), list(groups))


def across(
    ax: Axes, rows: Mapping[str, Sequence[float]], theirs: Mapping[str, float], line: float
) -> None:
    """As :func:`dots`, lying bars from ``line``, which is "alike"."""
    for at, (name, values) in enumerate(rows.items()):
        mean, error = over_seeds([[v] for v in values])
        ax.barh([at], mean - line, 0.7, line, xerr=error, error_kw={"linewidth": 0.8},
                color=COLORS[int(mean[0] > line)])  # fmt: skip
        if name in theirs:
            ax.plot([theirs[name]], [at], **THEIRS)
    ax.axvline(line, color="#999999", linewidth=0.7)
    ax.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)


def dots(
    ax: Axes,
    rows: Mapping[str, Sequence[float]],
    theirs: Mapping[str, float] | None = None,
    color: str = COLORS[0],
) -> None:
    """One row per name: mean and standard error over the seeds, the paper's value as a tick."""
    for at, (name, values) in enumerate(rows.items()):
        mean, error = over_seeds([[v] for v in values])
        ax.errorbar(mean, [at], xerr=error, fmt="o", color=color, markersize=4, linewidth=1)
        if theirs and name in theirs:
            ax.plot([theirs[name]], [at], **THEIRS)
    ax.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="y", color="#eeeeee")


def diagram(ax: Axes, bins: np.ndarray, color: str = COLORS[0]) -> None:
    """Reliability from (seeds, 3, bins): confidence, accuracy and weight (the dot), pooled."""
    bins = np.asarray(bins, dtype=float)
    weight = bins[:, 2].sum(0)
    filled = weight > 0
    x, y = (bins[:, :2] * bins[:, 2:]).sum(0)[:, filled] / weight[filled]
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=0.7)
    ax.scatter(x, y, s=3 + 60 * weight[filled] / weight.sum(), color=color)


def sheet(images: np.ndarray, columns: int, gap: int = 1) -> np.ndarray:
    """(n, h, w) or (n, h, w, 3) in 0..1 as one picture, row by row."""
    n, h, w = images.shape[:3]
    rows = -(-n // columns)
    page = np.ones((rows * (h + gap) - gap, columns * (w + gap) - gap, *images.shape[3:]))
    for at, image in enumerate(images):
        top, left = at // columns * (h + gap), at % columns * (w + gap)
        page[top : top + h, left : left + w] = image
    return page


def save_png(drawn: Figure, path: Path) -> int:
    """Eight-bit, with fewer colors until it is small enough; the size in bytes."""
    drawn.canvas.draw()
    picture = Image.fromarray(np.asarray(drawn.canvas.buffer_rgba())).convert("RGB")
    for colors in (128, 64, 32, 16):
        raw = io.BytesIO()
        picture.quantize(colors, dither=Image.Dither.NONE).save(raw, "PNG", optimize=True)
        if raw.tell() <= LIMIT:
            break
    write_atomically(path, raw.getvalue())
    return raw.tell()
