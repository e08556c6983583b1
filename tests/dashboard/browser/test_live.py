"""The pages follow a run that goes on: by the stream, over a restart of the server, and not while nobody looks."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import wait_until
from served_dashboard import Dashboard, dashboard
from watched_log import WatchedLog

# What the page opens is kept where the test can ask for its state.
KEEP_SOURCES = """
window.sources = [];
window.EventSource = class extends EventSource { constructor(...all) { super(...all); window.sources.push(this); } };
"""
OPEN = "window.sources.filter((source) => source.readyState !== 2).length"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WatchedLog:
    return WatchedLog(tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="module")
def served(log: WatchedLog) -> Iterator[Dashboard]:
    with dashboard(log.path.parent) as served:
        yield served


def hide(page: Any, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def step_text(log: WatchedLog) -> str:
    return f"step {log.step + 1}"


def test_a_decided_step_appears_without_a_reload(page: Any, log: WatchedLog, served: Dashboard) -> None:
    page.goto(served.address)
    page.get_by_text(step_text(log), exact=True).wait_for()
    page.evaluate("window.untouched = true")
    log.decide(loss=1.2345)
    page.get_by_text(step_text(log), exact=True).wait_for()
    page.locator(".tile", has_text="Training loss").get_by_text("1.234").wait_for()
    assert page.evaluate("window.untouched")


def test_a_state_grows_older_while_nothing_is_logged(page: Any, tmp_path: Path) -> None:
    """A coordinator that waits for peers may write nothing for hours."""
    log = WatchedLog(tmp_path)
    log.append("StateChanged", state="waiting", reason="stage 0 has no peer")
    log.grow_older(7200)
    with (tmp_path / "lock").open("w") as lock, dashboard(tmp_path) as served:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the coordinator of a run that lives holds it
        served.wait("/api/v1/run", lambda run: run["live"])
        page.goto(served.address)
        page.locator(".headline").get_by_text("for 2 h 00 min").wait_for()


def test_a_hidden_page_closes_its_stream_and_catches_up(page: Any, log: WatchedLog, served: Dashboard) -> None:
    page.add_init_script(KEEP_SOURCES)
    page.goto(served.address)
    page.get_by_text(step_text(log), exact=True).wait_for()
    assert page.evaluate(OPEN) == 1
    hide(page, True)
    wait_until(page, f"{OPEN} === 0")
    before = step_text(log)
    log.decide()
    page.wait_for_timeout(2500)
    assert page.get_by_text(before, exact=True).is_visible()  # nothing has come
    hide(page, False)
    page.get_by_text(step_text(log), exact=True).wait_for()
    assert page.evaluate(OPEN) == 1


def test_a_moment_of_the_past_has_no_stream(page: Any, log: WatchedLog, served: Dashboard) -> None:
    page.add_init_script(KEEP_SOURCES)
    page.goto(f"{served.address}#/run?at={log.kill_at:.2f}")
    page.get_by_text("You are looking at").wait_for()
    page.locator(".big-state").wait_for()
    assert page.evaluate(OPEN) == 0
    page.locator(".strip.past").get_by_role("link").click()
    wait_until(page, f"{OPEN} === 1")
    page.get_by_text(step_text(log), exact=True).wait_for()
    assert "at=" not in page.url


def test_the_stream_is_dialled_again_after_a_restart(page: Any, log: WatchedLog) -> None:
    with dashboard(log.path.parent) as first:
        port = first.port
        page.goto(first.address)
        page.get_by_text(step_text(log), exact=True).wait_for()
    page.get_by_text("Connection lost, retrying").wait_for()
    log.decide()
    with dashboard(log.path.parent, "--address", f"127.0.0.1:{port}"):
        page.get_by_text(step_text(log), exact=True).wait_for(timeout=30_000)
        page.get_by_text("Connection lost, retrying").wait_for(state="detached")


def test_a_silent_connection_is_told_and_dialled_again(page: Any, log: WatchedLog) -> None:
    """As when the network drops everything: no connection is closed, and nothing comes."""
    page.add_init_script(KEEP_SOURCES)
    page.clock.install()
    with dashboard(log.path.parent) as served:
        page.goto(served.address)
        page.get_by_text(step_text(log), exact=True).wait_for()
        page.wait_for_timeout(300)  # until the parts of the page have all said what they want
        dialled = page.evaluate("window.sources.length")
        os.kill(served.process.pid, signal.SIGSTOP)
        try:
            for attempt in (1, 2):  # it stays lost until something comes
                page.clock.fast_forward(46_000)
                page.get_by_text("Connection lost, retrying").wait_for()
                assert page.evaluate("window.sources.length") == dialled + attempt and page.evaluate(OPEN) == 1
        finally:
            os.kill(served.process.pid, signal.SIGCONT)
        page.get_by_text("Connection lost, retrying").wait_for(state="detached")
        log.decide()
        page.get_by_text(step_text(log), exact=True).wait_for()


def test_pages_share_one_stream(page: Any, log: WatchedLog, served: Dashboard) -> None:
    page.add_init_script(KEEP_SOURCES)
    page.goto(served.address)
    page.get_by_text(step_text(log), exact=True).wait_for()
    for name in ("Pipeline", "Faults", "Timeline", "Peers", "Run"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        wait_until(page, "(name) => location.hash.startsWith(`#/${name}`)", name.lower())
        page.wait_for_timeout(300)  # a second stream would be opened now
        wait_until(page, f"{OPEN} === 1")


def test_the_address_of_the_log_is_nowhere(log: WatchedLog, served: Dashboard) -> None:
    """No answer names the folder on the organiser's disk."""
    folder = str(Path(log.path.parent))
    for name in ("run", "peers", "checkpoints", "log"):
        assert folder not in str(served.get(f"/api/v1/{name}")), name
