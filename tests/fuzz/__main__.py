"""``python -m fuzz [name] [count] [seed]``: run a generator at length and print its counts."""

import sys

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.outcomes import Outcomes
from fuzz.targets import GENERATORS


def run(name, count, number):
    """``count`` draws; nothing is shrunk, everything is counted."""
    strategy, target = GENERATORS[name]
    outcomes = Outcomes(name)

    @seed(number)
    @settings(
        max_examples=count, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def draws(drawn):
        outcomes.of(*target(drawn))

    draws()
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, count, number = [*sys.argv[1:], *("all", "1000", "0")[len(sys.argv) - 1 :]][:3]
    for each in GENERATORS if name == "all" else [name]:
        print(run(each, int(count), int(number)), flush=True)
