"""``python -m benchmarks --page``: every question with its ratio, goal and date on one page.

The numbers are read from ``results/*.json``; what a row was in the last release is in
``results/before.json``, written by hand when a release is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
Results = dict[str, dict[str, Any]]


class Goal(NamedTuple):
    """One number of one question: how it is read off the results, and what it should be."""

    question: str
    what: str
    read: Callable[[dict[str, Any]], float]
    limit: float
    most: bool = False  # the limit is an upper one
    unit: str = "×"


def cpu(case: str, one: str, other: str) -> Callable[[dict[str, Any]], float]:
    """CPU time of ``one`` over that of ``other``."""
    return lambda r: r["results"][case][one]["cpu"] / r["results"][case][other]["cpu"]


def entry(case: str, *path: str) -> Callable[[dict[str, Any]], float]:
    def read(r: dict[str, Any]) -> float:
        value: Any = r["results"][case]
        for name in path:
            value = value[name]
        return float(value)

    return read


def ratio(case: str, name: str) -> Callable[[dict[str, Any]], float]:
    return lambda r: float(r["ratios"][case][name])


def most_of_a_loop(record: dict[str, Any]) -> float:
    """The worst k^C or N_S of all architectures, in times of a loop over the samples."""
    loops = [row["loop"] for row in record["results"].values() if "loop" in row]
    if not loops:
        raise KeyError("loop")
    return max(ratio for loop in loops for both in loop.values() for ratio in both.values())


SNNL, NCE = "what_does_snnl_cost", "what_does_soft_target_infonce_cost"
PML, SEARCH = "what_do_contrastive_losses_cost", "how_fast_is_exact_search"
KERNEL, ZOO = "how_fast_is_the_gradient_kernel", "which_architectures_are_exact"
COUNT, STEP = "what_does_the_soft_count_cost", "what_does_a_training_step_cost"
GRAPH, FIT = "what_does_graph_smoothness_cost", "what_does_the_temperature_fit_cost"
AUDIT, SET = "what_does_an_audit_cost", "what_does_set_similarity_cost"
EVERYTHING = "what_does_fitting_everything_cost"
BUSY = "what_does_a_busy_machine_cost"
BOUND = "share of the bound"
NETWORKS = {  # of the zoo: k^C at most so many forward + d backward passes
    "MLP 784-512-512": 1.6,
    "CNN 32-64": 2,
    "TransformerEncoder 4x128": 4,
    "BERT 4x128": 4,
    "ViT 4x128": 4,
    "GPT-2 4x128": 4,
    "Llama 4x128": 4,
    "LSTM 2x128, 32 steps": 6,
    "GRU 2x128, 32 steps": 6,
}
GOALS = [
    *(Goal(SNNL, f"SNNL, n={n}, against dense autograd", entry(f"n={n}", "faster"), least)
      for n, least in ((64, 1), (512, 1), (4096, 6), (16384, 10))),
    *(Goal(SNNL, f"SNNL of soft labels, n={n}, against dense autograd",
           entry(f"soft labels, n={n}", "faster"), 1) for n in (16, 64)),
    *(Goal(GRAPH, f"graph smoothness, n={n}, against cdist by autograd",
           entry(f"n={n}", "complete_faster"), least)
      for n, least in ((16, 1), (128, 1), (512, 1), (4096, 3.5))),
    Goal(GRAPH, "graph smoothness, n=4096, against vertex by vertex",
         entry("n=4096", "nearest_faster"), 18),
    Goal(NCE, "soft-target InfoNCE, n=1024, c=200, against the listing",
         ratio("n=1024, c=200", "faster_than_listing"), 100),
    Goal(NCE, "the same as times of the GEMM floor",
         ratio("n=1024, c=200", "soft_over_floor"), 1.6, True),
    Goal(PML, "NT-Xent, n=512, against pytorch-metric-learning",
         ratio("NT-Xent, n=512", "faster"), 500),
    Goal(PML, "all triplets, n=512, against pytorch-metric-learning",
         ratio("all triplets, n=512", "faster"), 10),
    Goal(STEP, "SNNL at four pooled layers, batch 512: beyond a cross-entropy step",
         entry("SNNL at four layers, batch 512", "extra", "with SNNL, pooled"), 0.1, True, ""),
    Goal(STEP, "the same of all activations",
         entry("SNNL at four layers, batch 512", "extra", "with SNNL, all of them"), 0.1, True, ""),
    Goal(STEP, "soft-target InfoNCE with MixUp, 1,000 classes, batch 512: beyond cross-entropy",
         entry("MixUp, 1000 classes, batch 512", "extra", "soft-target InfoNCE"), 0.1, True, ""),
    Goal(STEP, "SNNL at four pooled layers, batch 4096: alone, in cross-entropy steps",
         entry("losses alone, batch 4096", "extra", "SNNL, pooled"), 0.1, True, ""),
    Goal(STEP, "soft-target InfoNCE with MixUp, 1,000 classes, batch 4096: the same",
         entry("losses alone, batch 4096", "extra", "soft-target InfoNCE"), 0.1, True, ""),
    *(Goal(SEARCH, f"exact search, k={k}, {name}, share of the product's rate",
           entry(f"100000 rows, 1024 queries, k={k}", BOUND, name), least, False, "")
      for k, name, least in ((50, "vicinal FaissSearch", 0.8), (200, "vicinal FaissSearch", 0.7),
                             (50, "vicinal ExactSearch", 0.65), (200, "vicinal ExactSearch", 0.6))),
    Goal(KERNEL, "k^C of the perceptron, one output, against torch.func",
         cpu("perceptron, 1 output, n=512", "torch.func", "vicinal"), 100),
    Goal(KERNEL, "k^C of the CNN, one output, against torch.func",
         cpu("convolutional, 1 output, n=256", "torch.func", "vicinal"), 15),
    Goal(KERNEL, "2000 x 2000 k^C of the perceptron, in steps",
         entry("perceptron, 1 output, 2000 x 2000", "times one step"), 3, True),
    *(Goal(ZOO, f"{name}, d={d}: k^C in forward + d backwards",
           entry(f"{name}, d={d}", "k^C_times_step"), most, True)
      for name, most in NETWORKS.items() for d in (1, 10)),
    *(Goal(ZOO, f"{name}, d={d}: N_S in forward + d backwards",
           entry(f"{name}, d={d}", "N_S_times_step"), 2, True)
      for name in NETWORKS for d in (1, 10)),
    Goal(ZOO, "k^C and N_S at worst of those below with a loop, in a loop over the samples",
         most_of_a_loop, 1, True),
    Goal(COUNT, "N_S of the perceptron, ten outputs, n=1000, kept",
         entry("perceptron, 10 outputs, n=1000", "N_S, factors kept, times"), 1.5, True),
    Goal(COUNT, "the same streaming",
         entry("perceptron, 10 outputs, n=1000", "N_S, streaming, times"), 2, True),
    Goal(SET, "exact set similarity, perceptron, in plain steps",
         entry("perceptron, batch of 64, five steps", "with exact set similarity, times"), 2, True),
    Goal(SET, "exact set similarity, CNN, in plain steps",
         entry("convolutional, batch of 64, five steps", "with exact set similarity, times"),
         3, True),
    Goal(FIT, "temperature fit, 100,000 rows, share of building the graph",
         entry("100000 rows, k=100", "share of the graph", "vicinal fit_temperature"),
         0.05, True, ""),
    *(Goal(EVERYTHING, f"everything fitted, 10,000 x 128, {c} classes, in leave-one-out graphs",
           entry(f"10000 rows, {c} classes", "in graphs", "NEDLinear, everything fitted"), 3, True)
      for c in (10, 100)),
    Goal(BUSY, "exact search beside as many busy processes as there are cores, in itself alone",
         entry("search, a moment, then sleep", "slower"), 3, True),
    Goal(AUDIT, "whole audit, 50,000 + 10,000 x 512, in its two searches",
         entry("50000x10000x512", "audit_to_both_searches"), 1.15, True),
    Goal(AUDIT, "audit, 5,000 + 50,000 x 32, in its two searches",
         entry("5000x50000x32", "audit_to_both_searches"), 3, True),
]  # fmt: skip


def rows(folder: Path = RESULTS) -> list[tuple[str, ...]]:
    """Of each goal: what, the number, the limit, whether it is met, before, the date."""
    earlier = json.loads((folder / "before.json").read_text())
    found = []
    for goal in GOALS:
        path = folder / f"{goal.question}.json"
        before = earlier.get(goal.what, "")
        sign = "≤" if goal.most else "≥"
        limit = f"{sign} {goal.limit:g}{goal.unit}"
        try:
            record = json.loads(path.read_text())
            value = goal.read(record)
        except (OSError, KeyError):
            found.append((goal.what, "not measured", limit, "", before, ""))
            continue
        met = value <= goal.limit if goal.most else value >= goal.limit
        number = f"{value:.3g}{goal.unit}"
        date = record["machine"]["date"]
        found.append((goal.what, number, limit, "yes" if met else "**no**", before, date))
    return found


def zoo(folder: Path = RESULTS) -> list[str]:
    """A line for each architecture: both numbers of outputs side by side."""
    path = folder / f"{ZOO}.json"
    found: Results = json.loads(path.read_text())["results"] if path.exists() else {}
    lines = []
    for name in dict.fromkeys(case.rpartition(", d=")[0] for case in found):
        both = [found.get(f"{name}, d={d}") for d in (1, 10)]
        known = [row for row in both if row]
        shares = known[0].get("shares", {})
        rules = sorted(shares.items(), key=lambda pair: -pair[1])
        cells = [
            name,
            ", ".join(f"{rule} {share:.1%}" for rule, share in rules if share >= 5e-4),
            f"{max(row['relative_error_float64'] for row in known):.0e}",
            *(
                " / ".join(f"{row[field]:{form}}" if row else "–" for row in both)
                for field, form in (
                    ("k^C_times_step", ".2f"),
                    ("N_S_times_step", ".2f"),
                    ("peak_mb", ".0f"),
                )
            ),
            " / ".join(_worst(row) for row in both),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _worst(row: dict[str, Any] | None) -> str:
    """Of k^C and N_S at both sizes, in loops over the samples."""
    if row is None or "loop" not in row:
        return "–"
    return f"{max(ratio for both in row['loop'].values() for ratio in both.values()):.2f}"


def text(folder: Path = RESULTS) -> str:
    found = rows(folder)
    met = sum(row[3] == "yes" for row in found)
    lines = [
        "# Benchmarks",
        "",
        "Ratios of CPU time within one run, so that machines cancel; goals are the design's.",
        "One file asks each question (`benchmarks/`), its numbers lie in `benchmarks/results`, and",
        "`python -m benchmarks --page` writes this page from them. `python -m benchmarks --quick`",
        "runs every file at small sizes. *Before* is what the code had before the rules at hand,",
        "where measured; sizes and machines may differ.",
        "",
        f"Of {len(found)} goals {met} are met, {sum(row[3] == '**no**' for row in found)} are not, "
        f"and {sum(row[1] == 'not measured' for row in found)} have no measurement yet.",
        "",
        "| what | measured | goal | met | before | date |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in found),
        "",
        "## Which architectures are exact",
        "",
        "n = 64. *Rules*: the share of parameters under each (`kronecker`: one place; `ghost`:",
        "kept as places; `dense`: the gradient itself; `shared`: several uses summed;",
        "`normed`: of rows with a length of their own, as weight norm has them; those with",
        "`vjp` run the model again). *Error*: of the kernel against per-sample autograd, relative,",
        "in float64. k^C and N_S in times of one forward and d backward passes, with d = 1 / 10",
        "outputs; the peak of memory of k^C in MB. Of a small network the bookkeeping shows.",
        "*Loop*: the larger of k^C and N_S, at n = 24 and 64, in times of a loop over the samples",
        "by plain autograd, which keeps all gradients and sums them up as N_S.",
        "",
        "| architecture | rules (d = 1) | error | k^C | N_S | peak MB | loop |",
        "|---|---|---|---|---|---|---|",
        *zoo(folder),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main() -> None:
    PAGE.write_text(text())
    print(f"written: {PAGE}")
