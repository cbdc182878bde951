"""``python -m fuzz [name] [count] [seed]``: run a generator at length and print its counts."""

import sys

import torch

from fuzz.targets import GENERATORS, run

if __name__ == "__main__":
    torch.set_num_threads(1)
    name, count, number = [*sys.argv[1:], *("all", "1000", "0")[len(sys.argv) - 1 :]][:3]
    for each in GENERATORS if name == "all" else [name]:
        print(run(each, int(count), int(number)), flush=True)
