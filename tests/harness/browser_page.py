"""A real browser for the dashboard's pages: Debian's Chromium, driven by Playwright. Without one, tests skip."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",  # no other host is reached
]
HERE = ("http://127.0.0.1", "http://localhost", "data:", "blob:", "file:")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, with one profile: its pages share what was loaded and compiled.

    There is one per module. While it exists, its event loop runs in this thread, so asynchronous tests cannot run.
    """
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt install chromium)")
    sync_playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright (pip install -e .[dev])"
    ).sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_context(viewport={"width": 1280, "height": 800})
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page whose profile remembers nothing of earlier tests.

    The test fails if the page reports an error or sends a request to another host.
    """
    page = chromium.new_page()
    page.set_default_timeout(30_000)
    complaints: list[str] = []
    abroad: list[str] = []
    # listened to and not intercepted: an intercepted request comes from no cache
    page.on("request", lambda request: None if request.url.startswith(HERE) else abroad.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message) else None)
    page.complaints = complaints
    yield page
    page.evaluate("() => { try { localStorage.clear() } catch { /* an empty page has none */ } }")
    page.close()
    chromium.clear_cookies()
    chromium.clear_permissions()
    assert not abroad, "the page asked other hosts"
    assert not page.complaints, "the browser's console"


def wait_until(page: Any, expression: str, arg: Any = None, within_s: float = 30.0) -> None:
    """Evaluate the expression, or function of `arg`, in the page again and again until it is true.

    Playwright's own wait evaluates a string in the page from its second attempt on, which our pages forbid.
    """
    end = time.monotonic() + within_s
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, f"not so within {within_s:g} s: {expression}"
        page.wait_for_timeout(50)


def _is_complaint(message: Any) -> bool:
    """Return True for messages that fail a test. The browser also logs answers other than 200; tests that cause these
    look at the page instead.
    """
    return (
        message.type in ("error", "warning")
        and "Failed to load resource" not in message.text
        and "ERR_" not in message.text
    )
