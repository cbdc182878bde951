"""Uploads of ``vicinal explore`` become arrays in a process of their own, with a cap.

What a stranger sends may be a zip that unpacks to a disk, a header that claims one, a picture of a
city at a meter a page. A parser cannot be asked to be careful; the process it runs in can be
bounded. Each upload gets a fresh one: so much memory, so much time, and whatever it raises, or
dies of, is a sentence. Numbers come back as bytes of ``numpy.save``, never pickled.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.pictures import read_image
from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows
from vicinal.cli.row_set import vectors

MEMORY = 512 << 20  # bytes that reading one upload may take
SECONDS = 20  # of computing; a clock gives up after twice as many
PIXELS = 40_000_000  # of a picture
ROWS = 5_000  # judged at once
FILES = (".npy", ".npz", ".jsonl", ".parquet")  # read as data files; the rest is text

_processes = multiprocessing.get_context("forkserver")  # forks from a clean process, in no time
_processes.set_forkserver_preload(["vicinal.cli.explore_decode", "vicinal.cli.__main__"])


def uploaded_rows(name: str, data: bytes) -> NDArray[Any]:
    """Rows of numbers from typed text, JSON or CSV, or from a data file; pickles are refused."""
    return _decoded(_rows, shown_name(name), data)


def uploaded_picture(data: bytes, *, size: int | None, gray: bool) -> NDArray[Any]:
    """The pixels of a picture, as :func:`vicinal.cli.model_inputs.read_image` reads them."""
    return _decoded(_pixels, "the picture", data, size, gray)


def shown_name(name: str) -> str:
    """The last part of a file's name, cut, without what could steer a terminal."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(c for c in last if c.isprintable())
    return shown if len(shown) <= 80 else f"{shown[:40]}…{shown[-20:]}"


# ------------------------------------------------------------------ here


def _decoded(read: Callable[..., NDArray[Any]], name: str, data: bytes, *how: Any) -> NDArray[Any]:
    """What ``read(name, data, *how)`` gives in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload"
        path.write_bytes(data)
        here, there = _processes.Pipe(duplex=False)
        work = _processes.Process(target=_work, args=(there, read, name, path, how), daemon=True)
        work.start()
        there.close()
        try:
            answer = here.recv_bytes(MEMORY) if here.poll(2 * SECONDS) else b""
        except (EOFError, OSError):  # it died: of the cap, or of its parser
            answer = b""
        finally:
            here.close()
            work.kill()
            work.join()
    if not answer:
        raise InputError(
            f"cannot read {name}: it takes more than {SECONDS} s or {MEMORY >> 20} MB. "
            "Send fewer rows, or a smaller picture."
        )
    if answer[:1] == b"!":
        raise InputError(answer[1:].decode("utf-8", "replace"))
    return np.asarray(np.load(io.BytesIO(answer), allow_pickle=False))


# ------------------------------------------------------------------ there


def _work(
    out: Connection, read: Callable[..., NDArray[Any]], name: str, path: Path, how: tuple[Any, ...]
) -> None:
    """What the process does: one array, or one sentence after an exclamation mark."""
    try:
        _confine()
        buffer = io.BytesIO()
        np.save(buffer, read(name, path, *how), allow_pickle=False)
        answer = buffer.getvalue()
    except InputError as error:
        answer = _sentence(str(error), name, path)
    except MemoryError:
        answer = b""
    except RecursionError:
        answer = _sentence(f"cannot read {name}: it is nested too deep.", name, path)
    except Exception as error:  # of any parser: what it cannot read is no fault of ours
        what = f"{type(error).__name__}: {str(error)[:300]}"
        answer = _sentence(f"cannot read {name}: {what}.", name, path)
    out.send_bytes(answer)


def _sentence(said: str, name: str, path: Path) -> bytes:
    """Nobody outside needs to know where the upload lay."""
    folder = re.escape(str(path.parent))
    return f"!{re.sub(rf'{folder}/upload[.a-z]*', name, said)}".encode("utf-8", "replace")


def _confine() -> None:
    """No more memory or time than an upload may take; nothing where the system has no such word."""
    try:
        import resource
    except ImportError:
        return
    with open(os.devnull, "w") as nowhere:  # parsers complain there
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if pages.exists():
        used = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _rows(name: str, path: Path) -> NDArray[Any]:
    ending = next((e for e in FILES if name.lower().endswith(e)), None)
    if ending is not None:
        called = path.with_name(f"upload{ending}")
        path.rename(called)
        try:
            rows = vectors(read_rows(str(called))).embeddings
        except InputError as error:
            said = str(error).replace(str(called), name).replace(called.name, name)
            raise InputError(said) from None
    else:
        try:
            rows = _typed_rows(path.read_text("utf-8").strip())
        except (ValueError, TypeError) as error:
            why = str(error)[:200]
            raise InputError(
                f"cannot read rows from {name}: {why}. Give one row of numbers per line."
            ) from None
    if rows is None or rows.ndim != 2 or rows.size == 0:
        raise InputError("give one row of numbers per line.")
    if len(rows) > ROWS:
        raise InputError(f"{name} has {len(rows):,} rows; at most {ROWS:,} are judged at once.")
    return rows


def _typed_rows(text: str) -> NDArray[Any]:
    if text[:1] in ("[", "{"):
        value = json.loads(text)
        value = value.get("rows", value) if isinstance(value, dict) else value
        rows = np.asarray(value, dtype=np.float64)
        return rows[None] if rows.ndim == 1 else rows
    lines = [line for line in text.splitlines() if line.strip()]
    return np.array([[float(v) for v in line.split(",")] for line in lines])


def _pixels(name: str, path: Path, size: int | None, gray: bool) -> NDArray[Any]:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # of this process: the sentence below is ours
    with Image.open(path) as picture:
        wide, high = picture.size
    if wide * high > PIXELS:
        raise InputError(
            f"{name} has {wide} x {high} pixels; at most {PIXELS // 1_000_000} million are read."
        )
    return read_image(path, size=size, gray=gray)
