"""How a file appears whole or not at all, and the one checksum by which contents are known."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import InputError

PARTIAL = ".partial"  # how the name of an unfinished file ends


def write_atomically(path: str | Path, data: str | bytes) -> Path:
    """All of ``data`` under ``path``, or what was there before; readable by others as usual.

    Text is UTF-8; lone surrogates, which a user's id may hold, become question marks.
    """
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    with atomically(path) as partial:
        partial.write_bytes(raw)
    return Path(path)


@contextmanager
def atomically(path: str | Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it is synced and renamed when the block ends.

    If the block raises, the temporary file is gone and ``path`` is as it was.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist.")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    os.close(handle)
    try:
        yield Path(name)
        mask = os.umask(0)
        os.umask(mask)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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
