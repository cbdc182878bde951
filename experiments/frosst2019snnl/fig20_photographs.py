"""Figure 20 on photographs: attacks made on the entangled net transfer badly to the plain one.

Claim (Frosst 2019, section 5.2 and appendix F): as in fig20_transfer.py, for CIFAR-10 too.
No numbers.

Here: the nets of Figure 9, half of whose answers are right, and attacks of a sixth of the strength
that MNIST has.
"""

from __future__ import annotations

from experiments.frosst2019snnl.entangled import QUICK, Recipe
from experiments.frosst2019snnl.fig20_transfer import Settings, claims, draw, run
from experiments.runner import main

PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(("cifar10",), Recipe(rows=9000), (0, 1, 2)),
    "paper": Settings(("cifar10_whole",), Recipe(49_000, 60, 64, 1.0, 40_000, test=10_000, k=75)),
}
THEIRS: dict[str, float] = {}
SMALLER = "9,000 rows, two convolutions, 400 test rows"
WHY = (
    "another plain net, of other rows, is the poorer source: half of the answers are right in each"
)

__all__ = ["claims", "draw", "run"]

if __name__ == "__main__":
    main(__file__)
