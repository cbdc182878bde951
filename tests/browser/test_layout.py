"""Nothing leaves its column, no text is tiny or stands on another: in a browser, at three widths.

The rectangles are those that are painted: clipped by every ancestor that hides or scrolls what
does not fit, without what is fixed or sticky and meant to lie over the page. Slanted labels are
left out: a rectangle around one says nothing of where its letters are.
"""

import dataclasses
from pathlib import Path

import pytest

from report.synthetic import (
    comparison,
    hostile_audit,
    image_audit,
    table_audit,
    text_audit,
    unlabeled,
)
from vicinal.report import save_compare, save_report, words

pytestmark = pytest.mark.browser

FAULTS = (Path(__file__).parent / "layout.js").read_text()


def named(audit):
    """Class names as people give them: long ones too."""
    names = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt")
    long = (*names, "Sneaker", "Bag", "Ankle boot, left or right")
    query = dataclasses.replace(audit.data.query, name="digits and letters (query)")
    data = dataclasses.replace(audit.data, query=query)
    return dataclasses.replace(audit, classes=long[: len(audit.classes)], data=data)


PAGES = {
    "images": lambda: (named(image_audit()[0]), image_audit()[1]),
    "texts": text_audit,
    "tables": table_audit,
    "hostile": hostile_audit,
    "unlabeled": lambda: (unlabeled(table_audit()[0]), table_audit()[1]),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    for name, make in PAGES.items():
        audit, media = make()
        save_report(audit, folder / f"{name}.html", media)
    save_compare(comparison(), folder / "compare.html")
    return folder


def test_the_looking_finds_what_is_wrong(visit, pages):
    page = visit(pages / "tables.html").page
    page.evaluate(
        "() => { const p = document.querySelector('#cases .lead');"
        " p.style.whiteSpace = 'nowrap'; p.style.maxWidth = 'none';"
        " p.append(p.textContent.repeat(4));"
        " document.querySelector('#trust .note').style.marginTop = '-30px';"
        " document.querySelector('.chart').style.width = '200px'; }"
    )
    found = page.evaluate(FAULTS)
    assert any(fault.startswith("outside") for fault in found)
    assert any("stands on" in fault for fault in found)
    assert any(fault.startswith("too small") for fault in found)


@pytest.mark.parametrize("width", [1280, 1920, 390])
@pytest.mark.parametrize("name", [*PAGES, "compare"])
def test_nothing_overflows_and_nothing_overlaps(visit, pages, name, width):
    page = visit(pages / f"{name}.html", size=(width, 1000), wait=name != "compare").page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(FAULTS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 560:
        wide = "all => all.filter(n => n.scrollWidth > n.clientWidth + 1).length"
        assert page.locator(".scroll:has(> .folds)").evaluate_all(wide) == 0
    if name == "compare":
        return
    still = "n => n.scrollWidth <= n.clientWidth + 1"
    assert all(page.locator("main figure").evaluate_all(f"all => all.map({still})"))
    charts = page.locator("figure.broad > .scroll").evaluate_all(f"all => all.map({still})")
    assert all(charts), "every chart fits the width there is"
    for target in page.locator("[data-target]").all():
        target.click()
        assert page.evaluate(FAULTS) == []
    page.select_option("#review-form", "pairs")
    page.evaluate("document.querySelectorAll('main details').forEach(d => { d.open = true; })")
    assert page.evaluate(FAULTS) == []
    if width > 1000:
        page.locator("#suspects tr, .suspect-tile").first.evaluate("n => n.scrollIntoView()")
        page.evaluate("location.hash = 'case=0'")
        page.wait_for_selector("#panel .neighbors li")
        assert page.evaluate(FAULTS) == []


def test_on_a_phone_the_names_of_the_columns_stay_above_the_last_row(visit, pages):
    for name in ("images", "compare"):
        page = visit(pages / f"{name}.html", size=(390, 800), wait=name != "compare").page
        for table in page.locator("table.folds").all():
            last = table.locator("tbody tr").last
            if not table.is_visible() or last.count() == 0:
                continue
            last.evaluate("n => n.scrollIntoView({ block: 'end', behavior: 'instant' })")
            page.wait_for_timeout(30)
            edges = "n => [n.getBoundingClientRect().top, n.getBoundingClientRect().bottom]"
            top, bottom = table.locator("thead").evaluate(edges)
            bar = page.locator(".top").evaluate("n => n.getBoundingClientRect().bottom")
            assert bar - 3 <= top <= bottom < last.evaluate(edges)[1]
            assert top < 800


def test_two_classes_that_begin_and_end_alike_are_told_apart_on_a_phone(visit, tmp_path):
    audit, media = table_audit()
    ends = "very_long_prefix_shared_by_all_{}_and_a_long_common_suffix"
    letters = "abcdefghij"[: len(audit.classes)]
    audit = dataclasses.replace(audit, classes=tuple(map(ends.format, letters)))
    save_report(audit, tmp_path / "alike.html", media)
    page = visit(tmp_path / "alike.html", size=(390, 800)).page
    assert page.evaluate(FAULTS) == []
    for texts in ("#classes tbody th bdi", "#f-class option", "#prior-shift text.tick.end"):
        shown = page.locator(texts).all_text_contents()
        assert len(shown) >= len(audit.classes)
        assert len(set(shown)) == len(shown), texts
    cards = {*page.locator("#gallery .card .says bdi").all_text_contents()}
    predicted = {audit.classes[code] for code in audit.cases.predicted}
    assert len(cards) > 1
    assert cards <= {words.name(text, 44, audit.classes) for text in predicted}  # Python's own cut
