"""Waiting for what a page will say, asked from outside: its policy lets no string be evaluated."""

import time


def until(page, expression, arg=None, seconds=20):
    """Ask again and again; Playwright's own ``wait_for_function`` asks by ``eval`` inside."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, f"the page never came to: {expression}"
        page.wait_for_timeout(20)
