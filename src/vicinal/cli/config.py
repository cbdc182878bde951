"""Settings of a command as a file, written beside a run and read back with ``--config``.

A file may name a model, but never runs one: code comes from the command line of this invocation.
What a file says that would run code has to be typed, or trusted as a whole with --trust-folder.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vicinal.checks import InputError, did_you_mean
from vicinal.cli.flags import settings_in
from vicinal.files import read_json

EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text",
            Path: "a path", list: "a list of texts"}  # fmt: skip


def as_config(options: Any) -> dict[str, Any]:
    """The settings of a record as plain values: what ``config.json`` holds."""
    values = {field.name: getattr(options, field.name) for field, _ in settings_in(type(options))}
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def read_config(path: Path, kind: type) -> dict[str, Any]:
    """Settings of a record from JSON: every name and the type of every value checked."""
    path = path / "config.json" if path.is_dir() else path  # or the run it lies in
    values = read_json(path, "Nothing was written.")
    hints = {field.name: typing.get_args(hint)[0] for field, hint in settings_in(kind)}
    checked = {}
    for name, value in values.items():
        if name == "command" or (value is None and name not in hints):
            continue  # of an older version, and not said
        if name not in hints:
            verb, hint = kind.__name__.removesuffix("Options").lower(), did_you_mean(name, hints)
            raise InputError(f"{path.name}: vicinal {verb} has no setting {name!r}.{hint}")
        checked[name] = _checked(value, hints[name], f"{path.name}: {name!r}")
    return checked


OWN_MODEL = "vicinal.audits.demo:network"  # what the demo's folder names: our own code


def check_no_code(found: Mapping[str, Any], typed: Mapping[str, Any], path: Path) -> None:
    """Refuse settings of a file that would run code, unless they were typed as well."""
    for name in ("trust_pickle", "online", "model", "support", "query", "calib", "foreign"):
        value = found.get(name)
        if isinstance(value, str):
            runs = value != OWN_MODEL and (name == "model" or ":" in value)
        else:
            runs = bool(value)  # what a pickle, or a model by name, brings may be code
        if runs and name not in typed:
            raise InputError(
                f"{path.name} sets {name!r} to {str(value)!r}, which would run code of whoever "
                "wrote the file. If you trust it, type that setting yourself, or add "
                "--trust-folder."
            )


def _checked(value: Any, hint: Any, name: str) -> Any:
    """A value as its field's type says; whole numbers pass as floats and, like k, as text."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in choices:
        return None
    kind = typing.get_origin(choices[0]) or choices[0]
    if type(value) is kind and (kind is not list or all(isinstance(v, str) for v in value)):
        if kind is not float or math.isfinite(value):
            return value
    elif type(value) is int and kind in (float, str) and abs(value) < 2**53:
        return kind(value)
    elif type(value) is str and kind is Path:
        return Path(value)
    raise InputError(f"{name} must be {EXPECTED[kind]}, got {json.dumps(value, default=str)}.")
