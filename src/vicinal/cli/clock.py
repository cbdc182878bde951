"""Where the time of a command goes: a name for what is done now, and seconds by name at the end."""

from __future__ import annotations

import time


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
        if (rest := sum(s for s in spent.values() if s < 0.05 * total)) >= 0.05:
            parts.append(f"the rest {rest:.1f}")
        return f"took   {total:.1f} s: {' · '.join(parts)}"
