"""What an experiment found, and what that says about a claim: computed, never typed.

A claim comes with one number per seed, signed so that the paper is right where it is positive::

    holds      mean > 0 and a one-sided paired t test over the seeds says so, p <= 0.05 after Holm
    leans      mean > 0, not more
    differs    mean <= 0 ("clearly" where the reverse is significant)

``within=m`` turns it into "on par": two one-sided tests against the margin ``m``. ``equals=v`` is
about a shape: it holds where ``v`` lies in the 95 % interval of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from vicinal.files import write_atomically

ROOT = Path(__file__).parent
LEVEL = 0.05
VERDICTS = ("holds", "leans", "differs", "shown", "not tried")
Row = dict[str, Any]  # the numbers of one seed


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and one number per seed that is positive where it is right."""

    sentence: str
    values: Sequence[float]
    theirs: str = ""
    needs: float = 0.0  # the claim is: values > needs
    within: float | None = None  # the claim is: |values| < within
    equals: float | None = None  # the claim is: the mean is this
    items: Sequence[str] = ()  # the figures it belongs to, "fig18"; empty: all of the file
    beyond: bool = False  # ours, not the paper's: shown, not counted
    ours: str = ""  # how the number came about, "0.37 → 0.93"
    unit: str = ""


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict, ready for JSON."""

    sentence: str
    verdict: str
    clearly: bool
    mean: float
    error: float  # standard error over the seeds
    seeds: int
    p: float | None
    theirs: str
    ours: str
    unit: str
    items: list[str] = field(default_factory=list)
    beyond: bool = False


def judged(claims: Sequence[Claim]) -> list[Finding]:
    """The findings; p values are Holm's, over the paper's claims and over ours apart."""
    raw = [p_value(claim) for claim in claims]
    adjusted: list[float | None] = [None] * len(claims)
    for beyond in (False, True):
        at = [i for i, c in enumerate(claims) if c.beyond == beyond and raw[i] is not None]
        for i, p in zip(at, holm([raw[i] for i in at]), strict=True):
            adjusted[i] = p
    return [finding(c, p) for c, p in zip(claims, adjusted, strict=True)]


def p_value(claim: Claim) -> float | None:
    """Of "not as claimed"; none with one seed, or where a shape is claimed."""
    if len(claim.values) < 2 or claim.equals is not None:
        return None
    if claim.within is None:
        return above(claim.values, claim.needs)
    return max(above(claim.values, -claim.within), above(np.negative(claim.values), -claim.within))


def above(values: Sequence[float], bound: float) -> float:
    """One-sided t test of mean(values) > bound."""
    mean, error = mean_and_error(values)
    if error == 0:
        return 0.0 if mean > bound else 1.0
    return float(stats.t.sf((mean - bound) / error, len(values) - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the given order."""
    out, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(np.argsort(ps, kind="stable")):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        out[i] = worst
    return out


def finding(claim: Claim, p: float | None) -> Finding:
    mean, error = mean_and_error(claim.values)
    verdict, clearly = _verdict(claim, mean, error, p)
    return Finding(
        claim.sentence, verdict, clearly, digits(mean), digits(error), len(claim.values),
        None if p is None else digits(p), claim.theirs, claim.ours, claim.unit,
        list(claim.items), claim.beyond,
    )  # fmt: skip


def _verdict(claim: Claim, mean: float, error: float, p: float | None) -> tuple[str, bool]:
    n = len(claim.values)
    if claim.equals is not None:
        half = error * float(stats.t.ppf(0.975, n - 1)) if n > 1 else 0.0
        inside = abs(mean - claim.equals) <= half
        return ("holds" if inside else "differs"), not inside and n > 1
    if claim.within is not None:
        right, gap = abs(mean) < claim.within, claim.within - np.abs(mean)
        reverse = above(np.sign(mean) * np.asarray(claim.values), claim.within) if n > 1 else 1.0
    else:
        right, gap = mean > claim.needs, mean - claim.needs
        reverse = above(np.negative(claim.values), -claim.needs) if n > 1 else 1.0
    if right and p is not None and p <= LEVEL:
        return "holds", True
    return ("leans", False) if right and gap > 0 else ("differs", reverse <= LEVEL)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error (0 with one seed: unknown)."""
    v = np.asarray(values, dtype=float)
    error = float(v.std(ddof=1)) / math.sqrt(len(v)) if len(v) > 1 else 0.0
    # Equal up to rounding is equal: no t statistic of 1e16.
    return float(v.mean()), 0.0 if error <= 1e-12 * max(1.0, abs(float(v.mean()))) else error


def difference(rows: Sequence[Row], more: str, less: str, scale: float = 1.0) -> list[float]:
    """``more`` minus ``less`` in every seed; a dot leads into nested numbers, "cub.ned.ece"."""
    return [scale * (value(row, more) - value(row, less)) for row in rows]


def value(row: Row, path: str) -> float:
    found: Any = row
    for key in path.split("."):
        found = found[key]
    return float(found)


def weakest(verdicts: Sequence[str]) -> str:
    """A figure is as good as the weakest of its claims; one without claims is only shown."""
    return max(verdicts, key=("holds", "leans", "differs").index) if verdicts else "shown"


def digits(number: float, keep: int = 5) -> float:
    return float(f"{number:.{keep}g}")


def plain(found: Any) -> Any:
    """As JSON will give it back: lists, text keys, five digits; NaN is an error, not a number."""
    if isinstance(found, dict):
        return {str(k): plain(v) for k, v in found.items()}
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, list | tuple):
        return [plain(v) for v in found]
    if isinstance(found, float) and not math.isfinite(found):
        raise ValueError(f"a result is {found}; store None and say why")
    return digits(found) if isinstance(found, float) else found


def path_of(name: str, preset: str, folder: Path | None = None) -> Path:
    """``name`` is "karpusha2020ned/table1_heads"; results lie beside the file, or in ``folder``."""
    paper, stem = name.split("/")
    return (folder or ROOT / paper / "results") / f"{stem}.{preset}.json"


def save(path: Path, record: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _lines(record) + "\n")


def _lines(record: Row) -> str:
    """One line per key, one per seed and one per claim: short, and readable as a diff."""
    out = []
    for key, held in record.items():
        if isinstance(held, list) and held:
            body = ",\n  ".join(json.dumps(v, ensure_ascii=False, allow_nan=False) for v in held)
            out.append(f" {json.dumps(key)}: [\n  {body}\n ]")
        else:
            text = json.dumps(held, ensure_ascii=False, allow_nan=False)
            out.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(out) + "\n}"


def load(path: Path) -> Row | None:
    return json.loads(path.read_text()) if path.is_file() else None
