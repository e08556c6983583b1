"""A real browser for the dashboard's pages: Debian's Chromium, driven by Playwright. Without one, tests skip."""

from __future__ import annotations

import shutil
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
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One a module: while it is there its event loop runs in this thread, and asynchronous tests cannot."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt install chromium)")
    sync_playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright (pip install -e .[dev])"
    ).sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A fresh profile each; whatever the page complains of fails the test, and so does a request to another host."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(30_000)
    complaints: list[str] = []
    abroad: list[str] = []

    def route(route: Any) -> None:
        if route.request.url.startswith(("http://127.0.0.1", "http://localhost", "data:", "file:")):
            route.continue_()
        else:
            abroad.append(route.request.url)
            route.abort()

    context.route("**/*", route)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message) else None)
    page.complaints = complaints
    yield page
    context.close()
    assert not abroad, "the page asked other hosts"
    assert not page.complaints, "the browser's console"


def _is_complaint(message: Any) -> bool:
    """Answers that are no 200 are logged by the browser, too: tests that cause these look at the page instead."""
    return (
        message.type in ("error", "warning")
        and "Failed to load resource" not in message.text
        and "ERR_" not in message.text
    )
