"""Calls of the command line in this process, and what became of each: counted by generator.

An attempt may end in one of two ways: exit code 0, or exit code 2 with one sentence, nothing
written and no log of an internal error. Anything else is a fault, and is kept with its words.
"""

import contextlib
import io
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from vicinal.cli.__main__ import main


def snapshot(folder):
    """Every file below a folder with its bytes; folders by name alone."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    return found


@contextlib.contextmanager
def inside(folder):
    here = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one line that bad input earns, or None."""
        lines = [line for line in self.err.splitlines() if not line.startswith("! ")]
        lines = [line for line in lines if line.strip()]
        one = len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) > 20
        return lines[0] if one else None


def said(folder, *words):
    """The command line in ``folder``: exit code and words."""
    out, err = io.StringIO(), io.StringIO()
    with inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Said(code, out.getvalue(), err.getvalue())


@dataclass
class Tally:
    """How often a generator tried, what it got, and every fault in full."""

    name: str
    counts: Counter = field(default_factory=Counter)
    faults: list = field(default_factory=list)

    def attempt(self, folder, what, *words, written=()):
        """Call, and hold the answer against the two allowed ones.

        ``written``: names that a call which is accepted may leave in the folder.
        """
        before = snapshot(folder)
        answer = said(folder, *words)
        after = snapshot(folder)
        self.counts["tried"] += 1
        if answer.code == 0:
            kept = {n: v for n, v in after.items() if not n.startswith(tuple(written) or ("\0",))}
            fine = kept == {n: v for n, v in before.items() if n in kept or n not in after}
            self.counts["accepted"] += fine
        else:
            fine = answer.code == 2 and answer.sentence is not None and before == after
            self.counts["sentences"] += fine
        if not fine:
            changed = sorted(
                n for n in before.keys() | after.keys() if before.get(n) != after.get(n)
            )
            self.faults.append((what, words, answer.code, answer.err[-600:], changed[:6]))
        return answer

    def __str__(self):
        return (
            f"{self.name}: tried {self.counts['tried']}, accepted {self.counts['accepted']}, "
            f"sentences {self.counts['sentences']}, anything else {len(self.faults)}"
        )

    def check(self):
        print(self)
        assert not self.faults, f"{self}\n" + "\n".join(map(str, self.faults[:5]))
