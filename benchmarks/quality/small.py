"""How near the noise floor can a head of few rows be? What the query's labels add, and a limit.

The table of what was measured: NED x linear with its weights fitted on the support's left-out rows
alone, and on these and 40 % as many query rows; ECE over its floor on fresh rows. *one number*: in
a world where the head is true on support and fresh rows alike, a single number (a temperature) is
fitted to the support's labels and ECE is asked. That is what the labels themselves leave open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = "set (half; support + query rows, fresh rows)"


def small_table(record: dict[str, Any]) -> list[str]:
    """A line per setting: NLL and ECE over its floor, without and with the query's labels."""
    found = record["results"]
    lines, better, quiet = [], 0, {"over": 0, "over_with": 0, "one_number": 0}
    for name, row in found.items():
        gain = _change(row, "nll")
        better += gain[0] < 0
        for key in quiet:
            quiet[key] += float(np.mean(row[key])) <= 1.3
        shape = f"{row['half']}; {row['support']} + {row['query']}, {row['fresh']:,}"
        lines.append(
            f"| {name} ({shape}) | {np.mean(row['nll']):.3f} | {gain[0]:+.4f} ± {gain[1]:.4f} "
            f"| {np.mean(row['over']):.2f} | {np.mean(row['over_with']):.2f} "
            f"| {np.mean(row['one_number']):.2f} | {100 * np.mean(row['gap']):+.1f} "
            f"| {100 * np.std(row['gap'], ddof=1):.1f} | {100 * row['labels_sd']:.1f} |"
        )
    mean = {key: np.mean([np.mean(row[key]) for row in found.values()]) for key in quiet}
    bias = float(np.mean([np.mean(row["gap"]) for row in found.values()]))
    said = (
        f"{len(found)} small settings, {record['draws']} draws each. Confidences of a head of few "
        f"rows are off by chance more than in one direction: they are {100 * bias:+.1f} points too "
        "sure in the mean, but scatter as much as so many labels do (last columns), and a head "
        "that is true but for one number fitted to these has "
        f"{mean['one_number']:.2f} times its floor. Query rows that do not "
        f"object help to weigh the linear part: NLL falls on {better}, ECE goes from "
        f"{mean['over']:.2f} to {mean['over_with']:.2f} floors in the mean, within 1.3 on "
        f"{quiet['over_with']} ({quiet['over']} without them, {quiet['one_number']} for the one "
        "number). All settings were seen before this was adopted. The numbers were put together "
        "from stored parts of audits, and no command makes them again; of the tables above that "
        "of the older sets is of audits without these query rows.\n"
    )
    return [
        "## Few rows\n",
        said,
        f"| {NAMES} | NLL | with query rows | ECE / floor | with query rows | one number "
        "| confidence less accuracy, points | its deviation | that of the labels |",
        "|---|---|---|---|---|---|---|---|---|",
        *lines,
        "",
    ]


def _change(row: dict[str, Any], key: str) -> tuple[float, float]:
    """Of the paired difference: mean and standard error."""
    gap = np.array(row[f"{key}_with"]) - np.array(row[key])
    return float(gap.mean()), float(gap.std(ddof=1) / len(gap) ** 0.5)
