"""An observer's dashboard in a browser: the organiser's pages, without controls and without a token."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from served_dashboard import dashboard
from watched_log import WatchedLog


def test_an_observers_pages_have_no_controls_and_tell_when_nobody_answers(page: Any, tmp_path: Path) -> None:
    home = tmp_path / "observer"
    log = WatchedLog(home)
    copies = home / "mirrors"
    copies.mkdir()
    log.path.rename(copies / "8Kd2mVtheCoordinator.jsonl")
    with (home / "lock").open("w") as lock, dashboard(home, "--observed") as served:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process that copies holds it
        assert served.token == "", "no token is told"
        page.goto(served.address)
        page.locator(".big-state").wait_for()
        pages = page.get_by_role("navigation", name="Pages")
        pages.get_by_role("link", name="Pipeline").click()
        page.locator(".cell").first.wait_for()
        assert pages.get_by_role("link", name="Controls").count() == 0
        page.goto(f"{served.address}#/controls")
        page.get_by_text("You observe this run. Its organiser steers it.").wait_for()
        assert page.locator(".command").count() == 0 and page.get_by_label("Token").count() == 0
        (home / "observing").write_text("no coordinator has answered since noon (gone)")
        page.get_by_text("no coordinator has answered since noon (gone), so this is the state at that time").wait_for()
