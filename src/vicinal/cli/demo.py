"""``vicinal demo``: the main job on bundled digits, with known answers to be found."""

from __future__ import annotations

import time
from pathlib import Path

from vicinal.cli import options

NAME = "demo"
EXAMPLES = "vicinal demo -o vicinal-demo"


def run(
    out: options.Out = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Digits with planted wrong labels and planted letters: an audit that says what it missed."""
    import torch

    from vicinal.audits.demo import audited, demonstration
    from vicinal.cli.audit import write_run
    from vicinal.cli.audit_summary import say_result
    from vicinal.cli.console import Voice
    from vicinal.cli.run_folder import locked

    start = time.time()
    voice = Voice(as_json, quiet)
    folder = out or Path("vicinal-demo")
    with locked(folder):
        voice.say("training a small network on bundled digits …")
        planted = demonstration(seed)
        with voice.progress("audit") as bar:
            audit = audited(planted, seed, progress=lambda _t, done, total: bar(done, total))
        torch.save(planted.model.state_dict(), folder / "weights.pt")
        given = {
            "model": "vicinal.audits.demo:network",
            "weights": str(folder / "weights.pt"),
            "embedding": "embedding",
            "size": 8,
            "gray": True,
            "seed": seed,
        }
        write_run(audit, folder, given, [], max_mb=10.0)
    say_result(audit, folder, voice)
    page = (folder / "report.html").resolve()
    voice.say(f"\ntook {time.time() - start:.0f} s. Open the report:\n{page}")
    voice.result(audit.summary)
