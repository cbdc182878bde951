"""``vicinal audit``: the main job, from files to a run folder with a page in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from vicinal.audits import audit
from vicinal.audits.record import Audit
from vicinal.cli.audit_summary import print_summary
from vicinal.cli.config import as_config
from vicinal.cli.console import Console
from vicinal.cli.prepared import Prepared, prepare, settings_of
from vicinal.cli.run_files import write_run
from vicinal.cli.run_folder import WORK, locked, next_folder
from vicinal.cli.verbs import AuditOptions


def run(options: AuditOptions) -> None:
    """Read, audit, write, and print the page's first screen."""
    console = Console(options.as_json, options.quiet)
    prepared = prepare(options, console)
    folder = options.out or next_folder(Path("runs"), "audit")
    with locked(folder):
        if options.fresh:
            shutil.rmtree(folder / WORK, ignore_errors=True)
        result = _audited(prepared, folder, console)
        config = as_config(prepared.options)
        write_run(result, folder, config, prepared.dropped, max_mb=options.max_mb)
    print_summary(result, folder, console)
    console.result(result.summary)


def _audited(prepared: Prepared, folder: Path, console: Console) -> Audit:
    """The audit, with a bar for each of its long steps."""
    with console.progress("audit") as bar:
        return audit(
            **prepared.arguments,
            settings=settings_of(prepared.options),
            about=prepared.about,
            work=folder / WORK,
            progress=lambda _title, done, total: bar(done, total),
        )
