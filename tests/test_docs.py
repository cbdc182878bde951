"""Every code block of the README and the docs runs, top to bottom, from a fresh interpreter."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vicinal
from vicinal.cli.verbs import VERBS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page):
    return BLOCK.findall(page.read_text())


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_of_a_page_runs_as_printed(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page)))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]


LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_link_inside_the_project_leads_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_gives_the_two_commands_and_a_true_tree():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    rooms = re.findall(r"^  (\w+)/ ", text, re.MULTILINE)
    assert rooms, "the README shows the tree of src/vicinal"
    for room in rooms:
        assert (ROOT / "src" / "vicinal" / room).is_dir(), room


def script(name):
    """A script of the docs folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "api").glob("*.md")), ids=lambda p: p.stem)
def test_the_reference_of_a_room_has_every_public_name_under_the_name_users_import(page):
    room = getattr(vicinal, page.stem)
    made = script("reference").room_page(page.stem)
    assert "%%" in page.read_text()
    for name in getattr(room, "__all__", ()):
        if callable(getattr(room, name)):
            assert f":: vicinal.{page.stem}.{name}\n" in made, name


def test_the_reference_shows_the_formula_of_a_file_above_its_names():
    made = script("reference").room_page("losses")
    of_file = made.split("## Soft nearest neighbor loss\n")[1].split("\n## ")[0]
    assert ".. math::" in of_file
    assert ".. autofunction:: vicinal.losses.soft_nearest_neighbor_loss\n" in of_file


def test_what_follows_the_arguments_in_the_reference_is_no_argument():
    lines = ["Parameters", "----------", "x:", "    Rows.", "k : count.", "", "After ``fit``: more"]
    script("reference").arguments(None, "", "", None, None, lines)
    assert lines[2:6] == ["x:", "    Rows.", "k", "    count."]
    assert lines[7:] == ["Notes", "-----", "After ``fit``: more"]


def test_the_page_of_the_command_line_has_every_verb_with_its_example():
    made = script("reference").verbs_page()
    for verb in VERBS:
        assert f"## vicinal {verb}" in made
        assert f"Usage: vicinal {verb}" in made


def test_every_page_of_the_docs_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert f"\n{name}\n" in index or f"\n{name.parent}/*\n" in index or name.name == "index"


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        ("npz", "formats"), ("install", "install"), ("formats", "formats"), ("FAQ", "faq"),
        ("command line", "command_line"), ("cleanlab", "guide/from_cleanlab"),
        ("Datalab", "guide/from_cleanlab"), ("threshold", "tutorials/ship_a_threshold"),
        ("out-of-distribution", "faq"), ("pandas", "faq"), ("GPU", "faq"), ("License", "faq"),
        ("parquet", "formats"), ("exit code", "command_line"), ("FiftyOne", "compared"),
    ],
)  # fmt: skip
def test_what_people_look_for_is_a_word_of_the_page_that_answers_it(asked, page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert asked.lower() in text.lower()


def test_the_tutorial_of_thresholds_names_the_certainty_of_the_library():
    text = (ROOT / "docs" / "tutorials" / "ship_a_threshold.md").read_text()
    delta = inspect.signature(vicinal.evaluation.threshold_for_accuracy).parameters["delta"].default
    assert f"with certainty {1 - delta:.0%}".replace("%", " %") in text
    assert delta == 1 / 20
    assert "one draw out of twenty" in text


def test_a_link_of_the_site_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a> <a href="#here">')
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html#gone"> <a href="c.html">')
    assert script("check_links").broken(tmp_path) == ["b.html: a.html#gone", "b.html: c.html"]
