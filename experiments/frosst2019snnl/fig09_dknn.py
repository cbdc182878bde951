"""Figure 9: reliability of DkNN credibility under attack, on photographs.

Claims (Frosst 2019, section 5.1), SVHN: as Figures 18 and 19. Main text, of which only the
appendix's references are at hand.

Here: SVHN, which the paper preset reads, is not at hand; CIFAR-10 stands in, and the net of the
other figures in color: half of its answers are right. Attacks up to ε = 0.05, beyond which no
answer on photographs stays right.
"""

from __future__ import annotations

from experiments.frosst2019snnl.entangled import QUICK, Recipe
from experiments.frosst2019snnl.fig18_19_dknn import Settings, claims, draw, run
from experiments.runner import main

PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(("cifar10",), Recipe(rows=9000), (0, 1, 2)),
    "paper": Settings(("svhn",), Recipe(72_000, 60, 64, support=40_000, test=10_000, k=75)),
}
THEIRS: dict[str, float] = {}
SMALLER = "CIFAR-10 for SVHN, 9,000 rows, two convolutions; 400 test rows at 7 strengths"
WHY = "under attack credibility stays at 0.3 to 1 while accuracy falls to a fifth, entangled or not"

__all__ = ["claims", "draw", "run"]

if __name__ == "__main__":
    main(__file__)
