"""The user's own code: its errors are shown as theirs, with the file and the line."""

from __future__ import annotations

import site
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vicinal.checks import InputError

_LIBRARIES = tuple(
    {
        str(Path(__file__).parents[1]),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
    }
)


_THEIRS: set[str] = set()  # folders of the files that this invocation was told to import


def remember(path: str | None) -> None:
    """A file whose code the command line named: what it raises later is the user's too."""
    if path is not None and not path.startswith(_LIBRARIES):
        _THEIRS.add(str(Path(path).resolve().parent))


def is_theirs(error: BaseException) -> bool:
    """Whether an error came through code that the command line named, or what lies beside it."""
    files = {frame.filename for frame in _own_frames(error)}
    return any(str(Path(file).resolve()).startswith(tuple(_THEIRS)) for file in files)


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Lines that are no library's, of ours or of others."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]


@contextmanager
def user_code(what: str, fix: str = "") -> Iterator[None]:
    """Whatever is raised inside is an answer of the user's code, be it a call to ``exit``."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} failed: {described(error)}.{fix and ' ' + fix}") from error


def described(error: BaseException) -> str:
    """Kind and words of an error, and where in the user's files it was raised.

    >>> described(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    said = f"{type(error).__name__}: {' '.join(words.split())[:300]}".rstrip(": .")
    place = place_of(error)
    return said if place is None else f"{said} ({place})"


def place_of(error: BaseException) -> str | None:
    """``net.py, line 3``: the last line of the user's that the error passed; None without any."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = _own_frames(error)
    return f"{lines[-1].filename}, line {lines[-1].lineno}" if lines else None
