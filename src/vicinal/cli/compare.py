"""``vicinal compare``: two runs on the same rows, paired, with gates for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vicinal.cli import options

if TYPE_CHECKING:
    from vicinal.audits.paired import Comparison
    from vicinal.audits.record import Audit

NAME = "compare"
EXAMPLES = 'vicinal compare runs/base runs/new --fail-if "ece > +0.01" --fail-if "coverage < -0.02"'


def run(
    a: Annotated[Path, typer.Argument(help="The run to compare with.")],
    b: Annotated[Path, typer.Argument(help="The run to judge.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", help="'ece > +0.01': a gate; exit code 1 if it is true."),
    ] = None,
    out: options.Out = None,
    markdown: Annotated[bool, typer.Option("--md", help="Print the table as Markdown.")] = False,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> int:
    """Differences with paired 95 % intervals; what changed, was fixed, was broken."""
    import time

    from vicinal.audits.paired import compare_audits
    from vicinal.cli.audit import provenance_of
    from vicinal.cli.console import Voice
    from vicinal.files import write_atomically
    from vicinal.report import save_compare

    start = time.time()
    voice = Voice(as_json, quiet)
    first, second = read_audit(a), read_audit(b)
    gates = list(fail_if or [])
    found = compare_audits(
        first,
        second,
        provenance_of("compare", {"a": str(a), "b": str(b), "fail_if": gates}, seed, start),
        gates=gates,
        seed=seed,
    )
    for text in found.warnings:
        voice.warn(text)
    voice.say(as_table(found, markdown))
    folder = out or b
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "compare.json", found.to_json(indent=1) + "\n")
    save_compare(found, folder / "compare.html")
    voice.say(f"wrote  {folder / 'compare.html'} · compare.json")
    voice.result(found.to_dict())
    failed = [gate for gate in found.gates if not gate.passed]
    for gate in failed:
        value = "could not be measured" if gate.value is None else f"is {gate.value:+.4g}"
        voice.warn(f"gate failed: {gate.expression} ({value})")
    if found.gates and not failed:
        voice.say("gate: passed")
    return 1 if failed else 0


def read_audit(folder: Path) -> Audit:
    """The record of a finished run."""
    from vicinal.audits.record import Audit
    from vicinal.checks import InputError
    from vicinal.cli.run_folder import UNFINISHED

    path = folder / "audit.json" if folder.is_dir() else folder
    if (folder / UNFINISHED).exists():
        raise InputError(f"{folder} is an unfinished run. Run its audit command again first.")
    if not path.exists():
        raise InputError(f"no run in {folder}: audit.json is missing. Give a folder of an audit.")
    return Audit.from_json(path.read_text("utf-8"))


def as_table(found: Comparison, markdown: bool) -> str:
    """One line per measure: both values, the difference and what the interval says."""

    def cell(value: float | None, signed: bool = False) -> str:
        return "–" if value is None else f"{value:{'+' if signed else ''}.4f}"

    rows = [["", found.a, found.b, "Δ (paired 95 % CI)", ""]]
    for delta in found.deltas:
        change = cell(delta.delta, signed=True)
        if delta.low is not None:
            change += f" [{cell(delta.low, signed=True)}, {cell(delta.high, signed=True)}]"
        finding = delta.finding if delta.low is not None else ""
        rows.append([delta.title, cell(delta.a), cell(delta.b), change, finding])
    if found.overlap is not None:
        share = f"{100 * (1 - found.overlap):.0f} % of neighbors differ"
        rows.append([f"neighbor overlap@{found.overlap_k}", "", cell(found.overlap), share, ""])
    detail = "" if found.fixed is None else f"{found.fixed} fixed, {found.broken} broken"
    rows.append(["predictions changed", "", str(found.changed), detail, ""])
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
