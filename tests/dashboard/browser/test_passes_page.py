"""Passes on the organiser's page: the list, a new one to copy, and taking one back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answering_coordinator import Coordinator
from coordinators_home import RUN, coordinators_home
from served_dashboard import dashboard
from watched_log import WatchedLog

from peers.coordinator.pass_book import PassBook


def test_the_organiser_makes_a_pass_and_takes_it_back(page: Any, tmp_path: Path) -> None:
    home = coordinators_home(tmp_path / "c")
    WatchedLog(home.path)
    with dashboard(home.path) as served:
        page.goto(f"{served.address}#token={served.token}")
        page.locator(".big-state").wait_for()
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Controls").click()
        passes = page.get_by_role("region", name="Passes").first
        passes.get_by_role("cell", name="0 of 8").wait_for()
        form = page.get_by_role("form", name="New pass")
        form.get_by_label("Name").fill("ann")
        form.get_by_label("Its devices").select_option("observe")
        form.get_by_role("button", name="Make a pass").click()
        form.get_by_text("ann uses this line").wait_for()
        line = form.locator("pre").inner_text()
        assert line.startswith("swarm-peer dashboard swarm3-")
        assert PassBook(home, RUN).find("ann").given.observes
        coordinator = Coordinator(home.path / "control.sock")
        coordinator.start()
        page.get_by_role("button", name="Revoke ann…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Why?").fill("it leaked")
        dialog.get_by_role("button", name="Revoke", exact=True).click()
        dialog.wait_for(state="detached")
        coordinator.close()
        serial = PassBook(home, RUN).find("ann").given.serial.hex()
        assert coordinator.heard[0].items() >= {"command": "revoke", "value": serial, "why": "it leaked"}.items()
