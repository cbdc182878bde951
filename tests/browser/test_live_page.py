"""The same page from a server of its own: data fetched, new rows judged, nothing from elsewhere."""

import http.server
import json
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from report.synthetic import text_audit
from vicinal.report import live_files

pytestmark = pytest.mark.browser
TOKEN = "s3cret&token"
KINDS = {"html": "text/html; charset=utf-8", "json": "application/json", "css": "text/css"}


@pytest.fixture(scope="module")
def server():
    files = live_files(*text_audit(), token=TOKEN)
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, code, body, kind):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            url = urlsplit(self.path)
            name = url.path.strip("/") or "index.html"
            allowed = parse_qs(url.query).get("token") == [TOKEN]
            body = files.get(name) if allowed else None
            self.answer(403 if body is None else 200, body or b"", KINDS[name.split(".")[-1]])

        def do_POST(self):
            size = int(self.headers["Content-Length"])
            asked.append((self.path, self.rfile.read(size).decode()))
            if "bad" in asked[-1][1]:
                self.answer(422, json.dumps({"error": "3 dims, not 6"}).encode(), KINDS["json"])
                return
            near = [{"id": "<b>n</b>", "label": "refund", "weight": 0.8}]
            row = {"label": "refund", "confidence": 0.9, "verdict": "contested", "reason": "r"}
            reply = {"rows": [{**row, "neighbors": near}]}
            self.answer(200, json.dumps(reply).encode(), KINDS["json"])

        def log_message(self, *_):
            pass

    live = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=live.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{live.server_port}/?token=s3cret%26token", asked
    live.shutdown()
    live.server_close()


def test_the_live_page_reads_its_data_and_judges_new_rows(visit, server):
    address, asked = server
    seen = visit(address)
    page = seen.page
    assert page.locator(".card").count() > 0
    page.fill("form.ask textarea", "1,2,3,4,5,6")
    page.click("form.ask button")
    page.wait_for_selector("#answers .card")
    assert "refund" in page.inner_text("#answers")
    assert "<b>n</b>" in page.inner_text("#answers")
    whole = (
        "n => n.scrollHeight <= n.clientHeight + 1 && getComputedStyle(n).overflow === 'visible'"
    )
    assert page.locator("#answers .reason").first.evaluate(whole), "a reason is never cut"
    path, body = asked[-1]
    assert parse_qs(urlsplit(path).query)["token"] == [TOKEN]
    assert 'name="rows"' in body
    assert "1,2,3,4,5,6" in body
    assert seen.complaints == []
    assert all(url.startswith("http://127.0.0.1:") for url in seen.outside())


def test_a_refused_row_shows_the_servers_sentence(visit, server):
    page = visit(server[0]).page
    page.fill("form.ask textarea", "bad")
    page.click("form.ask button")
    page.wait_for_selector("#answers .absent")
    assert page.inner_text("#answers") == "3 dims, not 6"


@pytest.mark.parametrize("width", [1280, 1920, 390])
def test_nothing_overflows_and_nothing_overlaps_on_the_live_page(visit, server, width):
    page = visit(server[0], size=(width, 1000)).page
    faults = (Path(__file__).parent / "layout.js").read_text()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(faults) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
