"""One frozen record per command: its fields are its flags, the keys of its config, its values.

A field is written down once, ``name: Annotated[type, typer.Option(...)] = default``. From the
record come the signature that typer parses, ``config.json``, and the check of a config read back.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from vicinal.checks import InputError, closest

# How a command is run, not what it computes: these fields stay out of a config.
NOT_SETTINGS = ("config", "out", "fresh", "as_json", "quiet")
FROM_CONFIG = "-"  # stands for an argument that is to come from --config

EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    list: "a list of texts",
}


def command(run: Callable[[Any], int | None]) -> Callable[..., int | None]:
    """What typer parses: one parameter for each field of the record that ``run`` takes.

    With ``--config`` the values come from there, but for those typed on the command line.
    """
    (kind,) = [hint for name, hint in typing.get_type_hints(run).items() if name != "return"]

    def call(context: typer.Context, **values: Any) -> int | None:
        if values.get("config") is not None:
            typed = {name: value for name, value in values.items() if _typed(context, name, value)}
            values |= read_config(values["config"], kind) | typed
        return run(kind(**values))

    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for field, hint in _fields(kind):
        default = required if field.default is dataclasses.MISSING else field.default
        parameters.append(inspect.Parameter(field.name, keyword, annotation=hint, default=default))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def as_config(options: Any) -> dict[str, Any]:
    """The settings of a record as plain values: what ``config.json`` holds."""
    values = {field.name: getattr(options, field.name) for field, _ in _settings(type(options))}
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
    hints = {field.name: typing.get_args(hint)[0] for field, hint in _settings(kind)}
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


def _typed(context: typer.Context, name: str, value: Any) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE" and value != FROM_CONFIG


def _settings(kind: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    return (pair for pair in _fields(kind) if pair[0].name not in NOT_SETTINGS)


def _fields(kind: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Fields with their annotations: the record's own first, then those of its groups in order."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    for part in kind.__mro__:
        for name in inspect.get_annotations(part):
            if name in fields:
                yield fields.pop(name), hints[name]
