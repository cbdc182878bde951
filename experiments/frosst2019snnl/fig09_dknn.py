"""Figure 9: reliability of DkNN credibility under attack, on photographs.

Claims (Frosst 2019, section 5.1), SVHN: as Figures 18 and 19. Main text, of which only the
appendix's references are at hand.

Here: SVHN is not to be had; CIFAR-10 and a ResNet of three blocks stand in.
"""

from __future__ import annotations

from experiments.frosst2019snnl.entangled import PAPER_RESNET, QUICK, RESNET
from experiments.frosst2019snnl.fig18_19_dknn import Settings, claims, draw, run
from experiments.runner import main

PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(("cifar10",), RESNET),
    "paper": Settings(("cifar10",), PAPER_RESNET),
}
THEIRS: dict[str, float] = {}
SMALLER = "CIFAR-10 for SVHN, 5,000 rows, a ResNet of three blocks; 400 test rows at 7 strengths"

__all__ = ["claims", "draw", "run"]

if __name__ == "__main__":
    main(__file__)
