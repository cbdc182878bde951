"""The pages that are made from the code when the site is built, so that they cannot grow stale.

``api/ROOM``: what a room says of itself, a table of its public names, then each in full, under the
name that users import. ``command_line``: every verb's own ``--help``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

VERBS_PAGE = "command_line"
MARK = "%%"  # where a page has it, the generated part goes


def public_names(room: ModuleType) -> list[str]:
    """What a room exports and holds itself; what it passes on from another room is told there."""
    names = [name for name in vars(room) if name[0] != "_" and _lives_in(room, name)]
    return sorted(names, key=str.lower)


def room_page(name: str) -> str:
    room = importlib.import_module(f"vicinal.{name}")
    names = public_names(room)
    table = ["| | |", "|---|---|"]
    table += [f"| [`{n}`](#vicinal.{name}.{n}) | {_first(getattr(room, n))} |" for n in names]
    body = [_directive(f"vicinal.{name}.{n}", getattr(room, n)) for n in names]
    return "\n".join([*table, "", "```{eval-rst}", *body, "```", ""])


def verbs_page() -> str:
    """The help of every verb, as the terminal shows it at 88 columns."""
    os.environ["COLUMNS"] = "88"
    from typer.testing import CliRunner  # late: only this page needs it

    from vicinal.cli.__main__ import app
    from vicinal.cli.verbs import VERBS

    parts = []
    for verb in VERBS:
        shown = CliRunner().invoke(app, [verb, "--help"]).stdout.strip()
        parts += [f"## vicinal {verb}", "", "```text", shown, "```", ""]
    return "\n".join(parts)


def arguments(
    _app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    """Sphinx's ``autodoc-process-docstring``: ``name : text`` is a name and its text, no type.

    Our lists of arguments put the text beside the name, where numpydoc has a type.

    >>> lines = ["Parameters", "----------", "a, b : two rows,", "    of one width.", "k : count."]
    >>> arguments(None, "", "", None, None, lines)
    >>> lines
    ['Parameters', '----------', 'a, b', '    two rows,', '    of one width.', 'k', '    count.']
    """
    inside, found = False, list[str]()
    for at, line in enumerate(lines):
        if line.strip() == "Parameters" and lines[at + 1 : at + 2] == ["-" * len("Parameters")]:
            inside = True
        elif (
            inside and line and not line.startswith(" ") and " : " not in line and "--" not in line
        ):
            inside = False
        match = re.fullmatch(r"([\w*, ]+?) : (.+)", line) if inside else None
        found += [match[1], f"    {match[2]}"] if match else [line]
    lines[:] = found


def fill(_app: Any, docname: str, source: list[str]) -> None:
    """Sphinx's ``source-read``: put the generated part where the page has the mark."""
    if MARK not in source[0]:
        return
    made = verbs_page() if docname == VERBS_PAGE else room_page(Path(docname).name)
    source[0] = source[0].replace(MARK, made)


def _lives_in(room: ModuleType, name: str) -> bool:
    value = getattr(room, name)
    home = getattr(value, "__module__", None) or ""
    return not inspect.ismodule(value) and home.startswith(room.__name__)


def _first(value: Any) -> str:
    """The first sentence of a docstring, safe inside a table."""
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    if paragraph.startswith(f"{getattr(value, '__name__', '')}("):  # a dataclass's own signature
        return ""
    sentence = re.split(r"(?<! al)(?<! eq)\. ", paragraph)[0].rstrip(".")
    named = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", sentence)  # a role is for the full text
    return named.replace("|", "\\|").replace("``", "`")


def _directive(path: str, value: Any) -> str:
    if inspect.isclass(value):
        return f".. autoclass:: {path}\n   :members:\n"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {path}\n"
