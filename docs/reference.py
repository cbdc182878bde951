"""The pages that are made from the code when the site is built, so that they cannot grow stale.

``api/ROOM``: what a room says of itself, a table of its public names, then file by file the formula
and each name in full, under the name that users import. ``command_line``: every verb's ``--help``.
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
    homes = sorted({getattr(room, n).__module__ for n in names})
    files = [
        _file(home, [n for n in names if getattr(room, n).__module__ == home], room)
        for home in homes
    ]
    return "\n".join([*table, "", *files])


def _file(home: str, names: list[str], room: ModuleType) -> str:
    """What a file says of its subject, the formula among it, then its public names."""
    text = inspect.getdoc(importlib.import_module(home)) or home
    paragraph = text.split("\n\n")[0].replace("\n", " ")
    title = re.split(r": | \(|(?<=[.?]) ", _plain(paragraph))[0].rstrip(".")
    body = [_directive(f"{room.__name__}.{n}", getattr(room, n)) for n in names]
    return "\n".join([f"## {title}", "", "````{eval-rst}", text, "", *body, "````", ""])


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
    """Sphinx's ``autodoc-process-docstring``: our lists of arguments as numpydoc has them.

    ``name : text`` is a name and its text, no type; what follows the list is no argument.

    >>> lines = ["Parameters", "----------", "a, b : two,", "    of one width.", "", ">>> f(1, 2)"]
    >>> arguments(None, "", "", None, None, lines)
    >>> lines[2:]
    ['a, b', '    two,', '    of one width.', '', 'Examples', '--------', '>>> f(1, 2)']
    """
    inside, found = False, list[str]()
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        inside = inside or (line.strip() == "Parameters" and after.startswith("---"))
        entry = re.fullmatch(r"([\w*, ]+?)(?: : (.+)|:)?", line)
        if inside and line and line[0] not in " -" and not (entry or after.startswith("---")):
            inside = False
            title = "Examples" if line.startswith((">>>", "Example")) else "Notes"
            found += [title, "-" * len(title)]
        found += [entry[1], f"    {entry[2]}"] if inside and entry and entry[2] else [line]
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
    return _plain(sentence).replace("|", "\\|")


def _plain(text: str) -> str:
    """Roles as Markdown has them: a formula, or a name in quotes."""
    text = text.replace(":math:`", "{math}`")
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def _directive(path: str, value: Any) -> str:
    if inspect.isclass(value):
        return f".. autoclass:: {path}\n   :members:\n   :exclude-members: extra_repr\n"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {path}\n"
