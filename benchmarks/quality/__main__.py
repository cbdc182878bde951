"""``python -m benchmarks.quality [heads] [labels] [thresholds] [targets] [fresh] [--data DIR]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.quality import board

PARTS = ("heads", "labels", "thresholds", "targets", "fresh")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.quality", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="few rows, one split, nothing written")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--splits", type=int, default=5, help="of labels 0: those kept in --work")
    parser.add_argument("--work", type=Path, help="where answers are kept: a stopped run goes on")
    parser.add_argument("--families", nargs="*", default=(), help="of heads; the others as kept")
    parser.add_argument("--board", action="store_true", help="write docs/quality.md from the JSON")
    args = parser.parse_args()
    if args.work is not None:
        args.work.mkdir(parents=True, exist_ok=True)
    if not args.board:
        for part in args.part or PARTS:
            module = __import__(f"benchmarks.quality.{part}", fromlist=["main"])
            options = {"quick": args.quick, "data": args.data, "splits": args.splits}
            if part == "heads":
                options |= {"families": tuple(args.families)}
            module.main(**options, work=args.work)
    if not args.quick:
        print(board.write())


if __name__ == "__main__":
    main()
