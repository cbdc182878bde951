"""Tables of rows: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError
from vicinal.cli.row_set import (
    EMBEDDING_KEYS,
    ID_KEYS,
    LABEL_KEYS,
    PATH_KEYS,
    TEXT_KEYS,
    RowSet,
    pick,
)
from vicinal.cli.verbs import DataOptions

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def read_table(path: Path, options: DataOptions) -> RowSet:
    try:
        table = _columns_of(path)
    except InputError:
        raise
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error, OSError, ValueError) as error:
        raise InputError(f"cannot read {path.name}: {error}. Nothing was written.") from None
    if not table or not next(iter(table.values())):
        raise InputError(f"{path.name} has no rows.")
    return _from_table(path.name, table, options)


def _columns_of(path: Path) -> dict[str, list[Any]]:
    """Columns by name, values as they are written."""
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet  # an extra
        except ImportError:
            raise InputError(
                "reading .parquet needs pyarrow: pip install 'vicinal[parquet]'."
            ) from None
        table = parquet.read_table(path)
        return {name: table[name].to_pylist() for name in table.column_names}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        names = list(dict.fromkeys(key for line in lines for key in line))
        return {name: [line.get(name) for line in lines] for name in names}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    ragged = [at for at, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if ragged:
        raise ValueError(
            f"line {ragged[0]} has {len(rows[ragged[0] - 1])} cells, the heading has {len(rows[0])}"
        )
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}


def _from_table(name: str, table: Mapping[str, list[Any]], options: DataOptions) -> RowSet:
    """The embedding list column, or all numeric columns that are nothing else."""
    label = pick(table, options.label_key, LABEL_KEYS, name, "--label-key")
    ident = pick(table, options.id_col, ID_KEYS, name, "--id-col")
    image = pick(table, options.image_col, PATH_KEYS, name, "--image-col")
    text = pick(table, options.text_col, TEXT_KEYS, name, "--text-col")
    taken = {label, ident, image, text}
    vector = options.embedding_key or next(
        (key for key in EMBEDDING_KEYS if key in table and _is_vector(table[key][0])), None
    )
    numeric = [key for key in table if key not in taken and _is_numeric(table[key])]
    if vector:
        embeddings = _stacked(table[vector], f"{name}:{vector}")
        shown = [key for key in table if key not in taken and key != vector]
    elif numeric:
        embeddings = np.array([[float(v) for v in table[key]] for key in numeric]).T
        shown = numeric
    else:
        raise InputError(
            f"{name} has no 'embedding' column and no numeric columns (columns: "
            f"{', '.join(table)}). Name it with --embedding-key."
        )
    table_rows = [list(row) for row in zip(*(table[key] for key in shown), strict=True)]
    return RowSet(
        name,
        embeddings,
        None if label is None else _labels_of(table[label]),
        None if ident is None else tuple(map(str, table[ident])),
        images=None if image is None else list(table[image]),
        texts=None if text is None else [str(v) for v in table[text]],
        table=table_rows if shown and text is None and image is None else None,
        columns=tuple(shown) if text is None and image is None else (),
        source=f"{name}:{vector or 'columns'}",
    )


def _is_vector(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, str) and value.strip()[:1] == "[")


def _is_numeric(values: list[Any]) -> bool:
    try:
        [float(v) for v in values[:200]]
    except (TypeError, ValueError):
        return False
    return True


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    rows = [json.loads(v) if isinstance(v, str) else v for v in values]
    widths = {len(row) if row is not None else 0 for row in rows}
    if len(widths) != 1:
        raise InputError(f"{name}: embeddings have different lengths: {sorted(widths)[:5]}.")
    return np.array(rows, dtype=np.float64)


def _labels_of(values: list[Any]) -> NDArray[Any]:
    """Strings that are all whole numbers become integers; anything else stays text."""
    if any(v is None or v == "" for v in values):
        at = next(at for at, v in enumerate(values) if v is None or v == "")
        raise InputError(f"row {at} has no label. Fill it in or leave the row out.")
    if all(isinstance(v, str) for v in values):
        digits = all(v.lstrip("-").isdigit() for v in values)
        return np.array(values, dtype=np.int64) if digits else np.array(values)
    return np.array(values)
