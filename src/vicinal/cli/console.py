"""What a command prints: words to the terminal, with progress; to stdout JSON alone if asked."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console as Terminal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@dataclass
class Console:
    """``--json`` moves words to stderr and keeps stdout for one JSON value; ``--quiet`` hides them.

    Warnings are kept, since each of them must also be on the page.
    """

    as_json: bool = False
    quiet: bool = False
    aside: bool = False  # words to stderr, because stdout carries rows
    warned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out = Terminal(stderr=self.as_json or self.aside, highlight=False, soft_wrap=True)
        self.err = Terminal(stderr=True, highlight=False, soft_wrap=True)

    def print(self, text: str = "") -> None:
        if not self.quiet:
            self.out.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Once each, even under ``--quiet``: a warning is never hidden."""
        if text not in self.warned:
            self.warned.append(text)
            self.err.print(f"! {text}", markup=False, style="yellow")

    def result(self, value: Any) -> None:
        if self.as_json:
            sys.stdout.write(
                json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
            )

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int | None], None]]:
        """A bar with an estimate of the time left; called with (done, total)."""
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.err, disable=self.quiet, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

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
