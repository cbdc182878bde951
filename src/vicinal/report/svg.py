"""A small chart kit: one plotting area, two linear axes, marks as SVG elements.

Colors and strokes are CSS classes, so that light, dark and print need one drawing. No ``style``
attribute is written: the page's content security policy forbids them. A mark that can be clicked
carries ``data-pick``, the filter it sets on the gallery.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

Pair = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in words, and the table behind it."""

    key: str
    title: str
    note: str
    svg: Markup
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass
class Plot:
    """Marks are collected in data units and placed on a ``width`` × ``height`` sheet."""

    x: Pair = (0.0, 1.0)
    y: Pair = (0.0, 1.0)
    width: int = 360
    height: int = 250
    left: int = 44
    right: int = 12
    top: int = 24
    bottom: int = 40
    marks: list[Markup] = field(default_factory=list)

    def sx(self, value: float) -> float:
        low, high = self.x
        inner = self.width - self.left - self.right
        return round(self.left + inner * (value - low) / ((high - low) or 1), 2)

    def sy(self, value: float) -> float:
        low, high = self.y
        inner = self.height - self.top - self.bottom
        return round(self.height - self.bottom - inner * (value - low) / ((high - low) or 1), 2)

    def bottom_axis(
        self, ticks: Sequence[float], form: Callable[[float], str], label: str = ""
    ) -> None:
        base = self.height - self.bottom
        self.segment((self.left, base), (self.width - self.right, base), "axis")
        for tick in ticks:
            self.text(self.sx(tick), base + 15, form(tick), "tick middle")
        middle = (self.left + self.width - self.right) / 2
        self.text(middle, self.height - 6, label, "label middle")

    def left_axis(
        self, ticks: Sequence[float], form: Callable[[float], str], label: str = ""
    ) -> None:
        for tick in ticks:
            y = self.sy(tick)
            self.segment((self.left, y), (self.width - self.right, y), "grid")
            self.text(self.left - 6, y + 3.5, form(tick), "tick end")
        self.text(4, self.top - 12, label, "label")

    def segment(self, start: Pair, end: Pair, kind: str) -> None:
        """A straight line in sheet units."""
        form = Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>')
        self.marks.append(form.format(kind, *start, *end))

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        if text:
            self.marks.append(
                Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, x, y, text)
            )

    def slanted(self, x: float, y: float, text: str) -> None:
        """A tick label that climbs to the right, for names too long to stand side by side."""
        form = Markup('<text class="tick end" transform="translate({} {}) rotate(-55)">{}</text>')
        self.marks.append(form.format(x, y, text))

    def line(self, points: Sequence[Pair], kind: str) -> None:
        path = " ".join(f"{self.sx(a)},{self.sy(b)}" for a, b in points)
        self.marks.append(Markup('<polyline class="line {}" points="{}"/>').format(kind, path))

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        there = [f"{self.sx(a)},{self.sy(b)}" for a, b in zip(xs, high, strict=True)]
        back = [f"{self.sx(a)},{self.sy(b)}" for a, b in zip(xs, low, strict=True)]
        self.marks.append(
            Markup('<polygon class="band" points="{}"/>').format(" ".join(there + back[::-1]))
        )

    def bar(self, x: Pair, y: Pair, kind: str = "", gap: float = 1.0) -> None:
        left, right = self.sx(x[0]) + gap, self.sx(x[1]) - gap
        low, high = self.sy(y[0]), self.sy(y[1])
        size = (max(right - left, 0.5), abs(low - high))
        self.swatch((left, min(low, high)), size, f"bar {kind}")

    def swatch(self, corner: Pair, size: Pair, kind: str) -> None:
        """A rectangle in sheet units."""
        numbers = [round(v, 2) for v in (*corner, *size)]
        form = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>')
        self.marks.append(form.format(kind, *numbers))

    def dot(self, x: float, y: float, kind: str = "", radius: float = 3.0) -> None:
        form = Markup('<circle class="dot {}" cx="{}" cy="{}" r="{}"/>')
        self.marks.append(form.format(kind, self.sx(x), self.sy(y), radius))

    def whisker(self, x: float, low: float, high: float, kind: str = "") -> None:
        self.segment((self.sx(x), self.sy(low)), (self.sx(x), self.sy(high)), f"whisker {kind}")

    def reach(self, y: float, low: float, high: float) -> None:
        """A whisker that lies, no farther than the plotting area."""
        ends = (min(max(end, self.x[0]), self.x[1]) for end in (low, high))
        left, right = map(self.sx, ends)
        self.segment((left, self.sy(y)), (right, self.sy(y)), "whisker")

    def clickable(self, x: Pair, pick: str, description: str, y: Pair | None = None) -> None:
        """An invisible field over ``x`` (and ``y``) that filters the gallery when it is clicked."""
        (left, right), (base, top) = map(self.sx, x), map(self.sy, y or self.y)
        field = Markup(
            '<rect class="hot" tabindex="0" role="button" data-pick="{}" aria-label="{}" '
            'x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
        )
        box = (left, top, round(right - left, 2), round(base - top, 2))
        self.marks.append(field.format(pick, description, *box, description))

    def draw(self, description: str, kind: str = "") -> Markup:
        """The SVG, named ``description`` for those who do not see it."""
        return Markup(
            '<svg class="chart {}" viewBox="0 0 {} {}" data-frame="{}" role="group" '
            'aria-label="{}">{}</svg>'
        ).format(
            kind, self.width, self.height, self.frame(), description, Markup("").join(self.marks)
        )

    def frame(self) -> str:
        """Data range and place of the plotting area, for the script that moves a mark."""
        ends = (*self.x, *self.y, self.sx(self.x[0]), self.sx(self.x[1]))
        return " ".join(f"{v:g}" for v in (*ends, self.sy(self.y[0]), self.sy(self.y[1])))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers across [low, high].

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(3, 3)
    [3]
    """
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]
