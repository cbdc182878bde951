"""Table 1: NED is as accurate as rivals and better calibrated where a class has 2 to 12 rows.

Claim (Karpusha 2020, section 4), SOP, whose products have 2 to 12 pictures: NED is as accurate as
the best rival and better calibrated. Theirs: 1NN 81.2, kNN 81.2 / 24.4, Dudani 81.2 / 5.2, Gou
81.2 / 5.2, NED 81.2 / 2.2 (accuracy / ECE %).

Here: as `table1_heads.py`, on Omniglot's unseen alphabets, of every character 2 to 12 drawings,
drawn at random; half of all rows vote, half are asked, so that a few have none of their own.
"""

from __future__ import annotations

from experiments.karpusha2020ned import table1_heads
from experiments.karpusha2020ned.table1_heads import Settings, draw, run
from experiments.record import Claim
from experiments.runner import main

PRESETS = {
    "quick": Settings(data=("digits",), steps=(60,), dim=16, seeds=(0,)),
    "cpu": Settings(data=("omniglot_scarce",), steps=(300,)),
    "paper": Settings(data=("omniglot_scarce",), steps=(6000,), dim=512),
}
THEIRS = {
    "1nn": (81.2, None), "knn": (81.2, 24.4), "dudani": (81.2, 5.2), "gou": (81.2, 5.2),
    "ned": (81.2, 2.2),
}  # fmt: skip
SMALLER = "Omniglot and a small net for SOP, which is not at hand"
WHY = "eq. 3 is near its noise floor (ECE 3.2 of 2.6 %); fitting more to so few rows adds to it"

__all__ = ["claims", "draw", "run"]


def claims(rows: list[dict]) -> list[Claim]:
    return table1_heads.claims(rows, ("+0.0", "+3.0"))


if __name__ == "__main__":
    main(__file__)
