"""What a reader sees: every page, moments, links to them, small screens, the keyboard, and names that mean harm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browser_page import wait_until
from served_dashboard import Dashboard, dashboard
from watched_log import HOSTILE, SLASHED, WatchedLog

PAGES = ("run", "pipeline", "timeline", "links", "peers", "faults", "people", "results", "controls")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WatchedLog:
    return WatchedLog(tmp_path_factory.mktemp("reading"))


@pytest.fixture(scope="module")
def served(log: WatchedLog) -> Iterator[Dashboard]:
    with dashboard(log.path.parent) as served:
        yield served


def open_page(page: Any, served: Dashboard, name: str) -> None:
    page.goto(f"{served.address}#/{name}")
    page.locator("main h1").wait_for(state="attached")
    page.get_by_text("Loading…").first.wait_for(state="detached")
    page.locator(".time-bar input").wait_for()


def sideways(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_fits_and_complains_of_nothing(page: Any, served: Dashboard, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    for name in (*PAGES, f"peers/{served.get('/api/v1/peers')['peers'][0]['actor']}"):
        open_page(page, served, name)
        page.wait_for_timeout(150)
        assert sideways(page) == 0, name
        assert not page.complaints, name


def test_names_and_texts_of_peers_are_inert(page: Any, served: Dashboard, log: WatchedLog) -> None:
    page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
    for name in ("peers", "people", "pipeline", "results", "run"):
        open_page(page, served, name)
        assert page.locator("main img, main script").count() == 0, name
        assert page.title() != "1", name
    open_page(page, served, "peers")
    shown = page.locator("td .peer", has_text="<i>x<i>")
    shown.wait_for()
    text = shown.inner_text()
    assert len(text) <= 24 and "\u202e" not in text
    shown.click()  # its own page, by an id that is full of markup
    page.locator("main h1", has_text="<img src=x").wait_for()
    page.locator(".log").first.wait_for()
    assert page.locator("main img, main script").count() == 0
    assert HOSTILE not in page.locator("main").inner_text()
    assert sideways(page) == 0


def test_a_link_shows_the_moment_it_was_made_at(page: Any, served: Dashboard, log: WatchedLog) -> None:
    before = served.get(f"/api/v1/run?at={log.kill_at - 1:.2f}")
    open_page(page, served, f"run?at={log.kill_at - 1:.2f}")
    page.get_by_text(f"step {before['step'] + 1}", exact=True).wait_for()
    page.get_by_text("You are looking at").wait_for()
    # The moment goes along to other pages, and back in the browser's history.
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Pipeline").click()
    assert f"at={log.kill_at - 1:.2f}" in page.url
    page.go_back()
    page.get_by_text(f"step {before['step'] + 1}", exact=True).wait_for()


def test_the_time_bar_by_keyboard_and_mouse(page: Any, served: Dashboard, log: WatchedLog) -> None:
    open_page(page, served, "run")
    bar = page.get_by_role("slider", name="Moment of the run")
    bar.focus()
    page.keyboard.press("Home")
    page.get_by_text("You are looking at").wait_for()
    assert float(re.search(r"at=([\d.]+)", page.url)[1]) == pytest.approx(log.first_at, abs=0.1)
    page.keyboard.press("ArrowRight")
    assert "into the run" in bar.get_attribute("aria-valuetext")
    bar.click()  # its middle, once it stands still: what is above it changes with the moment
    span = served.get("/api/v1/marks")
    middle = (span["first"] + span["last"]) / 2
    wait_until(page, "(at) => Math.abs(parseFloat(location.hash.split('at=')[1]) - at) < 20", arg=middle)
    page.get_by_role("button", name="To the mark before").click()
    marks = [mark["at"] for mark in span["marks"]]
    at = float(re.search(r"at=([\d.]+)", page.url)[1])
    assert min(abs(at - mark) for mark in marks) < 0.02
    page.locator(".live-button").click()
    page.get_by_text("You are looking at").wait_for(state="detached")


def test_playing_moves_the_moment_on(page: Any, served: Dashboard, log: WatchedLog) -> None:
    open_page(page, served, f"run?at={log.first_at + 60:.2f}")
    page.locator(".speed select").select_option("100")
    page.get_by_role("button", name="Play").click()
    wait_until(page, "(at) => parseFloat(location.hash.split('at=')[1]) > at", arg=log.first_at + 150)
    page.get_by_role("button", name="Stop playing").click()
    stood = page.url
    page.wait_for_timeout(1200)
    assert page.url == stood


def test_a_fault_leads_to_its_place_in_the_timeline(page: Any, served: Dashboard, log: WatchedLog) -> None:
    open_page(page, served, "faults")
    fault = served.get("/api/v1/faults")["faults"][0]
    page.locator("tbody").get_by_role("link", name=str(fault["step"] + 1), exact=True).first.click()
    page.get_by_text(re.compile(f"^steps {fault['step']}–")).wait_for()
    page.locator("main .strip.lost", has_text=fault["name"]).get_by_text("Cost").wait_for()
    page.locator("canvas").wait_for()


def test_the_timeline_by_keyboard(page: Any, served: Dashboard) -> None:
    open_page(page, served, "timeline")
    page.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    picked = page.locator("#picked")
    first = picked.inner_text()
    assert "after the step opened" in first
    page.keyboard.press("n")
    wait_until(page, "(text) => document.getElementById('picked').innerText !== text", arg=first)
    page.keyboard.press("+")
    page.get_by_role("button", name="whole").wait_for()
    wait_until(page, "!document.querySelector('.timeline .buttons button:nth-of-type(5)').disabled")
    page.keyboard.press("0")
    wait_until(page, "document.querySelector('.timeline .buttons button:nth-of-type(5)').disabled")


def test_pages_are_reached_and_used_without_a_mouse(page: Any, served: Dashboard) -> None:
    open_page(page, served, "run")
    wait_until(page, "document.hasFocus()")  # a key that comes before is lost
    page.keyboard.press("Tab")
    wait_until(page, "document.activeElement.className === 'skip'")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#/run")  # the skip link leaves the address alone
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Links").focus()
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Links").wait_for()
    page.get_by_role("button", name="Table of Links").focus()
    page.keyboard.press("Enter")
    page.get_by_role("columnheader", name="round trip").wait_for()


def test_every_picture_has_a_table(page: Any, served: Dashboard) -> None:
    for name in ("run", "pipeline", "timeline", "links"):
        open_page(page, served, name)
        buttons = page.get_by_role("button", name="Table of")
        assert buttons.count() > 0, name
        while buttons.count() > 0:
            buttons.first.click()
            assert page.locator("main table tbody tr").count() > 0, name


def test_nothing_serious_for_axe(page: Any, served: Dashboard) -> None:
    """In light and in dark colours: the two differ in contrast alone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().axe_script
    actor = served.get("/api/v1/peers")["peers"][0]["actor"]
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    open_page(page, served, PAGES[0])
    page.evaluate(axe)  # it stays: the other pages are parts of the same document
    found = []
    for name in (*PAGES, f"peers/{actor}"):
        open_page(page, served, name)
        for scheme, only in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme=scheme)
            options = {"resultTypes": ["violations"], **only}
            violations = page.evaluate("async (options) => (await axe.run(options)).violations", options)
            for violation in violations:
                if violation["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:200] for node in violation["nodes"][:3]]
                    found.append((name, scheme, violation["id"], violation["help"], nodes))
        page.emulate_media(color_scheme="light")
    assert not found


def test_a_report_is_the_whole_in_one_file(page: Any, log: WatchedLog, tmp_path: Path) -> None:
    out = tmp_path / "run.html"
    subprocess.run(
        [sys.executable, "-m", "peers", "report", str(log.path.parent), "--out", str(out)],
        check=True,
        capture_output=True,
    )
    page.goto(out.as_uri())
    page.get_by_text("A report:").wait_for()
    for name in PAGES:
        page.goto(f"{out.as_uri()}#/{name}")
        page.locator("main h1").wait_for(state="attached")
        assert page.get_by_text("does not hold that part").count() == 0, name
    page.goto(f"{out.as_uri()}#/timeline")
    page.locator("canvas").wait_for()
    # It holds one moment: there is no bar to look for others with, and an address that names one shows the end.
    page.goto(f"{out.as_uri()}#/run?at={log.kill_at:.2f}")
    page.get_by_text(f"step {log.step + 1}", exact=True).wait_for()
    assert page.locator(".time-bar").count() == 0 and page.get_by_text("You are looking at").count() == 0
    for actor in (SLASHED, HOSTILE):  # by peer id, as links have it
        page.goto(f"{out.as_uri()}#/peers")
        page.locator(f'td a[href="#/peers/{quote(actor.rpartition(".")[0] or actor, safe="!*()")}"]').click()
        page.get_by_role("heading", name="Machine", exact=True).wait_for()
        page.locator("main h1", has_text=actor[:8]).wait_for()
        assert page.get_by_text("does not hold that part").count() == 0


def test_a_peer_id_with_a_slash_has_a_page(page: Any, served: Dashboard) -> None:
    open_page(page, served, "peers")
    page.locator("td .peer-link", has_text="slashes").click()
    page.get_by_text(f"actor {SLASHED}").wait_for()
    page.goto(f"{served.address}#/peers/{SLASHED}")  # as some programs write a link that they are given
    page.get_by_text(f"actor {SLASHED}").wait_for()


def test_the_trace_is_there_after_one_click(page: Any, served: Dashboard, tmp_path: Path) -> None:
    open_page(page, served, "timeline")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Trace for Perfetto").click()
    assert downloading.value.suggested_filename == "trace.json"
    downloading.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = served.get("/api/v1/timeline?limit=100")
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {row["name"] for row in shown["rows"]}
    assert {event["ph"] for event in events} == {"M", "X"} and all(event.get("dur", 0) >= 0 for event in events)
    assert page.url.endswith("#/timeline")


def test_who_falls_out_of_the_open_step_stays_in_its_column(page: Any, served: Dashboard, log: WatchedLog) -> None:
    cells = served.get(f"/api/v1/pipeline?at={log.kill_at + 0.5:.2f}")["stages"][log.kill["stage"]]["cells"]
    assert [cell["actor"] for cell in cells if cell["out"]] == [log.kill["actor"]]
    open_page(page, served, f"pipeline?at={log.kill_at + 0.5:.2f}")
    cell = page.locator(".cell.lost", has_text="others do its part of this step")
    assert cell.count() == 1 and re.search("✕\\s+(gone|fenced)", cell.inner_text())
    page.get_by_role("button", name="Table of").click()
    row = page.locator("tbody tr", has_text="others do its part of this step")
    assert row.count() == 1 and re.search("✕\\s+(gone|fenced)", row.inner_text())
