"""The folder of a run: one writer at a time, and never a broken file in it.

Files are renamed into place whole. While they are being replaced the folder bears the mark
``.unfinished``: a run that dies there is continued, not trusted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vicinal.checks import InputError
from vicinal.files import write_atomically

LOCK = ".lock"
UNFINISHED = ".unfinished"
WORK = ".work"


def next_folder(parent: Path, verb: str) -> Path:
    """``runs/audit-0001``, or the next free number; an unfinished run is taken up again."""
    taken = sorted(parent.glob(f"{verb}-[0-9]*")) if parent.is_dir() else []
    for folder in reversed(taken):
        if (folder / UNFINISHED).exists() or not (folder / "provenance.json").exists():
            return folder
        break
    numbers = [int(m[1]) for f in taken if (m := re.fullmatch(rf"{verb}-(\d+)", f.name))]
    return parent / f"{verb}-{max(numbers, default=0) + 1:04d}"


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """The folder, made if need be, for this process alone."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file. Give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not _is_run(folder):
        raise InputError(
            f"--out {folder} is not empty and not a run of vicinal. Give another folder."
        )
    created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / LOCK
    _take(lock, folder)
    try:
        yield folder
    except InputError:
        lock.unlink(missing_ok=True)
        if created:  # bad input leaves nothing written
            _remove_if_bare(folder)
        raise
    finally:
        lock.unlink(missing_ok=True)


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """Files written inside count as a run only when all of them are there."""
    mark = folder / UNFINISHED
    mark.touch()
    yield
    mark.unlink()


def read_config(path: Path, known: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Settings from ``--config`` (JSON or TOML); an unknown one is answered with the closest."""
    from vicinal.checks import closest

    if not path.exists():
        raise InputError(f"no such file: {path}.")
    try:
        if path.suffix == ".toml":
            import tomllib

            settings = tomllib.loads(path.read_text())
        else:
            settings = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    settings = {k: v for k, v in settings.items() if k != "command"}
    for key in settings:
        if key not in known:
            near = closest(key, known)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{path.name}: vicinal {command} has no setting {key!r}.{hint}")
    return settings


def git_commit() -> str | None:
    """The commit of the folder the command was run in, if it is a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _take(lock: Path, folder: Path) -> None:
    for _ in range(2):
        try:
            handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            owner = lock.read_text().split()
            if owner and owner[0].isdigit() and _alive(int(owner[0])):
                raise InputError(
                    f"{folder} is in use by process {owner[0]}. Wait for it, or give another --out."
                ) from None
            lock.unlink(missing_ok=True)  # its owner died
        else:
            with os.fdopen(handle, "w") as file:
                file.write(f"{os.getpid()} {time.time():.0f}\n")
            return
    raise InputError(f"{folder} is in use. Give another --out.")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_run(folder: Path) -> bool:
    marks = ("provenance.json", UNFINISHED, WORK, LOCK, "manifest.json", "summary.json")
    return any((folder / mark).exists() for mark in marks)


def _remove_if_bare(folder: Path) -> None:
    work = folder / WORK
    if work.is_dir() and not any(work.iterdir()):
        work.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()
