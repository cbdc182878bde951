"""The files of a run: all that an audit writes, and the record of one read back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vicinal.audits.files import csv_text, word, write_samples, write_summary, write_suspects
from vicinal.audits.record import Audit
from vicinal.checks import InputError
from vicinal.cli.run_folder import UNFINISHED, WORK, publishing, write_json
from vicinal.cli.run_media import save_media
from vicinal.files import write_atomically

MEDIA = "media.npz"
CONFIG = "config.json"
HEAD = "trust.vic"


def write_run(
    audit: Audit,
    folder: Path,
    config: dict[str, Any],
    dropped: Sequence[tuple[str, str]] = (),
    *,
    max_mb: float = 10.0,
) -> None:
    """All files of the run; until the last one is there the folder is marked unfinished.

    Parameters
    ----------
    audit : the finished record.
    folder : where to write; files of an earlier run there are replaced.
    config : the settings, as ``vicinal audit --config`` reads them back.
    dropped : ids of the rows that were left out, and why.
    max_mb : how large the page may be.
    """
    with publishing(folder):
        write_atomically(folder / "audit.json", audit.to_json() + "\n")
        write_summary(audit, folder / "summary.json")
        write_samples(audit, folder / "samples.csv")
        write_suspects(audit, folder / "suspects.csv")
        (folder / "dropped.csv").unlink(missing_ok=True)
        if dropped:
            rows = [["id", "why"], *([word(name), why] for name, why in dropped)]
            write_atomically(folder / "dropped.csv", csv_text(rows))
        save_media(audit.media, folder / MEDIA)
        audit.head.save(folder / HEAD)
        write_json(folder / CONFIG, config)
        audit.save(folder / "report.html", max_mb=max_mb)
        provenance = {**audit.provenance.to_dict(), "git": git_commit(), "argv": sys.argv}
        write_json(folder / "provenance.json", provenance)
    shutil.rmtree(folder / WORK, ignore_errors=True)


def read_run(folder: Path) -> Audit:
    """The record of a finished run."""
    path = folder / "audit.json" if folder.is_dir() else folder
    if (folder / UNFINISHED).exists():
        raise InputError(f"{folder} is an unfinished run. Run its audit command again first.")
    if not path.exists():
        raise InputError(f"no run in {folder}: audit.json is missing. Give a folder of an audit.")
    try:
        return Audit.from_json(path.read_text("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is no record of an audit. Give a folder of an audit.") from None


def git_commit() -> str | None:
    """The commit of the folder the command was run in, if it is a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
