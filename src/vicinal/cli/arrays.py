"""Array files of numpy, read without believing them: no pickle, no claim larger than the file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vicinal.capture.row_files import npy_heading
from vicinal.checks import InputError
from vicinal.files import reading, regular_file

PICKLED = (
    "{} holds Python objects (pickle). Refused for safety; save strings with dtype '<U', or "
    "--trust-pickle."
)


def read_npz(path: str | Path, *, trust_pickle: bool = False) -> dict[str, NDArray[Any]]:
    """Every array of an archive by its key."""
    path = regular_file(path)
    with _explained(path.name, path), open_npz(path, trust_pickle=trust_pickle) as file:
        arrays = {}
        for key in file.files:
            with _explained(f"{path.name}:{key}", path):
                arrays[key] = np.asarray(file[key])
        return arrays


def read_npy(path: str | Path, *, trust_pickle: bool = False) -> NDArray[Any]:
    """The array of a file."""
    path = regular_file(path)
    with _explained(path.name, path), path.open("rb") as file:
        _check_claim(file, os.path.getsize(path))
        file.seek(0)
        return np.asarray(np.load(file, allow_pickle=trust_pickle))


@contextmanager
def open_npz(path: Path, *, trust_pickle: bool = False) -> Iterator[Any]:
    """``numpy.load`` of an archive whose parts are no larger than they claim to be."""
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            if item.filename.endswith(".npy"):
                with archive.open(item) as part:
                    _check_claim(part, item.file_size)
    with np.load(path, allow_pickle=trust_pickle) as file:
        yield file


def _check_claim(file: IO[bytes], size: int) -> None:
    """No more than the file holds; where it is no array, that is for numpy to say."""
    if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
        file.seek(0)
        npy_heading(file, size)


@contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """What numpy refuses to load, as a sentence."""
    try:
        with reading(name):
            yield
    except InputError as error:
        cause = str(error.__cause__)
        if "Object arrays" in cause:
            raise InputError(PICKLED.format(name)) from None
        if "pickle" in cause or isinstance(error.__cause__, zipfile.BadZipFile):
            size = f"{path.stat().st_size:,} bytes"
            why = "it is no file of numpy.save or numpy.savez"
            raise InputError(
                f"cannot read {name}: {why} (truncated? it is {size}). Nothing was written."
            ) from None
        raise
