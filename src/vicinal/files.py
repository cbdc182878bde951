"""Files that appear whole or not at all: a temporary name beside the place, then a rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from vicinal.checks import InputError


def write_atomically(path: str | Path, data: str | bytes) -> Path:
    """All of ``data`` under ``path``, or what was there before; readable by others as usual.

    Text is UTF-8; lone surrogates, which a user's id may hold, become question marks.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist.")
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
