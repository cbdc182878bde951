"""Two runs of the same seeds side by side: what is stored, and what was made anew beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.record import load, path_of


def told(chosen: Sequence[str], preset: str, folder: Path) -> list[str]:
    """How many numbers and verdicts are as stored, then every verdict that is not."""
    same = numbers = kept = 0
    moved: list[str] = []
    for name in chosen:
        stored = load(path_of(name, preset))
        anew = load(path_of(name, preset, folder / name.split("/")[0]))
        if not stored or not anew:
            continue
        before, after = (dict(leaves(record["rows"])) for record in (stored, anew))
        both = before.keys() & after.keys()
        numbers += len(both)
        same += sum(before[at] == after[at] for at in both)
        known = {claim["sentence"]: claim for claim in stored["claims"]}
        for claim in anew["claims"]:
            old = known.get(claim["sentence"])
            if old and old["verdict"] == claim["verdict"]:
                kept += 1
            elif old:
                moved.append(f"{name}: {claim['sentence']}: {number(old)}, anew {number(claim)}")
    return [
        f"{same} of {numbers} numbers and {kept} of {kept + len(moved)} verdicts are as stored",
        *moved,
    ]


def number(claim: dict[str, Any]) -> str:
    return f"{claim['verdict']} ({claim['mean']:+.3g} ± {claim['error']:.2g})"


def leaves(rows: Any, at: tuple = ()) -> Iterator[tuple[tuple, float]]:
    """Every number with the way to it; its seed and its seconds are not results."""
    if isinstance(rows, dict | list):
        for key, held in rows.items() if isinstance(rows, dict) else enumerate(rows):
            if key not in ("seed", "cpu_seconds"):
                yield from leaves(held, (*at, key))
    elif isinstance(rows, int | float):
        yield at, rows
