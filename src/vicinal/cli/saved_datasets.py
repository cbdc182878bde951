"""Folders that Hugging Face ``datasets`` saved (``save_to_disk``): Arrow files and two JSON files.

They are read with pyarrow as data: no script of the folder is looked at, and ``datasets`` is not
needed. Its features say which column is a class with names, and which a picture; Parquet files
that ``datasets`` wrote carry the same features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vicinal.checks import InputError
from vicinal.files import arrow, read_json, reading, regular_file

INFO, STATE, SPLITS = "dataset_info.json", "state.json", "dataset_dict.json"
NEEDED, AGAIN = "a saved data set is read with pyarrow", "Save the data set again."
Table = dict[str, list[Any]]


def is_saved(path: Path) -> bool:
    """Whether a folder is a saved data set, or one of several splits."""
    return any((path / name).is_file() for name in (STATE, SPLITS, INFO)) and (
        (path / SPLITS).is_file() or any(path.glob("*.arrow"))
    )


def saved_table(path: Path) -> Table:
    """The columns of a saved data set: class names instead of codes, pictures as bytes or paths."""
    if (path / SPLITS).is_file():
        splits = read_json(path / SPLITS, AGAIN, within=path).get("splits", [])
        named = [str(path / str(name)) for name in splits]
        raise InputError(
            f"{path} holds several splits. Name one of them: {', '.join(named)}; as "
            f"vicinal audit {' '.join(named[:2])}."
        )
    state, info = (
        read_json(path / name, AGAIN, within=path) if (path / name).is_file() else {}
        for name in (STATE, INFO)
    )
    if state.get("_indices_data_files"):
        raise InputError(
            f"{path} keeps its rows in another order than it shows them. Save it again: "
            "dataset.flatten_indices().save_to_disk(folder)."
        )
    listed = [str(each["filename"]) for each in state.get("_data_files", [])]
    names = listed or sorted(file.name for file in path.glob("*.arrow"))
    tables = [_arrow(regular_file(path / name, "part", within=path)) for name in names]
    return columns_in(arrow(NEEDED).concat_tables(tables), info.get("features"))


def columns_in(table: Any, features: Mapping[str, Any] | None = None) -> Table:
    """Columns of an Arrow table as lists, as the features say; its own, unless they are given."""
    known = features if features is not None else _own_features(table.schema)
    return {
        name: _values(table[name].to_pylist(), known.get(name), name) for name in table.column_names
    }


def _own_features(schema: Any) -> Mapping[str, Any]:
    """What ``datasets`` wrote about the columns into the file itself; nothing elsewhere."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json.loads(text)["info"]["features"] if text else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _values(column: list[Any], feature: Any, name: str) -> list[Any]:
    kind = feature.get("_type") if isinstance(feature, dict) else None
    names = feature.get("names") if kind == "ClassLabel" else None
    if isinstance(names, list):
        return [_class(code, names, name) for code in column]
    if column and isinstance(column[0], dict) and {"bytes", "path"} == set(column[0]):
        return [
            item and (item["path"] if item["bytes"] is None else item["bytes"]) for item in column
        ]
    return column


def _class(code: Any, names: list[Any], column: str) -> str | None:
    if code is None or code == -1:  # datasets' sign for a row without a label
        return None
    if type(code) is not int or not 0 <= code < len(names):
        raise InputError(f"column {column!r} holds class {code!r} of {len(names)} classes.")
    return str(names[code])


def _arrow(path: Path) -> Any:
    """The rows of one part, in either of Arrow's two forms."""
    pyarrow = arrow(NEEDED)
    with reading(path, AGAIN), pyarrow.OSFile(str(path)) as file:
        start = file.read(6)
        file.seek(0)
        form = pyarrow.ipc.open_file if start == b"ARROW1" else pyarrow.ipc.open_stream
        return form(file).read_all()
