"""The folder of a run and its files: one process at a time in it, and never a broken file.

Files are renamed into place whole. While they are being replaced the folder bears the mark
``.unfinished``: a run that dies there is continued, not trusted. What the rows look like is kept
for ``vicinal explore`` in one ``.npz``, without a pickle.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from vicinal.audits.files import (
    csv_text,
    write_labels,
    write_samples,
    write_summary,
    write_suspects,
)
from vicinal.audits.model import as_pixels
from vicinal.audits.record import Audit, Media, ReadLater
from vicinal.checks import InputError
from vicinal.cli.model_inputs import read_image
from vicinal.cli.row_set import RowSet
from vicinal.files import write_atomically

LOCK = ".lock"
UNFINISHED = ".unfinished"
WORK = ".work"
MARKS = ("provenance.json", UNFINISHED, WORK, LOCK, "manifest.json", "summary.json")  # of a run
MEDIA = "media.npz"
CONFIG = "config.json"
HEAD = "trust.vic"
SOME_TABLES = (DROPPED := "dropped.csv", CLEANED := "labels_cleaned.csv")
THUMBNAIL = 48


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
    is_run = any((folder / mark).exists() for mark in MARKS)
    if folder.is_dir() and any(folder.iterdir()) and not is_run:
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


def _remove_if_bare(made: list[Path]) -> None:
    """Folders that were made for nothing, innermost first; one that holds anything stays."""
    if made:
        (made[0] / LOCK).unlink(missing_ok=True)
    for path in [made[0] / WORK, *made] if made else []:
        with suppress(OSError):
            path.rmdir()


def write_run(
    audit: Audit,
    folder: Path,
    config: dict[str, Any],
    tables: Mapping[str, list[list[str]]] | None = None,
    *,
    max_mb: float = 10.0,
) -> None:
    """All files of the run; until the last one is there the folder is marked unfinished.

    Parameters
    ----------
    audit : the finished record.
    folder : where to write; files of an earlier run there are replaced.
    config : the settings, as ``vicinal audit --config`` reads them back.
    tables : what only some runs have, of ``SOME_TABLES``, each with its heading first.
    max_mb : how large the page may be.
    """
    (folder / UNFINISHED).touch()
    write_atomically(folder / "audit.json", audit.to_json() + "\n")
    write_summary(audit, folder / "summary.json")
    write_samples(audit, folder / "samples.csv")
    write_suspects(audit, folder / "suspects.csv")
    write_labels(audit, folder / "labels.csv")
    for name in SOME_TABLES:
        if rows := (tables or {}).get(name):
            write_atomically(folder / name, csv_text(rows))
        else:
            (folder / name).unlink(missing_ok=True)
    save_media(audit.media, folder / MEDIA)
    audit.head.save(folder / HEAD)
    write_json(folder / CONFIG, config)
    audit.save(folder / "report.html", max_mb=max_mb)
    provenance = {**audit.provenance.to_dict(), "git": git_commit(), "argv": sys.argv}
    write_json(folder / "provenance.json", provenance)
    (folder / UNFINISHED).unlink()
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


def media_of(support: RowSet, query: RowSet) -> Media | None:
    """Images if both sets have them, else texts, else the table's columns; None without any."""
    if support.images is not None and query.images is not None:
        return Media("images", _thumbnails(query.images), _thumbnails(support.images))
    if support.texts is not None and query.texts is not None:
        return Media("texts", list(query.texts), list(support.texts))
    if support.table is not None and query.table is not None:
        return Media("tables", list(query.table), list(support.table), columns=query.columns)
    return None


def _thumbnails(sources: Sequence[Any]) -> ReadLater:
    """Images by row, made small when they are asked for: arrays as they are, paths read."""

    def read(row: int) -> Any:
        item = sources[row]
        if isinstance(item, (str, np.str_)):
            return read_image(str(item), size=THUMBNAIL)
        return as_pixels(np.asarray(item))

    return ReadLater(read, len(sources))


def save_media(media: Media | None, path: Path) -> None:
    """Keep the media of a run, so that ``explore`` can show them; rows without any are left out."""
    if media is None:
        path.unlink(missing_ok=True)
        return
    arrays: dict[str, Any] = {}
    for side in ("query", "support"):
        items = [media.get(side, row) for row in range(len(getattr(media, side)))]
        if media.kind == "images":
            shapes = {np.asarray(item).shape for item in items}
            if len(shapes) == 1:
                arrays[side] = np.stack([np.asarray(item) for item in items])
                continue
        arrays[side] = np.array(
            [json.dumps(item, default=np.ndarray.tolist) for item in items], dtype=np.str_
        )
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        kind=np.array(media.kind),
        columns=np.array(media.columns, dtype=np.str_),
        **arrays,
    )
    write_atomically(path, buffer.getvalue())


def load_media(path: Path) -> Media | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        kind = str(file["kind"])
        sides = {}
        for side in ("query", "support"):
            stored = file[side]
            if stored.dtype.kind == "U":
                items = [json.loads(text) for text in stored.tolist()]
                sides[side] = [
                    np.array(item, dtype=np.uint8) if kind == "images" else item for item in items
                ]
            else:
                sides[side] = list(stored)
        return Media(kind, sides["query"], sides["support"], tuple(file["columns"].tolist()))
