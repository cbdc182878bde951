"""The ``.vic`` file: tensors and a page of JSON in one safetensors file, never pickle.

A reader needs nothing but safetensors: the JSON is in the header's metadata under ``vicinal``. The
file is written under a temporary name and renamed, so it is there whole or not at all; a checksum
over names, bytes and JSON tells a damaged one.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vicinal.checks import InputError
from vicinal.files import reading, regular_file, utf8_name, write_atomically

FORMAT = "vicinal-head"
VERSION = 1


class Kept:
    """What can be kept in a file."""

    def save(self: Any, path: str | Path) -> Path:
        """Write a ``.vic`` file (safetensors and JSON, never pickle); ``vicinal.load`` reads it."""
        from vicinal.confidence.head_file import save  # it imports every head

        return save(self, path)


def write(path: str | Path, kind: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write one head; ``facts`` is plain JSON."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    page = json.dumps(facts, sort_keys=True, allow_nan=False)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "vicinal": page,
        "checksum": _checksum(kind, tensors, page),
    }
    return write_atomically(path, save(tensors, metadata))


def read(path: str | Path) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    """Kind, tensors and facts of a file this version can read; a sentence for any other."""
    path = regular_file(path)
    try:
        with utf8_name(path) as name, safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_origin(path, metadata)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except InputError:
        raise
    except Exception as error:  # of safetensors, torch or the disk
        size = path.stat().st_size
        raise InputError(
            f"cannot read {path}: it is not a whole .vic file ({error}; {size:,} bytes). It may be "
            "truncated or of another kind; save the head again, or copy the file anew."
        ) from error
    page = metadata["vicinal"]
    if metadata.get("checksum") != _checksum(metadata["kind"], tensors, page):
        raise InputError(
            f"cannot read {path}: its checksum does not match, so it was damaged after it was "
            "written. Save the head again, or copy the file anew."
        )
    with reading(path, "Save the head again, or copy the file anew."):
        return metadata["kind"], tensors, json.loads(page, parse_constant=_refuse)


def pack_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Class names as JSON, with the dtype to come back to.

    >>> pack_classes(np.array([3, 5]))
    {'dtype': '<i8', 'names': [3, 5]}
    """
    names = classes.tolist()
    if not all(isinstance(name, (bool, int, float, str)) for name in names):
        raise InputError(
            f"class names like {names[0]!r} ({type(names[0]).__name__}) cannot be saved. "
            "Use whole numbers or strings."
        )
    return {"dtype": "object" if classes.dtype.kind == "O" else classes.dtype.str, "names": names}


def unpack_classes(packed: dict[str, Any]) -> NDArray[Any]:
    """The class names; a dtype that would change them is refused."""
    classes = np.array(packed["names"], dtype=np.dtype(packed["dtype"]))
    if classes.dtype.kind not in "OUiufb" or classes.tolist() != packed["names"]:
        raise InputError(f"its classes are not of the dtype {packed['dtype']!r}")
    return classes


def _check_origin(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT or "vicinal" not in metadata or "kind" not in metadata:
        raise InputError(
            f"cannot read {path}: it is a safetensors file, but not a vicinal head. "
            "Pass a file written by save()."
        )
    version = metadata.get("version", "")
    if not re.fullmatch("[0-9]{1,6}", version) or int(version) > VERSION:
        raise InputError(
            f"cannot read {path}: it has format version {version or 'unknown'}, this vicinal reads "
            f"up to {VERSION}. Update vicinal."
        )


def _refuse(name: str) -> None:
    raise ValueError(f"it holds {name}, which JSON has not")


def _checksum(kind: str, tensors: dict[str, Tensor], page: str) -> str:
    digest = hashlib.sha256(f"{kind}\n{page}\n".encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
