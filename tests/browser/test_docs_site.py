"""The site of the docs, built and opened: no page is wider than the window, at three widths."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="pip install 'vicinal[docs]'")
pytestmark = pytest.mark.browser

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["index", "start", "guide/read_the_report", "gallery", "api/losses", "command_line"]
TEXT_BEYOND = """() => ['p', 'li', 'dt', 'img']
  .flatMap(name => [...document.querySelectorAll('article ' + name)])
  .filter(n => n.checkVisibility() && !n.closest('.table-wrapper, pre, math, details')
    && n.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(n => n.tagName + ': ' + n.textContent.trim().slice(0, 60))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_docs_fits_the_window(visit, site, name):
    page = visit(site / f"{name}.html", wait=False).page
    for width in (1280, 1920, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(TEXT_BEYOND) == []
