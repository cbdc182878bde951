"""``vicinal demo``: the main job on bundled digits, with known answers to be found."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from vicinal.audits.demo import audited, demonstration
from vicinal.cli import options
from vicinal.cli.audit_options import AuditOptions
from vicinal.cli.audit_summary import print_summary
from vicinal.cli.console import Console
from vicinal.cli.flags import FROM_CONFIG, as_config
from vicinal.cli.run_files import write_run
from vicinal.cli.run_folder import locked
from vicinal.files import atomically

EXAMPLES = "vicinal demo -o vicinal-demo"


@dataclass(frozen=True, kw_only=True)
class DemoOptions(options.ConsoleOptions):
    out: options.Out = None
    seed: options.Seed = 0


def run(options: DemoOptions) -> None:
    """Train, audit, write, and print what was found of what was planted."""
    start = time.time()
    console = Console(options.as_json, options.quiet)
    folder = options.out or Path("vicinal-demo")
    weights = folder / "weights.pt"
    with locked(folder):
        console.print("training a small network on bundled digits …")
        planted = demonstration(options.seed)
        with console.progress("audit") as bar:
            audit = audited(
                planted, options.seed, progress=lambda _title, done, total: bar(done, total)
            )
        with atomically(weights) as partial:
            torch.save(planted.model.state_dict(), partial)
        settings = AuditOptions(
            support=FROM_CONFIG,
            model="vicinal.audits.demo:network",
            weights=str(weights),
            embedding="embedding",
            size=8,
            gray=True,
            seed=options.seed,
        )
        write_run(audit, folder, as_config(settings))
    print_summary(audit, folder, console)
    page = (folder / "report.html").resolve()
    console.print(f"\ntook {time.time() - start:.0f} s. Open the report:\n{page}")
    console.result(audit.summary)
