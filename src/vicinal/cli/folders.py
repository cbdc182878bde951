"""A folder of ours: one process at a time in it, and it holds the old run or the new one.

New files are built in ``.new`` inside the folder. Renaming that to ``.ready`` is the moment of
decision: before it nothing has changed, after it the files move to their places, and if a process
dies on the way whoever opens the folder next finishes the move. If the disk refuses a move, all
files are back where they were. What is ours bears our mark; every other folder is left alone, and
of our own only the files are removed that its mark lists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vicinal.audits.parts import is_parts
from vicinal.capture.shards import MANIFEST, ShardStore, is_capture
from vicinal.checks import InputError
from vicinal.files import (
    PARTIAL,
    move_together,
    read_json,
    reason,
    remove_tree,
    sweep,
    write_atomically,
    writing,
)

LOCK = ".lock"
WORK = ".work"  # finished blocks of a search, for a run that was stopped
NEW = ".new"  # the next files, being made
READY = ".ready"  # the next files, moving to their places
UNFINISHED = ".unfinished"  # version 0.1 marked a folder so while it wrote
OURS = (LOCK, WORK, NEW, READY, UNFINISHED)
JOURNAL = "swap.json"
SWAP = "vicinal-swap"
MARK = "provenance.json"
FORMAT = "vicinal-run"
VERSION = 1
DESCRIBED = "embed.json"
# All that version 0.1 put into a run; it kept no list.
FILES_OF_0_1 = ("audit.json", "summary.json", "samples.csv", "suspects.csv", "dropped.csv",
                "media.npz", "trust.vic", "config.json", "report.html", MARK)  # fmt: skip


@contextmanager
def locked(folder: Path, kind: str | None = None) -> Iterator[Path]:
    """The folder, made if need be, for this process alone; an error leaves nothing written,
    but for the finished shards of a long capture, which the same command goes on with.

    ``kind``: what it may hold already, a ``"run"`` or a ``"capture"``; None: either of them.

    The operating system holds the lock, not the file: it ends with the process, however that ends,
    and a ``.lock`` that a dead process or an older version left behind locks nothing.
    """
    _check_ours(folder, kind)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = _taken(folder, made)
    before = {name for name in (WORK, NEW) if (folder / name).exists()}
    try:
        _tidy(folder)
        yield folder
    except (Exception, SystemExit):  # a user's model may call exit
        for name in {WORK, NEW} - before:
            with suppress(OSError):
                if not _is_long(folder / name):
                    remove_tree(folder / name)
        with suppress(OSError):
            if made:
                (folder / LOCK).unlink(missing_ok=True)
        remove_empty(made)
        raise
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)  # while it is held: who waits looks again
        lock.release()


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """``.new``, empty, to build the next files in; at the end they take the old ones' places."""
    new = folder / NEW
    remove_tree(new)
    try:
        with writing(new):
            new.mkdir()
        _write_journal(new, [], [])  # says whose it is
        yield new
        swap(folder)
    except BaseException:
        with suppress(OSError):
            remove_tree(new)
        raise


def swap(folder: Path) -> None:
    """Put the files of ``.new`` in the place of those that the folder's mark lists."""
    new, ready = folder / NEW, folder / READY
    sweep(new)
    files = sorted(path.name for path in new.iterdir() if path.name != JOURNAL)
    _write_journal(new, files, sorted(set(listed(folder)) - set(files)))
    with writing(ready):
        remove_tree(ready)
        os.rename(new, ready)
    try:
        settle(folder)
    except BaseException:
        with suppress(OSError):  # nothing has changed: the decision is taken back
            os.rename(ready, new)
        raise


def settle(folder: Path) -> None:
    """Finish a move that was decided on; a folder without one is left as it is."""
    ready = folder / READY
    journal = _journal(ready)
    if journal is None:
        return
    gone = ready / "gone"
    pairs = [(folder / name, gone / name) for name in journal["gone"]]
    pairs += [(ready / name, folder / name) for name in journal["files"]]
    with writing(gone):
        gone.mkdir(exist_ok=True)
    move_together([(source, target) for source, target in pairs if source.exists()])
    with suppress(OSError):
        remove_tree(ready)


def _is_long(path: Path) -> bool:
    """Whether a capture has come so far that a bad picture at its end must not cost it all."""
    return is_capture(path) and len(ShardStore(path).manifest["shards"]) > 1


def _tidy(folder: Path) -> None:
    """What a process that died here left: half-written files go, a move that was decided ends."""
    sweep(folder)
    settle(folder)
    with suppress(OSError):
        if (folder / NEW).is_dir() and _is_bare(folder / NEW) and not is_capture(folder / NEW):
            remove_tree(folder / NEW)
        remove_tree(folder / READY)


def listed(folder: Path) -> list[str]:
    """The files of ours in a folder, as its own mark lists them."""
    if is_capture(folder):
        shards = [shard["file"] for shard in ShardStore(folder).manifest["shards"]]
        names = [*shards, MANIFEST, DESCRIBED]
    else:
        names = _run_files(folder)
        names += [*FILES_OF_0_1, UNFINISHED] if (folder / UNFINISHED).exists() else []
    return [name for name in names if (folder / name).is_file()]


def forget(folder: Path) -> None:
    """Remove the capture in a folder: the files its manifest lists, and nothing else."""
    if is_capture(folder):
        for name in listed(folder):
            (folder / name).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _run_files(folder: Path) -> list[str]:
    """The files that the mark of a run lists; none if it is not ours. Version 0.1 had no list."""
    mark = _read(folder / MARK) or {}
    if mark.get("format") == FORMAT:
        return mark["files"] if _are_plain(mark.get("files")) else []
    ours = {"version", "seed", "command", "reproduce", "created", "seconds", "versions", "config"}
    return [*FILES_OF_0_1] if ours <= set(mark) and "format" not in mark else []


def _are_plain(names: Any) -> bool:
    """Files' own names, which lead nowhere else."""
    return isinstance(names, list) and all(
        isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")
        for name in names
    )


def names_in(folder: Path) -> set[str]:
    """What an ``--out`` folder holds already; what is no folder, or cannot be read, is refused."""
    try:
        if folder.is_dir():
            return set(os.listdir(folder))
        is_file = folder.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write to --out {folder}: {reason(error)}.") from None
    if is_file:
        raise InputError(f"--out {folder} is a file. Give a folder.")
    if folder.suffix in (".html", ".json", ".csv", ".npz", ".vic"):
        raise InputError(
            f"--out {folder} would be a folder with files in it: leave the ending out."
        )
    return set()


def _check_ours(folder: Path, kind: str | None) -> None:
    names = names_in(folder)
    for name in sorted(names & {*OURS, MARK, MANIFEST}):
        if (folder / name).is_symlink():
            raise InputError(
                f"{folder / name} is a symbolic link. Remove it, or give another --out."
            )
    others = {name for name in names if name not in OURS and not name.endswith(PARTIAL)}
    if not others and all(_is_bare(folder / name) for name in names & {WORK, NEW, READY}):
        return
    captured = kind != "run" and is_capture(folder)
    stopped = UNFINISHED in names and others <= set(FILES_OF_0_1)
    if not captured and (kind == "capture" or not (_run_files(folder) or stopped)):
        what = "holds no capture" if kind == "capture" else "not a run of vicinal"
        raise InputError(f"--out {folder} is not empty and {what}. Give another folder.")


def _is_bare(path: Path) -> bool:
    """Whether a folder inside ours holds nothing but what we put there."""
    if path.is_symlink() or not path.is_dir():
        return path.name.endswith(PARTIAL)
    ours = _journal(path) is not None or is_capture(path) or is_parts(path)
    return ours or all(map(_is_bare, path.iterdir()))


def _taken(folder: Path, made: list[Path]) -> FileLock:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(
            f"{folder} is in use by another process. Wait for it, or give another --out."
        ) from None
    except (OSError, ValueError, RecursionError) as error:  # pathlib climbs by recursion
        remove_empty(made)
        raise InputError(
            f"cannot write to --out {folder}: {reason(error)}. Give another folder."
        ) from None
    return lock


def remove_empty(made: list[Path]) -> None:
    """Folders that were made for nothing, innermost first; one that holds anything stays."""
    for path in made:
        with suppress(OSError):
            path.rmdir()


def _write_journal(folder: Path, files: list[str], gone: list[str]) -> None:
    write_json(folder / JOURNAL, {"format": SWAP, "files": files, "gone": gone})


def _journal(folder: Path) -> dict[str, Any] | None:
    """What is to move where, if this is ours and names nothing outside."""
    found = (None if folder.is_symlink() else _read(folder / JOURNAL)) or {}
    plain = _are_plain(found.get("files")) and _are_plain(found.get("gone"))
    return found if plain and found.get("format") == SWAP else None


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object in a file that is really there; None for anything else."""
    try:
        return None if path.is_symlink() else read_json(path, "")
    except InputError:
        return None
