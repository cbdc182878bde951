"""The folder of a run: one process at a time in it, and never a broken file.

Files are renamed into place whole. While they are being replaced the folder bears the mark
``.unfinished``: a run that dies there is continued, not trusted.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vicinal.checks import InputError
from vicinal.files import write_atomically

LOCK = ".lock"
UNFINISHED = ".unfinished"
WORK = ".work"
MARKS = ("provenance.json", UNFINISHED, WORK, LOCK, "manifest.json", "summary.json")  # of a run


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
    """The folder, made if need be, for this process alone; bad input leaves nothing written.

    The operating system holds the lock, not the file: it ends with the process, however that ends,
    and a ``.lock`` that a dead process or an older version left behind locks nothing.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file. Give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not _is_run(folder):
        raise InputError(
            f"--out {folder} is not empty and not a run of vicinal. Give another folder."
        )
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = _taken(folder)
    try:
        yield folder
    except InputError:
        _remove_if_bare(made)
        raise
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: who waits for it looks again
        lock.release()


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """Files written inside count as a run only when all of them are there."""
    mark = folder / UNFINISHED
    mark.touch()
    yield
    mark.unlink()


def emptied(folder: Path) -> None:
    """Remove all that the folder holds but the lock on it."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _taken(folder: Path) -> FileLock:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(
            f"{folder} is in use by another process. Wait for it, or give another --out."
        ) from None
    except OSError as error:
        raise InputError(f"cannot write to --out {folder}: {error}. Give another folder.") from None
    return lock


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)


def _remove_if_bare(made: list[Path]) -> None:
    """Folders that were made for nothing, innermost first; one that holds anything stays."""
    if made:
        (made[0] / LOCK).unlink(missing_ok=True)
    for path in [made[0] / WORK, *made] if made else []:
        with suppress(OSError):
            path.rmdir()
