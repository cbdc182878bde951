"""``vicinal demo``: the main job on bundled digits, with known answers to be found."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from vicinal.audits.demo import audited, demonstration
from vicinal.cli.audit import print_summary
from vicinal.cli.config import as_config
from vicinal.cli.console import Clock, Console
from vicinal.cli.flags import FROM_CONFIG
from vicinal.cli.folders import locked
from vicinal.cli.run_folder import write_run
from vicinal.cli.verbs import AuditOptions, DemoOptions


def run(options: DemoOptions) -> None:
    """Train, audit, write, and print what was found of what was planted."""
    clock = Clock("training")
    console = Console(options.as_json, options.quiet)
    folder = options.out or Path("vicinal-demo")
    with locked(folder, "run"):
        console.print("training a small network on bundled digits …")
        planted = demonstration(options.seed)
        with console.steps(clock) as step:
            audit = audited(planted, options.seed, progress=step)
        clock.now("writing")
        weights = io.BytesIO()
        torch.save(planted.model.state_dict(), weights)
        settings = AuditOptions(
            support=FROM_CONFIG,
            model="vicinal.audits.demo:network",
            weights=str(folder / "weights.pt"),
            embedding="embedding",
            size=8,
            gray=True,
            seed=options.seed,
        )
        write_run(audit, folder, as_config(settings), weights=weights.getvalue())
    print_summary(audit, folder, console)
    page = (folder / "report.html").resolve()
    console.print(f"{clock}\nOpen the report:\n{page}")
    console.result(audit.summary)
