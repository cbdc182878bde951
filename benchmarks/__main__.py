"""``python -m benchmarks [question ...] [--quick] [--data DIR]``: all questions, or those named.

``--page`` writes what their results say to ``docs/benchmarks.md`` instead.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from benchmarks import page

HERE = Path(__file__).parent
PARTS = {"__init__", "__main__", "runner", "page", "architectures"}
QUESTIONS = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in PARTS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("question", nargs="*", help="which files to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--data", type=Path, help="folder of data sets, for those that use one")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md and stop")
    args = parser.parse_args()
    if args.page:
        page.main()
        return 0
    unknown = [q for q in args.question if q not in QUESTIONS]
    if unknown:
        print(f"no such question: {', '.join(unknown)}. There are: {', '.join(QUESTIONS)}")
        return 2
    for question in args.question or QUESTIONS:
        try:
            module = importlib.import_module(f"benchmarks.{question}")
        except ModuleNotFoundError as missing:
            print(f"\n== {question}: left out, it compares with {missing.name}, not installed")
            continue
        print(f"\n== {question}: {(module.__doc__ or '').splitlines()[0]}")
        before = cpu_seconds()
        module.main(quick=args.quick, data=args.data)
        print(f"-- {question}: {cpu_seconds() - before:.1f} s of CPU time")
    print(f"\n== {cpu_seconds():.0f} s of CPU time in all, of processes that were started, too")
    return 0


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
