"""What a command prints: words to the terminal, with progress and where the time went; to stdout
JSON alone if asked."""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# What moves a terminal's cursor, colors or order of letters: C0 but for the line break and the tab,
# C1, and the marks of direction. Lone surrogates stand for bytes of a name that are no UTF-8.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text as a terminal may have it: ids and names of others control nothing.

    >>> printable("a\\x1b[31mb\\rc")
    'a�[31mb�c'
    """
    return _CONTROLS.sub("\ufffd", text)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for a terminal or a pipe: the same characters are written as escapes, and lose nothing.

    >>> json_text("a\\x9bé")
    '"a\\\\u009bé"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def in_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells under one another, every column as wide as it needs."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([*map(str.ljust, line, widths)] for line in lines)
    return ["  ".join(cells).rstrip() for cells in padded]


class Clock:
    """Seconds by phase; a phase ends where the next begins.

    >>> clock = Clock("reading")
    >>> clock.now("neighbors"); clock.now("reading")
    >>> list(clock.seconds())
    ['reading', 'neighbors']
    """

    def __init__(self, phase: str) -> None:
        self.phase, self.since = phase, time.perf_counter()
        self.spent: dict[str, float] = {phase: 0.0}

    def now(self, phase: str) -> None:
        """What is done from here on."""
        there = time.perf_counter()
        self.spent[self.phase] += there - self.since
        self.spent.setdefault(phase, 0.0)
        self.phase, self.since = phase, there

    def seconds(self) -> dict[str, float]:
        """By phase, in the order in which they began."""
        self.now(self.phase)
        return dict(self.spent)

    def __str__(self) -> str:
        spent = self.seconds()
        total = sum(spent.values())
        parts = [f"{name} {s:.1f}" for name, s in spent.items() if s >= 0.05 * total]
        return f"took   {total:.1f} s: {' · '.join(parts)}"


class Terminal(RichConsole):
    """rich's, but whoever stops reading is answered by ``main``, not by exit code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass
class Console:
    """``--json`` moves words to stderr and keeps stdout for one JSON value; ``--quiet`` hides them.

    Warnings are kept, since each of them must also be on the page.
    """

    as_json: bool = False
    quiet: bool = False
    aside: bool = False  # words to stderr, because stdout carries rows
    warned: list[str] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)
    clock: Clock | None = None  # of the command, where it tells its time

    def __post_init__(self) -> None:
        self.out = Terminal(stderr=self.as_json or self.aside, highlight=False, soft_wrap=True)
        self.err = Terminal(stderr=True, highlight=False, soft_wrap=True)

    def print(self, text: str = "") -> None:
        if not self.quiet:
            self.out.print(printable(text), markup=False)

    def note(self, text: str) -> None:
        """Once each, however many sets it is true of."""
        if text not in self.noted:
            self.noted.add(text)
            self.print(text)

    def warn(self, text: str) -> None:
        """Once each, even under ``--quiet``: a warning is never hidden."""
        if text not in self.warned:
            self.warned.append(text)
            self.err.print(f"! {printable(text)}", markup=False, style="yellow")

    def result(self, value: Any) -> None:
        if self.as_json:
            sys.stdout.write(json_text(value, indent=1) + "\n")

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int | None], None]]:
        """A bar with an estimate of the time left; called with (done, total)."""
        clock = self.clock or Clock(title)
        around = clock.phase
        clock.now(title)
        with self.steps(clock) as step:
            yield lambda done, total: step(title, done, total)
        clock.now(around)

    @contextmanager
    def steps(self, clock: Clock) -> Iterator[Callable[[str, int, int | None], None]]:
        """The same for several phases: called with (phase, done, total); the clock is told."""
        columns = (
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.err, disable=self.quiet, transient=True) as bar:
            task = bar.add_task(clock.phase, total=None)

            def step(phase: str, done: int, total: int | None) -> None:
                if phase != clock.phase:
                    clock.now(phase)
                    bar.reset(task, description=phase)
                bar.update(task, completed=done, total=total)

            yield step

    @contextmanager
    def library_warnings(self) -> Iterator[None]:
        """What the library warns of inside is printed here, in the form of our own warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                yield
            finally:
                for item in caught:
                    if issubclass(item.category, UserWarning):
                        self.warn(str(item.message))
