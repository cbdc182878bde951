"""``vicinal compare``: two runs on the same rows, paired, with gates for CI."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vicinal.audits import compare_audits
from vicinal.audits.audit import provenance_of
from vicinal.audits.paired import Comparison
from vicinal.checks import InputError
from vicinal.cli.console import Console, in_columns
from vicinal.cli.folders import names_in, remove_empty
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import CompareOptions
from vicinal.files import DiskError, read_json, write_together, writing
from vicinal.report.two_runs import render_compare

FILES = ("compare.json", "compare.html")


def run(options: CompareOptions) -> int:
    """Compare, write both files, and answer the gates with the exit code."""
    start = time.perf_counter()
    console = Console(options.as_json, options.quiet)
    first, second, gates = read_run(options.a), read_run(options.b), list(options.fail_if or [])
    folder = options.out or (options.b if options.b.is_dir() else options.b.parent)
    made = _missing(folder)
    provenance = provenance_of(
        options.seed,
        shlex.join(["vicinal", "compare", *sys.argv[2:]]),
        shlex.join(["vicinal", *sys.argv[1:]]),
        start,
        {"a": str(options.a), "b": str(options.b), "fail_if": gates},
    )
    names = run_names(options.a, options.b)
    result = compare_audits(first, second, provenance, gates=gates, seed=options.seed, names=names)
    for text in result.warnings:
        console.warn(text)
    page = render_compare(result, (first, second))
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            record = result.to_json(indent=1) + "\n"
            write_together({folder / FILES[0]: record, folder / FILES[1]: page})
    except DiskError:
        remove_empty(made)
        raise
    console.print(as_table(result, options.markdown))
    for what, why in result.not_checked.items():
        console.print(f"not checked: {what}: {why}")
    console.print(f"wrote  {folder / 'compare.html'} · compare.json")
    console.result(result.to_dict())
    failed = [gate for gate in result.gates if not gate.passed]
    for gate in failed:
        value = "could not be measured" if gate.value is None else f"is {gate.value:+.4g}"
        console.warn(f"gate failed: {gate.expression} ({value})")
    if result.gates and not failed:
        console.print("gate: passed")
    return 1 if failed else 0


def run_names(a: Path, b: Path) -> tuple[str, str]:
    """The runs' folders, with as much of the way to them as tells them apart.

    >>> run_names(Path("runs/base"), Path("runs/snnl"))
    ('base', 'snnl')
    >>> run_names(Path("old/audit"), Path("new/audit/audit.json"))
    ('old/audit', 'new/audit')
    """
    ways = [(path if path.suffix != ".json" else path.parent).resolve().parts for path in (a, b)]
    if ways[0] == ways[1]:
        return ways[0][-1], ways[1][-1]
    last = 1
    while ways[0][-last:] == ways[1][-last:]:
        last += 1
    return "/".join(ways[0][-last:]), "/".join(ways[1][-last:])


def _missing(folder: Path) -> list[Path]:
    """The folders that will have to be made, innermost first.

    A comparison replaces another one, and nothing else of these names.
    """
    there = [name for name in FILES if name in names_in(folder)]
    found: dict[str, Any] = {}
    with suppress(InputError):
        found = read_json(folder / FILES[0], "") if there else {}
    if there and not {"deltas", "gates", "provenance"} <= set(found):
        raise InputError(
            f"{folder / there[0]} is there and not of vicinal compare. Give another --out."
        )
    return [path for path in (folder, *folder.parents) if not path.exists()]


def as_table(result: Comparison, markdown: bool) -> str:
    """One line per measure: both values, the difference and what the interval says."""

    def cell(value: float | None, signed: bool = False) -> str:
        return "–" if value is None else f"{value:{'+' if signed else ''}.4f}"

    rows = [["", result.a, result.b, "Δ (paired 95 % CI)", ""]]
    for delta in result.deltas:
        if delta.delta is None:
            continue  # of one run or of none
        change = cell(delta.delta, signed=True)
        if delta.low is not None:
            change += f" [{cell(delta.low, signed=True)}, {cell(delta.high, signed=True)}]"
            change += "" if delta.paired else " unpaired"
        finding = delta.finding if delta.low is not None else ""
        rows.append([delta.title, cell(delta.a), cell(delta.b), change, finding])
    if result.overlap is not None:
        share = f"{100 * (1 - result.overlap):.0f} % of neighbors differ"
        rows.append([f"neighbor overlap@{result.overlap_k}", "", cell(result.overlap), share, ""])
    detail = "" if result.fixed is None else f"{result.fixed} fixed, {result.broken} broken"
    rows.append(["predictions changed", "", str(result.changed), detail, ""])
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
    return "\n".join(in_columns(rows))
