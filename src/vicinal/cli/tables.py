"""Tables of rows: CSV, TSV, JSON lines, Parquet, and folders that ``datasets`` saved.

Every complaint names the line, and the column where there is one.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vicinal.capture.row_files import LOGIT_KEYS
from vicinal.checks import InputError
from vicinal.cli.row_set import IMAGE_KEYS, NO_LABEL, PATH_KEYS, USUAL, RowSet, pick
from vicinal.cli.saved_datasets import columns_in, saved_table
from vicinal.cli.verbs import DataOptions
from vicinal.files import arrow, reading, reason, regular_file

# What pandas calls the numbers of the rows when it writes them, or reads what it wrote.
ROW_NUMBERS = ("", "Unnamed: 0", "index", "__index_level_0__")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def read_table(path: Path, options: DataOptions) -> RowSet:
    """The rows of a table, or of a saved data set; ``path`` is also what the messages call it."""
    if not path.is_dir():
        regular_file(path)
    with reading(path.name):
        table = _table_in(path)
        if not table or not next(iter(table.values())):
            raise InputError(f"{path.name} has no rows.")
        return _from_table(path, table, options)


def columns_of(path: Path) -> dict[str, bool]:
    """The names of a table's columns, and whether a column holds a few words again and again."""
    with reading(path.name):
        table = _table_in(path)
    return {
        name: all(isinstance(v, str) and not _is_number(v) for v in column)
        and 1 < len(set(column)) <= len(column) / 2
        for name, column in table.items()
    }


def _table_in(path: Path) -> dict[str, list[Any]]:
    """Columns by name, values as they are written."""
    if path.is_dir():
        return saved_table(path)
    ending = path.suffix.lower()
    if ending == ".parquet":
        table = arrow("reading .parquet needs pyarrow").parquet.read_table(path)
        _check_unique(table.column_names)
        return columns_in(table)
    if ending == ".jsonl":
        return _json_lines(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"cannot read {path.name}: it is no UTF-8 text (byte {error.start:,} is "
            f"{error.object[error.start]:#x}). Save it as UTF-8."
        ) from None
    between = "\t" if ending == ".tsv" else max(",;\t|", key=text.partition("\n")[0].count)
    if between == ";":  # written where a comma begins the decimals
        text = re.sub(r"(?m)(^|;)(-?[0-9]+),([0-9]+)(?=;|\r?$)", r"\1\2.\3", text)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True))
    if not rows:
        raise InputError(f"{path.name} is empty. Write a heading and one line per row.")
    ragged = [at for at, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if ragged:
        raise ValueError(
            f"line {ragged[0]} has {len(rows[ragged[0] - 1])} cells, the heading has {len(rows[0])}"
        )
    _check_unique(rows[0])
    _check_heading(rows[0])
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}


def _json_lines(path: Path) -> dict[str, list[Any]]:
    objects = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if line.strip():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is no JSON ({reason(error)})") from None
            if not isinstance(found, dict):
                kind = type(found).__name__
                raise ValueError(f'line {number} is a {kind}, not an object {{"embedding": […]}}')
            objects.append(found)
    names = list(dict.fromkeys(key for item in objects for key in item))
    return {name: [item.get(name) for item in objects] for name in names}


def _check_unique(names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"its heading names {twice[0]!r} twice")


def _check_heading(names: list[str]) -> None:
    """Refuse a first line of data: broken numbers in no order, where wavelengths would rise."""
    found = [float(name) for name in names if _is_number(name)]
    broken = any("." in name for name in names if _is_number(name))
    if broken and found != sorted(found):
        raise ValueError(
            f"its first line ({', '.join(names)[:60]}) is data, not the names of the columns. Put "
            "a heading above it"
        )


class TableColumns(NamedTuple):
    """The column of each kind, by name; ``numeric`` are all that are nothing else."""

    label: str | None
    ident: str | None
    text: str | None
    image: str | None
    vector: str | None
    logit: str | None
    numeric: list[str]

    @property
    def taken(self) -> set[str | None]:
        return {self.label, self.ident, self.image, self.text, self.logit}


def _columns_of(
    table: Mapping[str, list[Any]], label: str | None, options: DataOptions, name: str
) -> TableColumns:
    """What was named, or has a usual name, or is what is meant."""
    numbers = [k for k in ROW_NUMBERS if k in table and len({*map(str, table[k])}) == len(table[k])]
    ident = pick(table, options, "id_col", name, (*USUAL["id_col"], *numbers))
    text = pick(table, options, "text_col", name)
    pictures = (key for key in IMAGE_KEYS if isinstance(table.get(key, [0])[0], (bytes, str)))
    image = pick(table, options, "image_col", name, (*PATH_KEYS, *pictures))
    usual = [k for k in USUAL["embedding_key"] if k in table and _is_vector(table[k][0])]
    others = [key for key in table if key not in {label, ident, image, text}]
    lists = [key for key in others if isinstance(table[key][0], list)]
    meant = lists if len(lists) == 1 else [key for key in lists if key not in LOGIT_KEYS]
    usual = usual or (meant if len(meant) == 1 else [])  # one column of lists is what is meant
    vector = pick(table, options, "embedding_key", name, usual)
    logit = next((k for k in LOGIT_KEYS if k in lists and vector not in (None, k)), None)
    numeric = [key for key in others if key != logit and _is_numeric(table[key])]
    return TableColumns(label, ident, text, image, vector, logit, numeric)


def _from_table(path: Path, table: Mapping[str, list[Any]], options: DataOptions) -> RowSet:
    """The embedding list column, or all numeric columns that are nothing else."""
    name = path.name
    label = pick(table, options, "label_key", name)
    if label is not None and not any(value is not None for value in table[label]):
        label, table = None, {key: table[key] for key in table if key != label}
    found = _columns_of(table, label, options, name)
    _, ident, text, image, vector, logit, numeric = found
    features: tuple[str, ...] = ()
    embeddings: NDArray[Any] | None = None
    shown: list[str] = []
    if vector:
        embeddings = _stacked(table[vector], f"{name}:{vector}")
        shown = [key for key in table if key not in found.taken and key != vector]
    elif (image or text) and (not numeric or path.is_dir()):
        pass  # for a model to embed
    elif numeric:
        embeddings = _matrix(table, numeric, name)
        shown, features = numeric, tuple(numeric)
    else:
        raise InputError(
            f"{name} has no 'embedding' column and no numeric columns (columns: "
            f"{', '.join(table)}). Name it with --embedding-key."
        )
    bare = text is None and image is None
    table_rows = [list(row) for row in zip(*(table[key] for key in shown), strict=True)]
    return RowSet(
        name,
        embeddings,
        None if label is None else labels_in(table[label], f"{name}: "),
        None if ident is None else tuple(map(str, table[ident])),
        images=None if image is None else _pictures(table[image], name),
        texts=None if text is None else [str(v) for v in table[text]],
        logits=None if logit is None else _stacked(table[logit], f"{name}:{logit}"),
        table=table_rows if shown and bare else None,
        columns=tuple(shown) if bare else (),
        source=f"{name}:{vector or 'columns'}",
        features=features,
        unused=tuple(k for k in table if features and k not in {*found.taken, *features}),
        root=path if path.is_dir() else path.parent,
    )


def _matrix(table: Mapping[str, list[Any]], numeric: list[str], name: str) -> NDArray[Any]:
    """Numeric columns side by side; one that counts the rows is refused."""
    if len(numeric) > 1 and (counts := [key for key in numeric if _is_count(table[key])]):
        raise InputError(
            f"{name}: the column {counts[0]!r} only counts the rows, and would tell the labels "
            f"of sorted rows. Name it as their id (--id-col {counts[0]}), or leave it out."
        )
    return np.array([_numbers(table[key], f"{name}: column {key!r}") for key in numeric]).T


def _pictures(values: list[Any], name: str) -> list[str | bytes]:
    """Paths, or whole files as bytes."""
    missing = next((at for at, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise InputError(f"{name}: row {missing} has no picture. Leave the row out.")
    return [value if isinstance(value, bytes) else str(value) for value in values]


def _is_vector(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, str) and value.strip()[:1] == "[")


def _is_numeric(values: list[Any]) -> bool:
    """Whether most of a column are numbers; a word among them is then a mistake."""
    return 2 * sum(map(_is_number, values[:200])) > len(values[:200])


def _is_number(value: Any) -> bool:
    """Whether it is one, or written as one; ``1_0`` is a slip, though Python reads it as ten."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, bool) and not (isinstance(value, str) and "_" in value)


def _is_count(values: list[Any], least: int = 20) -> bool:
    """Whether whole numbers rise by one from row to row; of few rows a feature may do so, too."""
    first = values[0] if len(values) >= least and _is_number(values[0]) else "nan"
    return all(_is_number(v) and float(v) - at == float(first) for at, v in enumerate(values))


def _numbers(values: list[Any], column: str) -> list[float]:
    """What is written; an empty cell is no number, and found with all that are not."""
    for at, value in enumerate(values):
        if value not in ("", None) and not _is_number(value):
            raise InputError(
                f"{column}, row {at}: {value!r} is no number. Correct it or leave it out."
            )
    return [float("nan") if value in ("", None) else float(value) for value in values]


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    """Lists of numbers as one matrix; the first row that is none, or of another length, is named.

    >>> _stacked(["[1, 2]", [3, 4]], "x").tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    rows: list[Any] = []
    for at, value in enumerate(values):
        with reading(f"row {at} of {name}", "Write a list of numbers like [0.1, 2]."):
            row = vector_in(value)
            if rows and row.shape != rows[0].shape:
                raise InputError(
                    f"{name}: embeddings have different lengths: row 0 has {rows[0].shape}, row "
                    f"{at} has {row.shape}."
                )
            rows.append(row)
    return np.stack(rows)


def vector_in(value: Any) -> NDArray[np.float64]:
    """A list of numbers, also as text; truth values are none."""
    given = value
    if isinstance(value, str):  # as JSON, or as numpy prints an array
        cells = value.strip().strip("[]").split()
        given = json.loads(value) if "," in value else _numbers(cells, "its list")
    row = np.asarray(given)
    truth = isinstance(given, list) and bool in set(map(type, given))
    if truth or row.dtype.kind not in "iuf" or row.ndim < 1:
        raise ValueError(f"{str(value)[:40]!r} is no list of numbers")
    return row.astype(np.float64)


def labels_in(values: list[Any], where: str = "") -> NDArray[Any]:
    """Whole numbers if all are written as such (``01`` is a name); anything else stays as it is."""
    for at, value in enumerate(values):
        if value is None or value == "":
            raise InputError(f"{where}row {at} has no label. {NO_LABEL}")
        if not isinstance(value, (str, int, float)):
            kind = type(value).__name__
            raise InputError(f"the label of row {at} is a {kind}. Write a name or a whole number.")
    kinds = {type(value) for value in values}
    if len(kinds - {int, float}) + bool(kinds & {int, float}) > 1:
        examples = ", ".join(repr(next(v for v in values if type(v) is kind)) for kind in kinds)
        raise InputError(f"its labels are of several kinds ({examples}). Write all in one way.")
    if kinds == {str}:
        whole = all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", v) for v in values)
        return np.array(values, dtype=np.int64) if whole else np.array(values)
    return np.array(values)
