"""Every file of a figure or table runs its quick preset, and its stored results are its own."""

import json
import re
import time
from dataclasses import asdict

import numpy as np
import pytest
from experiments import board
from experiments.data import Source
from experiments.draw import LIMIT
from experiments.record import ROOT, judged, load, path_of, plain
from experiments.runner import module_of, names, perform

NAMES = names()
NO_NUMBERS = r"[Nn]o numbers|not given|only the\s+appendix"
STORED = [n for n in NAMES if path_of(n, "cpu").is_file()]


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("name", NAMES)
def test_quick_runs_without_data_and_gives_finite_numbers(name, tmp_path):
    start = time.process_time()
    record = perform(name, "quick", Source(None), folder=tmp_path)
    print(f"{name}: {time.process_time() - start:.1f} CPU s")
    assert len(record["rows"]) == len(record["settings"]["seeds"])
    found = numbers([{k: v for k, v in r.items() if k != "cpu_seconds"} for r in record["rows"]])
    assert len(found) > 3
    assert np.isfinite(found).all()
    assert module_of(name).claims(record["rows"]) or module_of(name).PICTURES
    stem = name.split("/")[1]
    assert (tmp_path / f"{stem}.quick.png").stat().st_size <= LIMIT
    assert (tmp_path / f"{stem}.quick.json").stat().st_size <= 64_000


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_short_and_says_what_it_shows(name):
    text = (ROOT / f"{name}.py").read_text()
    module = module_of(name)
    assert text.count("\n") <= 110
    assert set(module.PRESETS) == {"quick", "cpu", "paper"}
    assert len(module.PRESETS["cpu"].seeds) >= 3
    assert isinstance(module.SMALLER, str)
    if not name.startswith("beyond/"):  # the paper's numbers, or a word that there are none
        assert module.THEIRS or re.search(NO_NUMBERS, module.__doc__), f"THEIRS of {name}"
    title = module.__doc__.strip().splitlines()[0]
    for item in board.items_of(name):
        kind, number = re.fullmatch(r"(fig|table)(\d+)[ab]?", item).groups()
        assert {"fig": "Figure", "table": "Table"}[kind] in title
        assert int(number) in named(title), f"{title!r} does not name {item}"


def named(title):
    """Figures 4 and 11 to 15 -> 4, 11, 12, 13, 14, 15."""
    ends = re.findall(r"(\d+)(?: to (\d+))?", title.split(":")[0])
    return {n for first, last in ends for n in range(int(first), int(last or first) + 1)}


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_was_made_with_these_settings_and_judged_by_these_claims(name):
    path, module = path_of(name, "cpu"), module_of(name)
    record = load(path)
    assert record["settings"] == plain(asdict(module.PRESETS["cpu"])), "run the cpu preset again"
    assert [r["seed"] for r in record["rows"]] == list(module.PRESETS["cpu"].seeds)
    claims = [asdict(c) for c in judged(module.claims(record["rows"]))]
    assert json.loads(json.dumps(claims)) == record["claims"], "run --redraw"
    assert path.stat().st_size <= 64_000
    assert path.with_suffix(".png").stat().st_size <= LIMIT


@pytest.mark.parametrize("name", STORED)
def test_what_differs_has_one_sentence_why(name):
    record = load(path_of(name, "cpu"))
    differs = [c["sentence"] for c in record["claims"] if c["verdict"] == "differs"]
    assert record["why"] or not differs, f"WHY of {name}: {differs}"


def test_the_board_is_what_the_records_say():
    assert not board.changed(), "run python -m experiments --board"


def test_no_figure_is_counted_twice_and_none_is_unknown():
    assert sum(map(len, board.ITEMS.values())) == 57
    for name in NAMES:
        assert name.startswith("beyond/") or board.items_of(name), name


def test_every_link_into_the_gallery_meets_a_card_and_every_card_is_linked_by_a_guide():
    docs = ROOT.parent / "docs"
    cards = set(re.findall(r'<a id="([^"]+)"', (docs / "gallery.md").read_text()))
    guides = "\n".join(page.read_text() for page in sorted((docs / "guide").glob("*.md")))
    linked = set(re.findall(r"\(\.\./gallery\.md#([^)]+)\)", guides))
    assert linked <= cards, f"no card for {sorted(linked - cards)}"
    assert cards <= linked, f"no guide links to {sorted(cards - linked)}"
