"""Nothing runs out of its column and no text stands on another, in a real browser, at three widths.

The rectangles are those that are painted: clipped by every ancestor that hides or scrolls what
does not fit, without what is fixed or sticky and meant to lie over the page. Slanted labels are left
out: a rectangle around one says nothing of where its letters are.
"""

import dataclasses

import pytest

from report.synthetic import comparison, hostile_audit, image_audit, table_audit, text_audit
from vicinal.report import save_compare, save_report

pytestmark = pytest.mark.browser

FAULTS = """() => {
  const floating = (node) => { for (let n = node; n && n !== document.body; n = n.parentElement) {
    const style = getComputedStyle(n);
    if (style.position === 'fixed' || (style.position === 'sticky' && !n.matches('nav, aside, th'))) return true;
    if (n.matches('.unseen, .skip')) return true;
  } return false; };
  const clip = (box, node) => {
    let { left, top, right, bottom } = box;
    for (let n = node; n && n !== document.documentElement; n = n.parentElement) {
      const style = getComputedStyle(n);
      if (style.overflowX !== 'visible' || style.overflowY !== 'visible') {
        const edge = n.getBoundingClientRect();
        left = Math.max(left, edge.left); right = Math.min(right, edge.right);
        top = Math.max(top, edge.top); bottom = Math.min(bottom, edge.bottom);
      }
    }
    return { left, top, right, bottom };
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const owner = node.parentElement;
    if (!node.data.trim() || owner.closest('script, style, noscript, option, title, [transform]') || !owner.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || floating(owner)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = clip(rect, owner);
      if (box.right - box.left > 1 && box.bottom - box.top > 1) texts.push({ ...box, text: node.data.trim().slice(0, 40), owner, svg: Boolean(owner.closest('svg')) });
    }
  }
  const faults = [];
  const wide = document.documentElement.clientWidth;
  for (const t of texts) {
    const column = t.owner.closest('main, aside, .hero, .top, .foot, figure, .tile, .action, .card, .pair > div') ?? document.body;
    const edge = column.getBoundingClientRect();
    if (t.right > edge.right + 1.5 || t.left < edge.left - 1.5 || t.right > wide + 1) faults.push(`outside ${column.tagName}.${column.className}#${column.id}: ${t.text}`);
  }
  for (const node of document.querySelectorAll('main *, .hero *')) {
    if (!node.checkVisibility() || node.closest('.unseen, svg') || floating(node)) continue;
    const box = clip(node.getBoundingClientRect(), node.parentElement);
    const edge = node.closest('figure, main, .hero').getBoundingClientRect();
    if (box.right - box.left > 1 && box.right > edge.right + 1.5) faults.push(`wider than its column: ${node.tagName}.${node.className}#${node.id}`);
  }
  texts.sort((a, b) => a.top - b.top);
  for (let i = 0; i < texts.length; i += 1) {
    for (let j = i + 1; j < texts.length && texts[j].top < texts[i].bottom - 3; j += 1) {
      const [a, b] = [texts[i], texts[j]];
      if (a.owner === b.owner || a.owner.closest('th')?.matches('thead th') || b.owner.closest('th')?.matches('thead th')) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const slack = a.svg || b.svg ? 4 : 2;
      if (across > slack && down > slack + 2) faults.push(`"${a.text}" stands on "${b.text}"`);
    }
  }
  return [...new Set(faults)];
}"""


def named(audit):
    """Class names as people give them: long ones too."""
    names = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt")
    long = (*names, "Sneaker", "Bag", "Ankle boot, left or right")
    return dataclasses.replace(audit, classes=long[: len(audit.classes)])


PAGES = {
    "images": lambda: (named(image_audit()[0]), image_audit()[1]),
    "texts": text_audit,
    "tables": table_audit,
    "hostile": hostile_audit,
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
        " p.style.whiteSpace = 'nowrap'; p.style.maxWidth = 'none'; p.append(p.textContent.repeat(4));"
        " document.querySelector('#trust .note').style.marginTop = '-30px'; }"
    )
    found = page.evaluate(FAULTS)
    assert any(fault.startswith("outside") for fault in found)
    assert any("stands on" in fault for fault in found)


@pytest.mark.parametrize("width", [1280, 1920, 390])
@pytest.mark.parametrize("name", [*PAGES, "compare"])
def test_nothing_overflows_and_nothing_overlaps(visit, pages, name, width):
    page = visit(pages / f"{name}.html", size=(width, 1000), wait=name != "compare").page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(FAULTS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    if name == "compare":
        return
    page.select_option("#review-form", "pairs")
    page.evaluate("document.querySelectorAll('main details').forEach(d => { d.open = true; })")
    assert page.evaluate(FAULTS) == []
    if width > 1000:
        page.locator("#suspects tr, .suspect-tile").first.evaluate("n => n.scrollIntoView()")
        page.evaluate("location.hash = 'case=0'")
        page.wait_for_selector("#panel .neighbors li")
        assert page.evaluate(FAULTS) == []
