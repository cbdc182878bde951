"""Settings of a command as a file, written beside a run and read back with ``--config``."""

from __future__ import annotations

import json
import math
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

from vicinal.checks import InputError, closest
from vicinal.cli.flags import settings_in

EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    list: "a list of texts",
}


def as_config(options: Any) -> dict[str, Any]:
    """The settings of a record as plain values: what ``config.json`` holds."""
    values = {field.name: getattr(options, field.name) for field, _ in settings_in(type(options))}
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def read_config(path: Path, kind: type) -> dict[str, Any]:
    """Settings of a record from JSON or TOML: every name and the type of every value checked."""
    if not path.exists():
        raise InputError(f"no such file: {path}.")
    try:
        text = path.read_text("utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    if not isinstance(values, dict):
        raise InputError(f"{path.name} must hold settings by name, got {json.dumps(values)[:40]}.")
    hints = {field.name: typing.get_args(hint)[0] for field, hint in settings_in(kind)}
    checked = {}
    for name, value in values.items():
        if name == "command":
            continue
        if name not in hints:
            near = closest(name, hints)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            verb = kind.__name__.removesuffix("Options").lower()
            raise InputError(f"{path.name}: vicinal {verb} has no setting {name!r}.{hint}")
        checked[name] = _checked(value, hints[name], f"{path.name}: {name!r}")
    return checked


def _checked(value: Any, hint: Any, name: str) -> Any:
    """A value as its field's type says; whole numbers pass as floats and, like k, as text."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in choices:
        return None
    kind = typing.get_origin(choices[0]) or choices[0]
    if type(value) is kind and (kind is not list or all(isinstance(v, str) for v in value)):
        if kind is not float or math.isfinite(value):
            return value
    elif type(value) is int and kind in (float, str):
        return kind(value)
    elif type(value) is str and kind is Path:
        return Path(value)
    raise InputError(f"{name} must be {EXPECTED[kind]}, got {json.dumps(value, default=str)}.")
