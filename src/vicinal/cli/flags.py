"""From the frozen record of a command to what typer parses.

A field of the record is a flag, a key of a config and a value, written down once:
``name: Annotated[type, typer.Option(...)] = default``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

import vicinal

# How a command is run and whom it trusts, not what it computes: these stay out of a config.
NOT_SETTINGS = ("config", "out", "fresh", "as_json", "quiet", "trust_folder", "media_root", "on")
FROM_CONFIG = "-"  # stands for an argument that is to come from --config
Field = tuple["dataclasses.Field[Any]", Any]  # a field with its annotation


def command(verb: str, kind: type) -> Callable[..., int | None]:
    """What typer calls: one parameter for each field of the record ``kind``.

    With ``--config`` the values come from there, but for those typed on the command line. The
    module of the verb is loaded here, and with it torch: help and a mistyped flag need neither.
    """

    def call(context: typer.Context, **values: Any) -> int | None:
        if sys.stderr.isatty() and not (values.get("quiet") or values.get("as_json")):
            typer.echo(f"vicinal {verb} …", err=True)  # torch takes its time to load
        module = importlib.import_module(f"vicinal.cli.{verb}")
        if values.get("config") is not None:
            config = importlib.import_module("vicinal.cli.config")
            typed = {name: value for name, value in values.items() if _typed(context, name, value)}
            found = config.read_config(values["config"], kind)
            if not values.get("trust_folder"):
                config.check_no_code(found, typed, values["config"])
            values |= found | typed
        check_ranges(kind, values)
        return module.run(kind(**values))

    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for field, hint in _fields(kind):
        _named_as_field(field.name, hint)
        _read_as_written(hint)
        default = required if field.default is dataclasses.MISSING else field.default
        parameters.append(inspect.Parameter(field.name, keyword, annotation=hint, default=default))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _typed(context: typer.Context, name: str, value: Any) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE" and value != FROM_CONFIG


def _named_as_field(name: str, hint: Any) -> str:
    """A flag that has no name of its own: ``label_key`` is ``--label-key``, and has no opposite."""
    option = typing.get_args(hint)[-1]
    if isinstance(option, OptionInfo) and option.default is ...:
        option.default = f"--{name.replace('_', '-')}"  # where typer looks for names
    return str(option.default) if isinstance(option, OptionInfo) else name


WRITTEN = {  # what counts as one; Python would read 1_0 as ten, and nothing as the current folder
    int: ("[+-]?[0-9]{1,20}", "a whole number"),
    float: (r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", "a number"),
    Path: ("(?s:.+)", "a path"),
}


def _read_as_written(hint: Any) -> None:
    """Give a flag that takes a number or a path a parser of its own."""
    asked, option = typing.get_args(hint)
    kind = next((part for part in (asked, *typing.get_args(asked)) if part in WRITTEN), None)
    if kind is None:
        return
    pattern, name = WRITTEN[kind]

    def read(value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            raise typer.BadParameter(f"{value!r} is not {name}.")
        return kind(value)

    option.parser = read
    if isinstance(option, OptionInfo):
        option.metavar = f"<{kind.__name__.lower()}>"


def check_ranges(kind: type, values: Mapping[str, Any]) -> None:
    """Every number within the range that its flag names, wherever it comes from."""
    for field, hint in _fields(kind):
        value, option = values.get(field.name, field.default), typing.get_args(hint)[-1]
        name = _named_as_field(field.name, hint)  # "--port"
        if isinstance(value, (str, Path)) and "\0" in str(value):
            raise vicinal.InputError(f"{name} holds a null character.")
        if value == "" or (isinstance(value, list) and "" in value):  # a variable that is not set
            raise vicinal.InputError(f"{name} is empty. Leave it out, or give it a value.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        low, high = option.min, option.max
        if not (low is None or value >= low) or not (high is None or value <= high):
            most = "" if high is None else f" and at most {high:.10g}"
            raise vicinal.InputError(f"{name} must be at least {low:g}{most}, got {value!r}.")


class Grouped(TyperCommand):
    """A verb whose help has its options in groups: those of its record, the docstrings as titles.

    Its own come first; an option of two groups stands in the first.
    """

    kind: type

    def format_options(self, ctx: Any, formatter: Any) -> None:
        kinds, groups = self.kind.__mro__, dict[str, list[Any]]()
        for param in self.get_params(ctx):
            part = next((p for p in kinds if param.name in inspect.get_annotations(p)), self.kind)
            own = "Options" if param.param_type_name == "option" else "Arguments"
            title = own if part is self.kind else str(part.__doc__)
            if (line := param.get_help_record(ctx)) is not None:
                groups.setdefault(title, []).append(line)
        for title, lines in groups.items():
            with formatter.section(title):
                formatter.write_dl(lines)


def settings_in(kind: type) -> Iterator[Field]:
    """The fields that a config may hold."""
    return (pair for pair in _fields(kind) if pair[0].name not in NOT_SETTINGS)


def _fields(kind: type) -> Iterator[Field]:
    """Fields with their annotations: the record's own first, then those of its groups in order."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    for part in kind.__mro__:
        for name in inspect.get_annotations(part):
            if name in fields:
                yield fields.pop(name), hints[name]
