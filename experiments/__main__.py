"""Figures and tables anew: ``python -m experiments [pattern ...] [--preset quick|cpu|paper]``.

Without a pattern, all whose data are there. A run that was cut resumes at its next seed. Then the
scoreboard (experiments/README.md, docs/reproduction.md) and the gallery are written. What is stored
is not run again, unless ``--into DIR`` asks for all anew; then the two are compared.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments import board, compare
from experiments.data import NoDataError, Source
from experiments.record import ROOT, VERDICTS, load, path_of
from experiments.runner import fits, left, names, parser, perform, redraw


def run(arguments: Sequence[str]) -> int:
    given = parser().parse_args(arguments)
    chosen = names(given.patterns)
    lost = [p for p in given.patterns if not any(fits(name, p) for name in chosen)]
    if lost:
        print(f"no experiment fits {' '.join(lost)}; see --list")
        return 2
    if given.list:
        print("\n".join(map(line, chosen)))
        return 0
    if given.redraw:
        for name in chosen:
            if refused := redraw(name, given.preset):
                print(refused)
    elif not (given.board or given.check):
        root = None if given.preset == "quick" else Path(given.data)
        source = Source(root, given.device)
        code = perform_all(chosen, given.preset, source, given.jobs, given.into)
        if given.into and not code:
            print("\n".join(compare.told(chosen, given.preset, given.into)))
        if code or given.into or given.preset != "cpu":
            return code
    if given.check:
        changed = board.changed()
        print("\n".join(f"{path} is not what --board writes" for path in changed) or "as committed")
        return 1 if changed else 0
    board.write()
    print(board.first_line())
    return 0


def perform_all(
    chosen: Sequence[str], preset: str, source: Source, jobs: int, into: Path | None = None
) -> int:
    """Each in turn, with what is done and what is left; without data is said, not failed."""
    folders = {name: into / name.split("/")[0] if into else None for name in chosen}
    todo = {name: left(name, preset, folders[name]) for name in chosen}
    start, tried, expected = time.time(), 0, 0.0
    for at, name in enumerate(chosen):
        # as slow as what has been done so far, by the clock, was against what was expected of it
        pace = (time.time() - start) / expected if expected else 1 / jobs
        minutes = sum(todo[n] for n in chosen[at:]) * pace / 60
        print(f"[{at + 1}/{len(chosen)}] {name}, about {minutes:.0f} min left", flush=True)
        try:
            perform(name, preset, source, jobs=jobs, folder=folders[name],
                    say=lambda text: print("  " + text, flush=True))  # fmt: skip
            tried, expected = tried + 1, expected + todo[name]
        except NoDataError as missing:
            print(f"  not tried (no data): {missing}", flush=True)
    print(f"{tried} of {len(chosen)} in {(time.time() - start) / 60:.1f} min")
    return 0 if tried else 2


def line(name: str) -> str:
    """Name, seconds of the last run and verdicts of its claims, the title below."""
    title = (ROOT / f"{name}.py").read_text().split('"""')[1].splitlines()[0]
    record = load(path_of(name, "cpu"))
    if not record:
        return f"{name:<52} not tried\n    {title}"
    verdicts = [c["verdict"] for c in record["claims"] if not c["beyond"] or "beyond/" in name]
    told = ", ".join(f"{verdicts.count(v)} {v}" for v in VERDICTS if v in verdicts) or "shown"
    return f"{name:<52} {record['cpu_seconds']:>4.0f} s  {told}\n    {title}"


def told(arguments: Sequence[str]) -> int:
    """:func:`run`; one that is stopped says how to go on, one that nobody reads ends."""
    try:
        code = run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # --list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(
            "\nstopped; the seeds that were done are kept, and the same command goes on from there"
        )
        return 130


if __name__ == "__main__":
    sys.exit(told(sys.argv[1:]))
