"""The comparison in a real browser: two maps of the same rows, one selection."""

import dataclasses

import pytest

from report.synthetic import hostile_audit, image_audit
from vicinal.audits.paired import compare_audits
from vicinal.report import save_compare, words

pytestmark = pytest.mark.browser


def moved(audit):
    """The same rows, every tenth of them with another answer."""
    cases = audit.cases
    other = [
        (p + 1) % len(audit.classes) if i % 10 == 0 else p for i, p in enumerate(cases.predicted)
    ]
    return dataclasses.replace(audit, cases=dataclasses.replace(cases, predicted=other))


@pytest.fixture
def pair(tmp_path):
    audit, _ = image_audit()
    later = moved(audit)
    record = compare_audits(audit, later, audit.provenance, names=("base", "snnl"))
    save_compare(record, tmp_path / "compare.html", (audit, later))
    return record, tmp_path / "compare.html"


def test_a_lasso_on_one_map_lists_the_rows_of_both(visit, pair):
    record, path = pair
    seen = visit(path)
    page = seen.page
    canvas = page.locator("#map-b")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    page.mouse.down()
    for x, y in ((0.99, 0.01), (0.99, 0.99), (0.01, 0.99)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.mouse.up()
    said = page.inner_text("#linked-count")
    listed = "the first 200 are listed."
    assert said == f"320 rows chosen, {record.changed} of them with another answer; {listed}"
    assert page.locator("#linked tr").count() == 200
    assert page.locator("table:has(#linked) th").last.inner_text() == "what became of it"
    assert seen.complaints == []
    assert seen.outside() == []


def test_it_says_which_runs_which_classes_and_only_what_was_measured(visit, pair):
    record, path = pair
    page = visit(path).page
    assert "base → snnl" in page.inner_text("h1").replace("\u2068", "")
    assert page.locator("section[aria-labelledby=classes] tbody tr").count() == len(record.classes)
    assert sum(c.broken for c in record.classes) == record.broken
    measured = [d for d in record.deltas if d.delta is not None]
    assert len(measured) < len(record.deltas)
    heads = [d for d in measured if d.head is not None]
    table = page.locator("section[aria-labelledby=measures] table").first
    assert table.locator("tbody tr").count() == len(measured) - len(heads)
    assert page.locator("[data-measure]").count() == len(heads)
    assert "Heads are not paired" in page.inner_text("section[aria-labelledby=measures]")


def test_what_changed_stands_in_columns_and_classes_fill_the_width(visit, pair):
    record, path = pair
    page = visit(path).page
    kinds = page.locator("section[aria-labelledby=changes] h3").all_inner_texts()
    counts = {kind.rpartition(" ")[0].lower(): int(kind.split()[-1]) for kind in kinds}
    other = record.changed - record.fixed - record.broken
    found = {"broken": record.broken, "fixed": record.fixed, "neither right": other}
    assert counts == {kind: n for kind, n in found.items() if n}
    listed = page.locator("section[aria-labelledby=changes] tbody tr").count()
    assert listed == len(record.changes)
    main = page.locator("main").evaluate("n => n.clientWidth - 48")
    for part in ("classes", "changes", "measures"):
        tables = page.locator(f"section[aria-labelledby={part}] .scroll").evaluate_all(
            "all => Math.max(...all.map(n => n.getBoundingClientRect().right))"
            " - Math.min(...all.map(n => n.getBoundingClientRect().left))"
        )
        assert tables > 0.6 * main, part
    ends = page.locator(".moved svg").evaluate_all(
        "all => all.map(n => [...n.querySelectorAll('circle')].map(c => +c.getAttribute('cx')))"
    )
    shares = [(c.right_a / c.rows, c.right_b / c.rows) for c in record.classes]
    for end, share in zip(ends, shares, strict=True):
        assert end == pytest.approx([10 + 400 * s for s in share])


def test_the_maps_say_how_many_neighbors_they_keep_and_follow_the_theme(visit, pair):
    audit, _ = image_audit()
    page = visit(pair[1]).page
    titles = page.locator(".maps h3").all_inner_texts()
    kept = words.percent(audit.map.preservation, 0)
    assert [" ".join(title.split()) for title in titles] == [
        f"base keeps {kept}",
        f"snnl keeps {kept}",
    ]
    drawn = lambda: page.locator("#map-a").evaluate("c => c.toDataURL()")
    light = drawn()
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(100)
    assert drawn() != light


def test_hostile_names_run_nothing_in_a_comparison(visit, tmp_path):
    audit, _ = hostile_audit()
    plain = tuple(f"{i} {name}" for i, name in enumerate(audit.cases.id))
    audit = dataclasses.replace(audit, cases=dataclasses.replace(audit.cases, id=plain))
    later = moved(audit)
    record = compare_audits(audit, later, audit.provenance)
    save_compare(record, tmp_path / "compare.html", (audit, later))
    seen = visit(tmp_path / "compare.html")
    assert seen.page.evaluate("window.pwned") is None
    assert seen.complaints == []
