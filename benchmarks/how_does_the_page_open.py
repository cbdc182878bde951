"""How large is a report of 1,000 to 100,000 rows, how soon does it answer, how fluid is its map?

An audit of digits grown by repeating its query rows under new ids, with pictures and without. CPU
seconds to save the page, its size, and the time from the address to a page that answers, of the
best of three visits by headless Chromium, with the CPU seconds of the page's process beside it:
other work on the machine delays the one and not the other. Then the map is moved at every frame,
without a graphics card: frames a second, and the CPU milliseconds that one takes.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import vicinal
from benchmarks.runner import save
from vicinal.audits.record import Audit, Cases, Media
from vicinal.report import save_report

VISITS = 3
MOVES = 90
MOVE = """async (moves) => {
  const map = document.querySelector('canvas.map');
  const frame = () => new Promise(requestAnimationFrame);
  const start = await frame();
  for (let i = 0; i < moves; i += 1) {
    map.dispatchEvent(new KeyboardEvent('keydown', { key: i % 2 ? 'ArrowLeft' : 'ArrowRight' }));
    await frame();
  }
  return (await frame()) - start;
}"""


def audited() -> tuple[Audit, Media]:
    digits = load_digits()
    x, y = digits.data.astype(np.float32), digits.target
    pictures = (digits.images * 15.9).astype(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        audit = vicinal.audit(support=(x[:1000], y[:1000]), query=(x[1000:], y[1000:]))
    return audit, Media("images", list(pictures[1000:]), list(pictures[:1000]))


def grown(audit: Audit, media: Media, rows: int) -> tuple[Audit, Media]:
    """The same audit with ``rows`` query rows, each a copy of one it has."""
    at = np.random.default_rng(0).integers(0, len(audit.cases.id), rows).tolist()
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(Cases):
        column = getattr(audit.cases, field.name)
        whole = column is None or field.name in ("head", "layers")
        columns[field.name] = column if whole else tuple(column[i] for i in at)
    columns["id"] = tuple(f"img_{i:06d}.png" for i in range(rows))
    assert audit.map is not None
    assert audit.map.linear is not None
    forms = [
        dataclasses.replace(form, x=tuple(form.x[i] for i in at), y=tuple(form.y[i] for i in at))
        for form in (audit.map.linear, audit.map)
    ]
    placed = dataclasses.replace(forms[1], linear=forms[0])
    cases = Cases(**columns)
    more = dataclasses.replace(audit, cases=cases, map=placed, head_rows=())
    return more, Media("images", [media.query[i] for i in at], media.support)


def opened(path: Path) -> dict[str, float]:
    """Seconds from the address to a page that answers, and CPU seconds of its process."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = [visited(browser, path) for _ in range(VISITS)]
        browser.close()
    wall, cpu, *_ = map(min, zip(*found, strict=True))
    frames = {"frames_per_s": max(f[2] for f in found), "frame_cpu_ms": min(f[3] for f in found)}
    return {"opens_s": round(wall, 2), "opens_cpu_s": round(cpu, 2), **frames}


def visited(browser: Any, path: Path) -> tuple[float, float, float, float]:
    meter = browser.new_browser_cdp_session()

    def spent() -> float:
        found = meter.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(each["cpuTime"] for each in found if each["type"] == "renderer")

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    before = spent()
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.dataset.ready")
    wall, cpu = page.evaluate("performance.now()") / 1000, spent() - before
    before = spent()
    took = page.evaluate(MOVE, MOVES) / 1000
    frame = (spent() - before) / MOVES * 1000
    page.close()
    return wall, cpu, round(MOVES / took, 1), round(frame, 1)


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)
    audit, media = audited()
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows in (1_000,) if quick else (1_000, 10_000, 20_000, 50_000, 100_000):
            more, pictures = grown(audit, media, rows)
            for kind, shown in (("pictures", pictures), ("numbers", None)):
                path = Path(folder) / "report.html"
                start = time.process_time()
                save_report(dataclasses.replace(more, media=None), path, shown)
                spent = time.process_time() - start
                size = {"megabytes": round(path.stat().st_size / 1e6, 3)}
                measured = {"save_cpu_s": round(spent, 2), **size, **opened(path)}
                print(f"{rows} rows, {kind}: {measured}", flush=True)
                results[f"{rows} rows, {kind}"] = dict(measured)
    if not quick:
        save("how_does_the_page_open", results)
