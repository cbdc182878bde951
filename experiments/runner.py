"""Seeds, resumption, pictures and the command line, once for all files."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import io
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from experiments import draw
from experiments.data import CACHE, NoDataError, Source
from experiments.record import ROOT, Row, judged, load, path_of, plain, save

import vicinal
from vicinal.files import fingerprint, write_atomically

KINDS = ("fig", "table", "sec", "beyond/")  # how the file of an experiment begins


def names(patterns: Sequence[str] = ()) -> list[str]:
    """All experiments as "paper/file", or those that a pattern fits: `karpusha*`, `fig04`."""
    found = sorted(
        f"{p.parent.name}/{p.stem}" for p in ROOT.glob("*/*.py")
        if p.stem.startswith(KINDS) or f"{p.parent.name}/".startswith(KINDS)
    )  # fmt: skip
    return [n for n in found if not patterns or any(fits(n, p) for p in patterns)]


def fits(name: str, pattern: str) -> bool:
    pattern = pattern.removesuffix(".py").removeprefix("experiments/")
    return any(fnmatch.fnmatch(part, pattern) for part in (name, *name.split("/"))) or (
        pattern in name
    )


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name.replace('/', '.')}")


def one_seed(name: str, preset: str, seed: int, root: Path | None, device: str) -> Row:
    """What a worker does: one seed's numbers, its CPU seconds, what it read."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(1)
    module, source, start = module_of(name), Source(root, device), time.process_time()
    found = module.run(module.PRESETS[preset], seed, source)
    pictures = found.pop("pictures", None)
    if pictures:
        path = picture_file(name, preset, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        np.savez_compressed(packed, **pictures)
        write_atomically(path, packed.getvalue())
    seconds = time.process_time() - start
    return {"seed": seed, "cpu_seconds": seconds, **found, "read": source.read}


def picture_file(name: str, preset: str, seed: int) -> Path:
    """Images made by a run of these settings: too large for its record, kept to draw again."""
    settings = plain(asdict(module_of(name).PRESETS[preset])) | {"seeds": 0}
    key = fingerprint(repr(settings))[:12]
    return CACHE / "pictures" / f"{name.replace('/', '.')}.{preset}.{seed}.{key}.npz"


def perform(
    name: str,
    preset: str,
    source: Source,
    *,
    jobs: int = 1,
    folder: Path | None = None,
    say: Any = None,
) -> Row:
    """Run the seeds that are not stored yet; store after each; then judge and draw."""
    module = module_of(name)
    settings, path = module.PRESETS[preset], path_of(name, preset, folder)
    rows = stored_rows(name, preset, folder)
    read = dict((load(path) or {}).get("data", {})) if rows else {}
    todo = [s for s in settings.seeds if s not in [row["seed"] for row in rows]]
    for row in seeds(name, preset, todo, source, jobs):
        read |= row.pop("read")
        rows = sorted([*rows, plain(row)], key=lambda r: settings.seeds.index(r["seed"]))
        save(path, record_of(module, preset, rows, read))
        if say:
            say(f"{name}: seed {row['seed']} in {row['cpu_seconds']:.0f} CPU s")
    record = record_of(module, preset, rows, read)
    if not todo:  # nothing ran: who made it stays
        record["made"] = load(path)["made"]
    save(path, record)
    picture(name, preset, rows, path.with_suffix(".png"))
    return record


def left(name: str, preset: str, folder: Path | None = None) -> float:
    """CPU seconds that its missing seeds will take, by those that are stored (20 where none is)."""
    record, rows = load(path_of(name, preset)), stored_rows(name, preset, folder)
    a_seed = record["cpu_seconds"] / len(record["rows"]) if record else 20.0
    return a_seed * (len(module_of(name).PRESETS[preset].seeds) - len(rows))


def seeds(name: str, preset: str, todo: list[int], source: Source, jobs: int) -> Iterator[Row]:
    given = source.root, source.device
    if jobs == 1 or len(todo) < 2:
        yield from (one_seed(name, preset, seed, *given) for seed in todo)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), end_with_parent) as pool:
        try:
            waiting = [pool.submit(one_seed, name, preset, s, *given) for s in todo]
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:  # one seed failed, or Ctrl-C: no further ones begin
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def end_with_parent() -> None:
    """In a worker: where the runner was killed, nobody waits for this seed."""
    runner = parent_process()
    if runner is not None:
        threading.Thread(target=lambda: (runner.join(), os._exit(1)), daemon=True).start()


def stored_rows(name: str, preset: str, folder: Path | None = None) -> list[Row]:
    """The seeds of an earlier run, if it had the same settings but for the seeds."""
    record, settings = load(path_of(name, preset, folder)), module_of(name).PRESETS[preset]
    same = record and record["settings"] | {"seeds": 0} == plain(asdict(settings)) | {"seeds": 0}
    return [row for row in record["rows"] if row["seed"] in settings.seeds] if same else []


def record_of(module: ModuleType, preset: str, rows: list[Row], read: dict[str, str]) -> Row:
    """All that the board and the pictures are made of. Quick runs get no verdicts."""
    claims = judged(module.claims(rows)) if preset != "quick" and rows else []
    return {
        "title": module.__doc__.strip().splitlines()[0],
        "smaller": getattr(module, "SMALLER", ""),
        "why": getattr(module, "WHY", ""),
        "preset": preset,
        "settings": plain(asdict(module.PRESETS[preset])),
        "theirs": plain(module.THEIRS),
        "data": read,
        "made": versions(),
        "cpu_seconds": round(sum(row["cpu_seconds"] for row in rows), 1),
        "claims": [asdict(claim) for claim in claims],
        "rows": rows,
    }


def versions() -> dict[str, str]:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vicinal": f"{vicinal.__version__}+{commit or 'unknown'}",
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }


def picture(name: str, preset: str, rows: list[Row], path: Path) -> None:
    """Drawn from the rows; where images are needed and gone, the picture stays as it is."""
    module = module_of(name)
    if getattr(module, "PICTURES", False):
        file = picture_file(name, preset, rows[0]["seed"])
        if not file.is_file():
            return
        rows = [{**rows[0], "pictures": dict(np.load(file))}, *rows[1:]]
    drawn = draw.figure()
    module.draw(rows, drawn)
    draw.save_png(drawn, path)


def redraw(name: str, preset: str) -> str:
    """Judge and draw again what is stored; where that cannot be, a sentence says why."""
    path, module = path_of(name, preset), module_of(name)
    old = load(path)
    rows = stored_rows(name, preset)
    if not old:
        return f"{name}: no {preset} run is stored"
    if not rows:
        return f"{name}: stored with other settings, run it again"
    save(path, {**record_of(module, preset, rows, old["data"]), "made": old["made"]})
    picture(name, preset, rows, path.with_suffix(".png"))
    return ""


def main(file: str, arguments: Sequence[str] | None = None) -> None:
    """For ``python -m experiments.<paper>.<file>``: this file alone, same flags."""
    from experiments.__main__ import told

    given = sys.argv[1:] if arguments is None else list(arguments)
    sys.exit(told([f"{Path(file).parent.name}/{Path(file).stem}", *given]))


def parser() -> argparse.ArgumentParser:
    told = argparse.ArgumentParser("python -m experiments", description="Figures and tables anew.")
    told.add_argument("patterns", nargs="*", help="which: karpusha*, fig04, table2_pgd; all")
    told.add_argument("--preset", choices=("quick", "cpu", "paper"), default="cpu")
    told.add_argument("--data", type=Path, default=os.environ.get("VICINAL_DATA", "data"))
    told.add_argument("--device", type=device, default="cpu", help="cpu, cuda")
    told.add_argument("--jobs", type=at_least_one, default=1, help="seeds at a time")
    told.add_argument("--into", type=Path, help="all anew, in this folder, beside what is stored")
    told.add_argument("--list", action="store_true", help="name, title, last run, verdict")
    told.add_argument("--redraw", action="store_true", help="judge and draw what is stored")
    told.add_argument("--board", action="store_true", help="write the scoreboard and gallery")
    told.add_argument("--check", action="store_true", help="compare the board, write nothing")
    return told


def device(text: str) -> str:
    try:
        torch.empty(1, device=text)
    except (RuntimeError, AssertionError) as refused:
        why = str(refused).splitlines()[0]
        raise argparse.ArgumentTypeError(f"torch cannot use {text!r} here: {why}") from None
    return text


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes, 1 or more")
    return int(text)


__all__ = ["NoDataError", "fits", "left", "main", "names", "parser", "perform", "redraw"]
