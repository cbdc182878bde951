"""A real Chromium, driven from outside, that reports everything the page says or asks for."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass
class Visit:
    """One opened page with its console and its requests."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def outside(self) -> list[str]:
        """Requests beyond the file itself; data inside the page is not a request."""
        return [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium on PATH: with CI set, the browser tests must run")
        pytest.skip("no chromium on PATH: install it (apt-get install chromium) to run these tests")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open a file or an address; ``wait`` until the page's script is ready."""
    contexts = []

    def open_page(target, *, wait=True, size=(1280, 900), **options):
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]}, accept_downloads=True, **options
        )
        contexts.append(context)
        page = context.new_page()
        seen = Visit(page)
        page.on(
            "console",
            lambda m: seen.complaints.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(target if isinstance(target, str) else target.as_uri())
        if wait:
            page.wait_for_selector("html[data-ready]", timeout=20_000)
        return seen

    yield open_page
    for context in contexts:
        context.close()
