"""Frozen records of plain values, JSON in and out.

What a study returns is a fact sheet: numbers, words and tuples of them, nothing that needs torch or
numpy to be read. :class:`Record` holds the two rules that make it so. On the way in, arrays, lists
and numpy scalars become tuples and Python numbers, and NaN is refused: a missing value is ``None``,
with a sentence elsewhere that says why. On the way back from JSON, the annotations say what each
list was, and between which numbers a value lies.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Collection
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from vicinal.checks import InputError

Span = tuple[float, float]  # the lowest and the highest number that is allowed
UNIONS = (types.UnionType, typing.Union)
Reader = Callable[[Any, str], Any]  # a JSON value and what it is called -> the field's value
LARGEST = 2**63 - 1  # what an array of numpy holds
FARTHEST = 1e302  # a distance of the widest rows is 1e301; a page may take a hundred times that
Share = Annotated[float, (0.0, 1.0)]
Percentile = Annotated[float, (0.0, 100.0)]
Signed = Annotated[float, (-1.0, 1.0)]
PLAIN = {str, int, bool, type(None)}  # kinds that are taken as they are; floats must be finite


@dataclasses.dataclass(frozen=True)
class Record:
    """Base of every record. A field marked ``field(metadata={"json": False})`` stays out of JSON.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point(Record):
    ...     x: float
    ...     tags: tuple[str, ...] = ()
    >>> Point(1.5, ["a"]) == Point.from_json(Point(1.5, ["a"]).to_json())
    True
    """

    TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = ()  # columns of one length; None is missing

    def __init_subclass__(cls) -> None:
        """Records may hold a value for each row: they show what is inside, not all of it."""
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = _shown  # type: ignore[assignment]  # before dataclass writes one

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.metadata.get("json", True):
                where = f"{type(self).__name__}.{field.name}"
                object.__setattr__(self, field.name, plain(getattr(self, field.name), where))
        for first, *others in self.TOGETHER:
            rows = len(getattr(self, first))
            for name in others:
                column = getattr(self, name)
                if column is not None and len(column) != rows:
                    raise InputError(
                        f"`{type(self).__name__}.{name}` must hold one entry for each of the "
                        f"{rows} in `{first}`, got {len(column)}."
                    )

    def to_dict(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Nested dictionaries, tuples and numbers, in the order of the fields."""
        return {
            field.name: _open(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.metadata.get("json", True) and field.name not in without
        }

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=indent)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The record of JSON values; each must be of the kind its annotation says."""
        if not isinstance(values, dict):
            raise InputError(
                f"not a saved {cls.__name__}: expected an object, got {_short(values)}."
            )
        known = _readers(cls)  # type: ignore[arg-type]  # a class is hashable; Self hides it
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InputError(
                f"{cls.__name__} has no field {unknown[0]!r}; it may come from another version of "
                f"vicinal. Fields: {', '.join(known)}."
            )
        read = {
            name: known[name](value, f"{cls.__name__}.{name}") for name, value in values.items()
        }
        try:
            return cls(**read)
        except (TypeError, AttributeError) as error:
            raise InputError(f"not a saved {cls.__name__}: {error}.") from error

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"not a saved {cls.__name__}: no valid JSON ({error}). Was the file cut short?"
            ) from error
        return cls.from_dict(values)


def plain(value: Any, where: str) -> Any:
    """``value`` as tuples, dictionaries and Python numbers; NaN and infinity are errors.

    >>> plain([[1, 2.0], None], "x")
    ((1, 2.0), None)
    """
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise InputError(f"`{where}` holds {value}. Pass None where there is no value.")
        return value
    if kind in PLAIN or isinstance(value, Record):
        return value
    if kind in (tuple, list):
        kinds = set(map(type, value))  # a column of a million numbers is checked at C's speed
        if kinds <= PLAIN or (kinds == {float} and all(map(math.isfinite, value))):
            return tuple(value)
        if kinds == {tuple}:  # rows of numbers: so are they
            inner = set(map(type, chain.from_iterable(value)))
            finite = inner == {float} and all(map(math.isfinite, chain.from_iterable(value)))
            if finite or inner <= PLAIN:
                return tuple(value)
        return tuple([plain(item, where) for item in value])
    if isinstance(value, dict):
        return {str(key): plain(item, where) for key, item in value.items()}
    rows = value if isinstance(value, np.ndarray) and value.ndim == 2 else np.zeros((0, 0))
    if rows.size and rows.dtype.kind in "if" and bool(np.isfinite(rows).all()):
        return tuple(zip(*rows.T.tolist(), strict=True))  # checked at once; no list for each row
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars
        return plain(value.tolist(), where)
    if isinstance(value, str):
        return str(value)
    raise InputError(
        f"`{where}` must hold numbers, text or None, got {type(value).__name__}. "
        "Convert it before it goes into the record."
    )


def _open(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple) and value and not isinstance(value[0], (int, float, str)):
        return [_open(item) for item in value]
    return {k: _open(v) for k, v in value.items()} if isinstance(value, dict) else value


@functools.cache
def _readers(cls: type[Record]) -> dict[str, Reader]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: _reader(hints[field.name])
        for field in dataclasses.fields(cls)
        if field.metadata.get("json", True)
    }


def _reader(hint: Any) -> Reader:
    """How a JSON value of this annotation is read, and what it is called if it is another."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda value, _: hint.from_dict(value)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    kinds = _kinds(hint)
    if kinds is not None:
        span = _span(hint)
        return lambda value, where: _within(_of_kind(value, kinds, where), (value,), span, where)
    if origin in UNIONS:
        inner = [_reader(part) for part in parts if part is not type(None)]
        if len(inner) == 1:
            return lambda value, where: None if value is None else inner[0](value, where)
        return _as_is
    if origin is tuple:
        return _list_reader(parts)
    if origin is dict:
        reader = _reader(parts[1])
        return lambda value, where: {
            key: reader(item, f"{where}[{key!r}]")
            for key, item in _of_kind(value, {dict}, where).items()
        }
    return _as_is


def _list_reader(parts: tuple[Any, ...]) -> Reader:
    """Lists of one kind, of any length or as long as the annotation says."""
    inner, kinds, span = _reader(parts[0]), _kinds(parts[0]), _span(parts[0])
    length = None if parts[-1] is Ellipsis else len(parts)

    def read(value: Any, where: str) -> Any:
        _of_kind(value, {list, tuple}, where)
        if length is not None and len(value) != length:
            raise InputError(f"`{where}` must hold {length} values, got {len(value)}.")
        if kinds is None:
            return [inner(item, where) for item in value]
        if not set(map(type, value)) <= kinds:  # a column of a million is checked at C's speed
            for item in value:
                _of_kind(item, kinds, where)
        return _within(value, value, span, where)

    return read


def _kinds(hint: Any) -> set[type] | None:
    """The kinds of plain values an annotation allows; None: it is not about plain values."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        found = [_kinds(part) for part in parts]
        return None if None in found else set[type]().union(*(f for f in found if f is not None))
    hint = parts[0] if origin is Annotated else hint
    if hint is float:
        return {float, int}
    return {hint} if hint in PLAIN else None


def _span(hint: Any) -> Span:
    """Between which numbers values of an annotation lie; without a word of it all that we hold."""
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is Annotated:
            low, high = part.__metadata__[0]
            return low, high
    kinds = _kinds(hint) or set()
    return (-FARTHEST, FARTHEST) if float in kinds else (-LARGEST, LARGEST)


def _within(result: Any, values: Any, span: Span, where: str) -> Any:
    """The result, if the numbers among the values lie in the span, but for what is rounded."""
    kinds = set(map(type, values))
    if not kinds <= {int, float}:
        values = [value for value in values if type(value) in (int, float)]
    low, high = span[0] - 1e-3, span[1] + 1e-3
    if int in kinds:  # of them an array holds no more
        low, high = max(low, -LARGEST), min(high, LARGEST)
    if len(values) and not (low <= min(values) and max(values) <= high):
        wrong = next(value for value in values if not low <= value <= high)
        raise InputError(
            f"`{where}` must lie between {low:.3g} and {high:.3g}, got {_short(wrong)}."
        )
    return result


def _of_kind(value: Any, kinds: set[type], where: str) -> Any:
    if type(value) not in kinds:
        names = " or ".join(sorted(_WORDS[kind] for kind in kinds))
        raise InputError(f"`{where}` must be {names}, got {_short(value)}.")
    return value


_WORDS: dict[type, str] = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false",
    type(None): "null", list: "a list", tuple: "a list", dict: "an object",
}  # fmt: skip


def _short(value: Any) -> str:
    return (str(value) if type(value) in PLAIN else type(value).__name__)[:40]


def _as_is(value: Any, where: str) -> Any:
    """Lists become tuples where the record is made, see :func:`plain`."""
    return value


MOST = 6  # values of a list that are shown
WIDEST = 80  # characters of a text


def _shown(record: Record) -> str:
    """The fields by name; long lists by their length, long texts by their beginning.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Many(Record):
    ...     x: tuple[int, ...]
    >>> Many((0, 1, 2)), Many((0,) * 1000)
    (Many(x=(0, 1, 2)), Many(x=<1,000 values>))
    """
    parts = [
        f"{field.name}={_few(getattr(record, field.name))}"
        for field in dataclasses.fields(record)
        if field.repr
    ]
    return f"{type(record).__name__}({', '.join(parts)})"


def _few(value: Any) -> str:
    if isinstance(value, (tuple, list, dict)) and len(value) > MOST:
        return f"<{len(value):,} {'entries' if isinstance(value, dict) else 'values'}>"
    text = repr(value)
    if isinstance(value, float) and len(text) > 10:
        return f"{value:.6g}"
    return text if len(text) <= WIDEST or isinstance(value, Record) else f"{text[: WIDEST - 1]}…"
