"""The files of a run: written all together or not at all, and checked before they are believed.

What the rows look like is kept for ``vicinal explore`` in one ``.npz``, without a pickle.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.files import csv_text, files_of
from vicinal.audits.pictures import media_of_images
from vicinal.audits.record import Audit, Media
from vicinal.checks import InputError
from vicinal.cli.advice import CONFIG, HEAD, predict_command
from vicinal.cli.data_files import open_npz
from vicinal.cli.folders import (
    FORMAT,
    MARK,
    READY,
    UNFINISHED,
    VERSION,
    WORK,
    locked,
    replacing,
    write_json,
)
from vicinal.cli.image_rows import pictures
from vicinal.cli.row_set import RowSet
from vicinal.files import (
    read_json,
    reading,
    regular_file,
    remove_tree,
    second_name,
    write_atomically,
)
from vicinal.report import save_report

AUDIT = "audit.json"
MEDIA = "media.npz"
ROLES = ("support", "query", "calib", "foreign")
DROPPED = "dropped.csv"  # what only some runs have, as CLEANED


def next_folder(parent: Path, verb: str) -> Path:
    """``runs/audit-0001``, or the next free number; an unfinished run is taken up again."""
    taken = sorted(parent.glob(f"{verb}-[0-9]*")) if parent.is_dir() else []
    if taken and ((taken[-1] / UNFINISHED).exists() or not (taken[-1] / MARK).exists()):
        return taken[-1]
    numbers = [int(m[1]) for f in taken if (m := re.fullmatch(rf"{verb}-([0-9]+)", f.name))]
    return parent / f"{verb}-{max(numbers, default=0) + 1:04d}"


def write_run(
    audit: Audit,
    folder: Path,
    config: dict[str, Any],
    tables: Mapping[str, list[list[str]]] | None = None,
    *,
    max_mb: float = 10.0,
    weights: bytes | None = None,
) -> None:
    """All files of the run, or, if one of them cannot be made, the run that was there before.

    Parameters
    ----------
    audit : the finished record.
    folder : where to write; files of an earlier run there are replaced.
    config : the settings, as ``vicinal audit --config`` reads them back.
    tables : what only some runs have, by file name, each with its heading first.
    max_mb : how large the page may be.
    weights : a checkpoint of the model to keep beside it.
    """
    with replacing(folder) as new:
        write_atomically(new / AUDIT, audit.to_json() + "\n")
        for name, text in files_of(audit):
            write_atomically(new / name, text)
        for name, rows in (tables or {}).items():
            write_atomically(new / name, csv_text(rows))
        if audit.media is not None:
            save_media(audit.media, new / MEDIA)
        if weights is not None:
            write_atomically(new / "weights.pt", weights)
        if audit.head is not None:  # a support that is not in memory has none to keep
            audit.head.save(new / HEAD)
        for name, path in audit.parts.items():  # where they were made until the run is whole
            second_name(path, new / name)
        write_json(new / CONFIG, config)
        predict = "" if audit.head is None else predict_command(config, folder / HEAD)
        save_report(audit, new / "report.html", audit.media, max_mb=max_mb, predict=predict)
        files = sorted({MARK, *(path.name for path in new.iterdir())})
        mark = {"format": FORMAT, "format_version": VERSION, "files": files}
        facts = {**audit.provenance.to_dict(), "git": git_commit(), "argv": sys.argv}
        write_json(new / MARK, {**mark, **facts})
    with suppress(OSError):  # the run is there: what cannot be removed is no failure of it
        remove_tree(folder / WORK)


def read_run(folder: Path) -> Audit:
    """The record of a finished run, from its folder or its ``audit.json``."""
    path = folder / AUDIT if folder.is_dir() else folder
    if (folder / UNFINISHED).exists():
        raise InputError(f"{folder} is an unfinished run. Run its audit command again first.")
    if (folder / READY).is_dir():  # a process died while its files moved to their places
        with locked(folder):
            pass
    if not path.exists():
        why = f"{AUDIT} is missing" if folder.is_dir() else "there is no such folder"
        raise InputError(f"no run in {folder}: {why}. Give a folder of an audit.")
    regular_file(path, within=path.parent)
    if path.name != AUDIT and (path.parent / AUDIT).exists():
        raise InputError(f"{path} is a file of a run. Give its folder: {path.parent}")
    if path.suffix != ".json":
        raise InputError(
            f"{path} is data, not a run. Audit it first: vicinal audit TRAIN {path} -o runs/a; "
            "then give the folder."
        )
    with reading(path, "Give a folder of an audit, or run its audit again."):
        return Audit.from_json(path.read_bytes().decode("utf-8"))


def sets_then(config: Path) -> dict[str, dict[str, str]]:
    """Names and fingerprints of the sets of the run that ``config`` lies in, if it lies in one."""
    try:
        run = config if config.is_dir() else config.parent
        data = read_json(run / "summary.json", "")["data"]
        held = {role: data[role] for role in ROLES if data.get(role) is not None}
        keys = ("name", "fingerprint")
        return {role: {key: str(then[key]) for key in keys} for role, then in held.items()}
    except (InputError, KeyError, TypeError, AttributeError):
        return {}  # no run, or none of ours


def changed_sets(
    audit: Audit, before: Mapping[str, Mapping[str, str]], config: Path | None
) -> Iterator[str]:
    """The sets that have their names from before, and not what they held then."""
    for role, then in before.items():
        now = getattr(audit.data, role)
        if now is not None and now.name == then["name"] and now.fingerprint != then["fingerprint"]:
            yield (
                f"{role} {now.name} is not what it was when {config} was written (sha "
                f"{then['fingerprint']} then): the numbers differ from that run's."
            )


def git_commit() -> str | None:
    """The commit of the folder the command was run in, if it is a repository."""
    words = ["git", "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
        return found.stdout.strip() or None
    return None


def media_of(
    support: RowSet, query: RowSet, media_root: Path | None = None
) -> tuple[Media | None, tuple[str, ...]]:
    """Images if both sets have them, else texts, else the table's columns; None without any.

    The sentences say which pictures are not shown, and why. All are looked for here, before
    anything is computed.
    """
    shown = []
    for rows in (query, support):
        with reading(f"the pictures of {rows.name}", "Add --no-images to go without."):
            shown.append(pictures(rows, media_root))
    notes = tuple(dict.fromkeys(note for _, note in shown if note is not None))
    (asked, _), (known, _) = shown
    if asked is not None and known is not None:
        return media_of_images(asked, known), notes
    if support.texts is not None and query.texts is not None:
        return Media("texts", list(query.texts), list(support.texts)), notes
    if support.table is not None and query.table is not None:
        columns = query.columns
        return Media("tables", list(query.table), list(support.table), columns=columns), notes
    return None, notes


def save_media(media: Media, path: Path) -> None:
    """Keep the media of a run, so that ``explore`` can show them; rows without any are left out."""
    arrays: dict[str, Any] = {}
    for side in ("query", "support"):
        items = [media.get(side, row) for row in range(len(getattr(media, side)))]
        if media.kind == "images" and len({np.shape(item) for item in items}) == 1:
            arrays[side] = np.stack([np.asarray(item) for item in items])
        else:
            texts = [json.dumps(item, default=np.ndarray.tolist) for item in items]
            arrays[side] = np.array(texts, dtype=np.str_)
    buffer, columns = io.BytesIO(), np.array(media.columns, dtype=np.str_)
    np.savez_compressed(buffer, kind=np.array(media.kind), columns=columns, **arrays)
    write_atomically(path, buffer.getvalue())


def load_media(path: Path) -> Media | None:
    """The media of a run, if it has any; what is not of their form is refused."""
    if not path.exists():
        return None
    regular_file(path, within=path.parent)
    with reading(path, "Run the audit again, or remove the file."), open_npz(path) as file:
        kind = str(file["kind"])
        sides = {side: _items(file[side], kind) for side in ("query", "support")}
        columns = tuple(map(str, file["columns"].tolist()))
        return Media(kind, sides["query"], sides["support"], columns)


def _items(stored: NDArray[Any], kind: str) -> list[Any]:
    """One item per row: pictures of bytes, texts, or rows of a table."""
    items = [json.loads(v) for v in stored.tolist()] if stored.dtype.kind == "U" else list(stored)
    if kind == "images":
        pictures = [None if item is None else np.asarray(item, dtype=np.uint8) for item in items]
        if any(p is not None and (p.ndim not in (2, 3) or 0 in p.shape) for p in pictures):
            raise ValueError("a picture has no pixels")
        return pictures
    wanted = str if kind == "texts" else list
    if any(item is not None and not isinstance(item, wanted) for item in items):
        raise ValueError(f"an item is not of the kind {kind!r}")
    return items
