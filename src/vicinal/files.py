"""The doors to the disk: one guard for what is read, one writer, one checksum.

A file is written beside its place, synced and renamed: a reader finds the old file or the new one,
and several files that belong together change together. What a dying process left half-written is
swept by the next writer; a lock of the operating system tells it from what is being written now.
What a parser or the disk complains of becomes an :class:`InputError` that names the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import InputError, did_you_mean

try:
    import fcntl
except ImportError:  # Windows, where a file in use cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"  # how the name of an unfinished file ends
_UNFINISHED = re.compile(r"\..*\.[a-z0-9_]{8}\.partial", re.DOTALL)
_LONGEST = 50  # characters of a name that its temporary name repeats
_AS_IT_WAS = "What was there is as it was."


class DiskError(InputError, OSError):
    """The disk refused: full, read-only, no permission, a name too long."""


def reason(error: BaseException) -> str:
    """What an error says, on one line and in few words.

    >>> reason(KeyError("layers")), reason(OSError(28, "No space left on device"))
    ("KeyError: 'layers'", 'No space left on device')
    """
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = " ".join(str(error).split())[:240].rstrip(". ")
    plain = isinstance(error, (ValueError, OSError)) and said
    return said if plain else f"{type(error).__name__}: {said}".rstrip(": ")


@contextmanager
def reading(path: str | Path, fix: str = "Nothing was written.") -> Iterator[None]:
    """Whatever goes wrong inside is about this file: a sentence that names it, why, and the fix.

    >>> with reading("a.json", "Save it again."):
    ...     raise KeyError("layers")
    Traceback (most recent call last):
    vicinal.checks.InputError: cannot read a.json: KeyError: 'layers'. Save it again.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # every parser has its own kinds
        raise InputError(f"cannot read {path}: {reason(error)}. {fix}") from error


@contextmanager
def writing(place: str | Path) -> Iterator[None]:
    """What the disk refuses inside is about this place: a sentence that names it and says why."""
    try:
        yield
    except DiskError:
        raise
    except (OSError, RecursionError) as error:  # pathlib climbs by recursion
        raise DiskError(f"cannot write {place}: {reason(error)}. {_AS_IT_WAS}") from error


def read_json(path: Path, fix: str, *, within: Path | None = None) -> dict[str, Any]:
    """The JSON object in a file, or a sentence."""
    regular_file(path, within=within)
    with reading(path, fix):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        return found


def regular_file(path: str | Path, what: str = "file", *, within: Path | None = None) -> Path:
    """The path if a regular file is there: no folder, no pipe that would never end, no device.

    ``within``: a folder that it must not leave, be it by ``..`` or by a symbolic link.
    """
    path = Path(path)
    try:
        if within is not None and not path.resolve().is_relative_to(within.resolve()):
            raise InputError(f"{path} leads out of {within}. Refused for safety.")
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        with suppress(OSError):
            hint = did_you_mean(path.name, os.listdir(path.parent), "{}")
            raise InputError(f"no such {what}: {path}.{hint}") from None
        raise InputError(f"no such {what}: {path}.") from None
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a null byte, a loop
        raise InputError(f"cannot read {path}: {reason(error)}.") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InputError(f"{path} is {kind}. Give a regular {what}.")
    return path


@contextmanager
def utf8_name(path: Path) -> Iterator[Path]:
    """The file under a name that is text: libraries that are not Python's open no other."""
    try:
        str(path).encode("utf-8")
        yield path
    except UnicodeEncodeError:
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / "file"
            link.symlink_to(os.path.abspath(path))
            yield link


def arrow(why: str) -> Any:
    """pyarrow, which is of an extra; where it is missing, a sentence that begins with ``why``."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{why}: pip install 'vicinal[parquet]'.") from None
    return pyarrow


def check_output(path: str | Path) -> None:
    """Refuse a place where no file can be written, before anything is computed for it."""
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder. Give the name of a file.")
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: the folder {path.parent} does not exist.")
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(path).st_mode):  # a rename would take the device's place
                raise InputError(f"cannot write {path}: it is a pipe or a device. Give a file.")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(f"cannot write {path}: no permission in {path.parent.absolute()}.")
    except InputError:
        raise
    except (OSError, ValueError) as error:  # a name too long, a null byte
        raise DiskError(f"cannot write {path}: {reason(error)}. {_AS_IT_WAS}") from None


def write_atomically(path: str | Path, data: str | bytes) -> Path:
    """All of ``data`` under ``path``, or what was there before; readable by others as usual.

    Text is UTF-8; lone surrogates, which a user's id may hold, become question marks.
    """
    write_together({Path(path): data})
    return Path(path)


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """All of the files, or all that was there before."""
    with ExitStack() as stack:
        pairs = []
        for path, data in contents.items():
            check_output(path)
            raw = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
            with writing(path):
                sweep(path.parent, _prefix(path))
                pairs.append((stack.enter_context(_written(path, raw)), path))
        move_together(pairs)


def move_together(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Rename each file to its new place; if one cannot be, all are back where they were."""
    with ExitStack() as stack:
        done: list[tuple[Path, Path, Path | None]] = []
        path = None
        try:
            for at, (source, path) in enumerate(pairs):
                last = at == len(pairs) - 1  # needs no way back: its rename is the whole change
                old = None if last else stack.enter_context(_kept(path))
                os.replace(source, path)
                done.append((source, path, old))
        except BaseException as error:
            stuck = [target for step in reversed(done) if (target := _taken_back(*step))]
            if isinstance(error, OSError):
                left = f"{stuck[0]} could not be put back as it was either." if stuck else ""
                left = left or _AS_IT_WAS
                raise DiskError(f"cannot write {path}: {reason(error)}. {left}") from error
            raise


def _taken_back(source: Path, target: Path, old: Path | None) -> Path | None:
    """A rename undone; the place itself where the disk refuses that too."""
    with suppress(OSError):
        os.replace(target, source)
    if old is None:
        return target if target.exists() else None
    try:
        os.replace(old, target)
    except OSError:
        return target
    return None


def sweep(folder: Path, prefix: str = ".") -> None:
    """Remove what dying processes left half-written here; what is being written now stays."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(prefix) and _UNFINISHED.fullmatch(name):
                with suppress(OSError):
                    _remove_if_abandoned(folder / name)


def remove_tree(path: Path) -> None:
    """A folder with all it holds, or the symbolic link in its place but not where that leads."""
    with suppress(FileNotFoundError):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


def _prefix(path: Path) -> str:
    return f".{path.name[:_LONGEST]}."


@contextmanager
def _written(path: Path, raw: bytes) -> Iterator[Path]:
    """A synced temporary file beside ``path``; gone at the end unless it was renamed."""
    handle, name = _claimed(path)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(partial, 0o666 & ~mask)  # mkstemp makes it private
            yield partial  # still open, so still locked
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _claimed(path: Path) -> tuple[int, str]:
    """A new file that this process has locked; one that was swept before that is made again."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=PARTIAL)
        if fcntl is None:
            return handle, name
        with suppress(OSError):  # some file systems lock nothing
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)


def _remove_if_abandoned(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        return
    handle = os.open(path, os.O_RDWR)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(handle)


def second_name(path: Path, name: Path) -> None:
    """The same file under another name; a copy of it on a file system without links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copy2(path, name)


@contextmanager
def _kept(path: Path) -> Iterator[Path | None]:
    """Another name for what is at ``path`` now, to put it back by; None if there is nothing."""
    if not path.exists():
        yield None
        return
    handle, name = _claimed(path)
    os.close(handle)
    try:
        os.unlink(name)
        second_name(path, Path(name))
        yield Path(name)
    finally:
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)


def fingerprint(*contents: Any) -> str:
    """SHA-256, as hex, of tensors, arrays, mappings, text and bytes, with types and shapes.

    >>> fingerprint(torch.zeros(2))[:8] == fingerprint(np.zeros(2, dtype=np.float32))[:8]
    True
    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(1, 2))
    False
    """
    digest = hashlib.sha256()
    for item in contents:
        if isinstance(item, Mapping):
            for key in sorted(item):
                digest.update(f"{key}={fingerprint(item[key])}".encode())
        elif isinstance(item, (Tensor, np.ndarray)):
            kind, raw = _bytes_of(item)
            digest.update(f"{kind}{tuple(item.shape)}".encode())
            digest.update(raw)
        else:
            raw = item if isinstance(item, bytes) else str(item).encode("utf-8", "replace")
            digest.update(f"{len(raw)}:".encode())
            digest.update(raw)
    return digest.hexdigest()


def _bytes_of(array: Tensor | np.ndarray) -> tuple[str, Any]:
    """The dtype's name and the raw bytes, not copied where they lie in order."""
    if isinstance(array, Tensor):
        flat = array.detach().cpu().contiguous().reshape(-1)
        return str(array.dtype).removeprefix("torch."), flat.view(torch.uint8).numpy()
    if array.dtype.kind == "O":
        array = array.astype("U")
    return str(array.dtype), np.ascontiguousarray(array).reshape(-1).view(np.uint8)
