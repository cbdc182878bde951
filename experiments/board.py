"""The scoreboard and the gallery, written from the stored records alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from experiments.record import ROOT, VERDICTS, Row, load, path_of, weakest
from experiments.runner import names

from vicinal.files import write_atomically

PAPERS = {
    "frosst2019snnl": "Frosst 2019, soft nearest neighbor loss",
    "hugger2024infonce": "Hugger 2024, noise contrastive estimation with soft targets",
    "bontonou2019graph": "Bontonou 2019, graph smoothness loss",
    "charpiat2019similarity": "Charpiat 2019, input similarity",
    "karpusha2020ned": "Karpusha 2020, neighborhood-aware confidence",
    "beyond": "Beyond the papers",
}
# Every figure and table of the texts at hand, and three main-text figures that Frosst's appendix
# refers to (1, 2, 9); Hugger's Figure 3 has two halves with a claim each.
ITEMS = {
    "frosst2019snnl": ["fig1", "fig2", "fig9", *(f"fig{n}" for n in range(13, 25)), "table2"],
    "hugger2024infonce": ["fig1", "fig2", "fig3a", "fig3b", "fig4", "fig5", "fig6",
                          "table1", "table2", "table3"],
    "bontonou2019graph": ["fig1", "fig2", "fig3", "fig4", "table1", "table2"],
    "charpiat2019similarity": [f"fig{n}" for n in range(1, 20)],
    "karpusha2020ned": ["fig1", "fig2", "table1", "table2", "table3", "table4"],
}  # fmt: skip
HOW = """
## How to read it, how to add to it

`make reproduce` (`ARGS="karpusha* --preset quick"`; two seeds at a time) or `python -m experiments` runs the
`cpu` preset of every file whose data are there (`--data DIR`, or `VICINAL_DATA=DIR`), says how long the rest will
take, and after Ctrl-C goes on at the next seed. What is stored is not run again; `--into DIR` makes all anew in
another folder and says which numbers and verdicts came out as stored. `--preset quick` needs no data and takes about 30 CPU seconds
for all files, 3 for the longest (2026-11-18); `--preset paper --device cuda` has the paper's settings and
data as their authors publish them (all of CIFAR-10, SVHN); a trunk that is not here, Karpusha's ResNet-50 and Hugger's
ViT-B/16, comes as features that you bring, and GANs are perceptrons still. It has not been run. `--list`
says what there is, `--redraw` judges and draws again what is stored, `--board` writes this page, [the same page of the docs](../docs/reproduction.md) and
[the gallery](../docs/gallery.md). [LOG.md](LOG.md) says what was tried and why a setting is what it is.

A verdict is computed from one number per seed that is positive where the paper is right: **holds**,
the mean is above zero and a one-sided paired t test says so (p ≤ 0.05, Holm over the claims of a
file); **leans**, above zero, no more; **differs**, not above zero ("clearly" where the reverse is
significant). "On par" is two one-sided tests against a margin. A figure is as good as its weakest
claim. Seeds that did not train are in all means. Rows *beyond* are ours and do not count.

To add a figure: one file `experiments/<bib key>/figNN_what.py` (`table2_what.py`; two figures of one
run: `fig18_19_what.py`) of 40 to 110 lines with

| name | what |
|---|---|
| docstring | first line "Figure 18: …"; the claim, theirs, what is smaller here |
| `Settings` | frozen dataclass of numbers and words, with `seeds` |
| `PRESETS` | `quick` (seconds, no data), `cpu` (minutes, at least three seeds), `paper` |
| `THEIRS` | the paper's numbers, `{}` where there are none |
| `SMALLER`, `WHY` | one line each: what is smaller than the paper's; why it differs, if it does |
| `run(settings, seed, source)` | one seed: a dictionary of all that `claims` and `draw` need, finite numbers, nested as you like, `{"trained": False}` where it did not. Data by `experiments.data`, on `source.device`. Images for the picture under `"pictures"` (then `PICTURES = True`) |
| `claims(rows)` | a list of `Claim`, from the rows of all seeds |
| `draw(rows, figure)` | a matplotlib figure, 600 px wide |

and at its end `if __name__ == "__main__": main(__file__)`. `tests/experiments_run` finds it by its name.
What several files of a paper share is a file of that folder whose name begins otherwise.
"""  # noqa: E501


@dataclass(frozen=True)
class Entry:
    """One experiment and its stored record, or None."""

    name: str
    record: Row | None

    @property
    def paper(self) -> str:
        return self.name.split("/")[0]

    @property
    def items(self) -> list[str]:
        return items_of(self.name)

    def verdict(self, item: str = "") -> str:
        """Of one of its figures, or of all its claims."""
        if not self.record:
            return "not tried"
        claims = [c for c in self.record["claims"] if not c["beyond"] or self.paper == "beyond"]
        if item:
            claims = [c for c in claims if not c["items"] or item in c["items"]]
        return weakest([c["verdict"] for c in claims])


def items_of(name: str) -> list[str]:
    """The figures and tables in a file's name: fig18_19_dknn -> fig18, fig19; fig03 -> 3a, 3b."""
    paper, stem = name.split("/")
    found, kind = [], ""
    for part in stem.split("_"):
        match = re.fullmatch(r"(fig|table)?0*(\d+[ab]?)", part)
        if not match or not (kind := match[1] or kind):
            break
        found.append(kind + match[2])
    known = ITEMS.get(paper, [])
    return [i for f in found for i in known if i == f or i in (f + "a", f + "b")]


def entries() -> list[Entry]:
    made = [Entry(name, load(path_of(name, "cpu"))) for name in names()]
    order = list(PAPERS)
    return sorted(made, key=lambda e: (order.index(e.paper), e.name))


def first_line() -> str:
    """57 figures and tables: … hold, … lean, … differ, … shown, … not tried."""
    made = entries()
    count = dict.fromkeys(VERDICTS, 0)
    for paper, items in ITEMS.items():
        for item in items:
            told = [e.verdict(item) for e in made if e.paper == paper and item in e.items]
            tried = [v for v in told if v != "not tried"]
            count["not tried" if not tried else weakest([v for v in tried if v != "shown"])] += 1
    words = {"holds": "hold", "leans": "lean", "differs": "differ"}
    total = sum(map(len, ITEMS.values()))
    told = ", ".join(f"{n} {words.get(v, v)}" for v, n in count.items() if n or v != "shown")
    return f"{total} figures and tables: {told}."


def page(title: str, to_experiments: str) -> str:
    made = entries()
    ran = [e.record["cpu_seconds"] for e in made if e.record]
    spent = f"{sum(ran) / 60:.0f} CPU minutes in all, {max(ran, default=0) / 60:.0f} the longest."
    lines = [f"# {title}", "", f"**{first_line()}** {spent}", "", "Generated; see the end."]
    for paper, heading in PAPERS.items():
        mine = [e for e in made if e.paper == paper]
        if mine:
            lines += ["", f"## {heading}", "", *table(mine, to_experiments)]
            missing = [i for i in ITEMS.get(paper, []) if not any(i in e.items for e in mine)]
            if missing:
                lines += ["", "No file yet: " + ", ".join(missing) + "."]
    return "\n".join(lines) + "\n"


def table(made: list[Entry], base: str) -> list[str]:
    lines = ["| | claim | theirs | ours ± se (seeds) | verdict | |", "|---|---|---|---|---|---|"]
    for entry in made:
        link = f"[{entry.name.split('/')[1]}]({base}{entry.name}.py)"
        if not entry.record:
            lines.append(f"| {link} | | | | not tried | |")
            continue
        png = path_of(entry.name, "cpu").with_suffix(".png")
        shown = f"[picture]({base}{png.relative_to(ROOT)})" if png.is_file() else ""
        untrained = sum(row.get("trained") is False for row in entry.record["rows"])
        of = len(entry.record["rows"])
        note = f"; {untrained} of {of} seeds did not train" if untrained else ""
        for at, claim in enumerate(entry.record["claims"]):
            first = f"{link}<br>{entry.record['smaller']}{note}" if at == 0 else ""
            lines.append(
                f"| {first} | {claim['sentence']} | {claim['theirs'] or '–'} | {number(claim)} | "
                f"{word(claim)} | {shown if at == 0 else ''} |"
            )
        if not entry.record["claims"]:
            lines.append(f"| {link} | {entry.record['title']} | | | shown | {shown} |")
        if entry.record["why"]:
            lines.append(f"| | {reason(entry.record)} | | | | |")
    return lines


def reason(record: Row) -> str:
    differs = any(claim["verdict"] == "differs" for claim in record["claims"])
    return f"*{'Why it differs' if differs else 'Why no more'}:* {record['why']}"


def number(claim: Row) -> str:
    lead = f"{claim['ours']}: " if claim["ours"] else ""
    unit = f" {claim['unit']}" if claim["unit"] else ""
    return f"{lead}{claim['mean']:+.3g} ± {claim['error']:.2g}{unit} ({claim['seeds']})"


def word(claim: Row) -> str:
    clearly = ", clearly" if claim["verdict"] == "differs" and claim["clearly"] else ""
    return f"**{claim['verdict']}**{clearly}" + (" (beyond)" if claim["beyond"] else "")


def gallery() -> str:
    """A card per file: picture, claim, verdict, numbers folded away."""
    lines = ["# Gallery", "", first_line(), "", "Each picture was drawn from stored numbers; "
             "[the scoreboard](reproduction.md) has them all."]  # fmt: skip
    for paper, heading in PAPERS.items():
        mine = [e for e in entries() if e.paper == paper and e.record]
        lines += ["", f"## {heading}"] if mine else []
        for entry in mine:
            lines += ["", *card(entry)]
    return "\n".join(lines) + "\n"


def card(entry: Entry) -> list[str]:
    record, stem = entry.record or {}, entry.name.split("/")[1]
    png = path_of(entry.name, "cpu").with_suffix(".png").relative_to(ROOT)
    numbers = [
        f"| {c['sentence']} | {c['theirs'] or '–'} | {number(c)} | {word(c)} |"
        for c in record["claims"]
    ]
    return [
        f'<a id="{entry.paper}-{stem}"></a>', "", f"### {record['title'].rstrip('.')}", "",
        f"`{entry.verdict()}` · [{entry.name}.py](../experiments/{entry.name}.py) · "
        f"{record['smaller']}", "",
        f"![{record['title']}](../experiments/{png})", "",
        *([reason(record), ""] if record["why"] else []),
        "<details><summary>numbers</summary>", "",
        "| claim | theirs | ours ± se (seeds) | verdict |", "|---|---|---|---|", *numbers,
        "", "</details>",
    ]  # fmt: skip


def pages() -> dict[Path, str]:
    docs = ROOT.parent / "docs"
    return {
        ROOT / "README.md": page("Experiments: theirs and ours", "") + HOW,
        docs / "reproduction.md": page("Theirs and ours", "../experiments/"),
        docs / "gallery.md": gallery(),
    }


def write() -> None:
    for path, text in pages().items():
        write_atomically(path, text)


def changed() -> list[Path]:
    """The pages that are not what the records say."""
    return [p for p, text in pages().items() if not p.is_file() or p.read_text() != text]
