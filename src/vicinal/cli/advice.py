"""Commands that are printed for the user to type next; each of them works when it is pasted."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vicinal.cli.config import OWN_MODEL
from vicinal.cli.flags import FROM_CONFIG, settings_in
from vicinal.cli.verbs import PredictOptions
from vicinal.neighbors.search.pg_rows import is_pg

NOT_REPEATED = ("query", "embedding")  # the rows are said already, the head knows its layer
NEW = "NEW"
SERVER = ("uvicorn", "starlette", "python_multipart")  # of the extra that explore needs
CONFIG, HEAD, CLEANED = "config.json", "trust.vic", "labels_cleaned.csv"


def what_was_written(folder: Path) -> Iterator[str]:
    """The files of a run that was just written, and what to type next."""
    config = json.loads((folder / CONFIG).read_bytes())
    page, head = folder / "report.html", folder / HEAD
    size = f"{page.stat().st_size / 1e6:.1f} MB"
    names = ["summary.json", "samples.csv", "suspects.csv", "labels.csv", HEAD, CLEANED]
    names += ["labels-*.parquet", "samples-*.parquet"]
    files = "".join(f" · {name}" for name in names if any(folder.glob(name)))
    yield f"wrote  {page} ({size}){files}"
    yield f"next   open {page}"
    if all(importlib.util.find_spec(name) for name in SERVER):
        yield f"       {shlex.join(['vicinal', 'explore', str(folder), *typed(config['model'])])}"
    else:
        yield "       (vicinal explore judges new inputs live: pip install 'vicinal[explore]')"
    if head.exists():
        yield f"       {predict_command(config, head)}"


def repeat_command(model: str | None, folder: Path) -> str:
    """
    >>> repeat_command("net.py:make", Path("runs/one"))
    'vicinal audit --config runs/one/config.json --model net.py:make'
    """
    return shlex.join(["vicinal", "audit", "--config", str(folder / CONFIG), *typed(model)])


def typed(model: Any) -> list[str]:
    """A model of the user's has to be typed: a folder only names it."""
    return [] if model in (None, OWN_MODEL) else ["--model", str(model)]


def predict_command(config: Mapping[str, Any], head: Path) -> str:
    """How the run's head judges rows, with the run's own query as the rows that are at hand.

    >>> predict_command({"support": "a.csv", "label_key": "kind"}, Path("run/trust.vic"))
    'vicinal predict run/trust.vic a.csv --label-key kind'
    """
    given = [config.get(name) for name in ("query", "support")]
    rows = next((s for s in given if s and s != FROM_CONFIG and not is_pg(s)), NEW)
    words = ["vicinal", "predict", str(head), str(rows)]
    for field, _ in settings_in(PredictOptions):
        value = config.get(field.name)
        if field.name in NOT_REPEATED or value is None or value == field.default:
            continue
        flag = f"--{field.name.replace('_', '-')}"
        values = value if isinstance(value, (list, tuple)) else [value]
        words += [flag] if value is True else [w for v in values for w in (flag, str(v))]
    return shlex.join(words)
