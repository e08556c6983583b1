"""Controls: closed without the organiser's token, and each of them with it, through the coordinator's socket.

The socket is the test's own: what the coordinator makes of a command is tested with it. Here: what the page sends.
"""

from __future__ import annotations

import fcntl
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_dashboard import Dashboard, dashboard
from watched_log import WatchedLog

COMMANDS = {
    "Pause": ("pause", "", ""),
    "Resume": ("resume", "", ""),
    "Checkpoint now": ("checkpoint", "", ""),
    "Ask to leave": ("dismiss", "Peer", "8Kd2mV.1004"),
    "Expel": ("expel", "Peer", "8Kd2mV.1004"),
    "Learning rate": ("rate", "Multiplier", "0.5"),
    "Length of the run": ("steps", "Steps in all", "500"),
    "End after a step": ("stop_after", "Step", "120"),
}


class Socket:
    """Answers the first command of each name with a number, and refuses it from then on."""

    def __init__(self, home: Path) -> None:
        self.heard: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(home / "control.sock"))
        self._socket.listen()
        self._lock = (home / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # as the coordinator of a run that lives holds it
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        self._lock.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                command = json.loads(file.readline())
                again = any(one["command"] == command["command"] for one in self.heard)
                self.heard.append(command)
                answer = (
                    {"ok": False, "error": f"{command['command']} was given already"}
                    if again
                    else {"ok": True, "number": len(self.heard), "text": f"{command['command']} takes effect"}
                )
                file.write(json.dumps(answer).encode() + b"\n")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Socket]:
    home = tmp_path_factory.mktemp("s")  # short: a Unix socket's path has at most 107 bytes
    WatchedLog(home)
    socket = Socket(home)
    yield socket
    socket.close()


@pytest.fixture(scope="module")
def served(coordinator: Socket) -> Iterator[Dashboard]:
    home = Path(coordinator._socket.getsockname()).parent
    with dashboard(home) as served:
        yield served


def test_without_the_token_there_is_no_control(page: Any, served: Dashboard, coordinator: Socket) -> None:
    page.goto(f"{served.address}#/controls")
    page.get_by_role("heading", name="Are you the organiser?").wait_for()
    assert page.locator(".command").count() == 0
    page.get_by_label("Token").fill("not-it")
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("alert").wait_for()
    assert page.locator(".command").count() == 0
    # Nor with the page's own means: the server refuses it.
    for command, _, value in COMMANDS.values():
        status = page.evaluate(
            """([command, value]) => fetch("/api/v1/control", { method: "POST",
                headers: { "Content-Type": "application/json", "X-Swarm-Peer": "1" },
                body: JSON.stringify({ command, value, why: "" }) }).then((reply) => reply.status)""",
            [command, value],
        )
        assert status in (401, 403), command
    assert coordinator.heard == []
    page.goto(f"{served.address}#/results")
    page.get_by_text("organiser only").first.wait_for()
    assert page.get_by_role("link", name="stage 0").count() == 0


def test_every_control_with_the_token(page: Any, served: Dashboard, coordinator: Socket) -> None:
    page.goto(f"{served.address}#token={served.token}")
    page.locator(".big-state").wait_for()
    assert served.token not in page.url
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Controls").click()
    for title, (command, label, value) in COMMANDS.items():
        card = page.locator(".command").filter(has=page.get_by_role("heading", name=title, exact=True))
        if label:
            card.get_by_label(label).fill(value)
        card.get_by_role("button", name=f"{title}…").click()
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        dialog.get_by_label("Why?").fill("it's a test")
        line = dialog.locator("pre").inner_text()
        assert line.startswith(f"swarm-peer control {command}") and value in line and "--why 'it'\\''s a test'" in line
        heard = len(coordinator.heard)
        dialog.get_by_role("button", name="Cancel").click()
        dialog.wait_for(state="detached")
        assert len(coordinator.heard) == heard  # nothing is sent before it is confirmed
        card.get_by_role("button", name=f"{title}…").click()
        dialog.get_by_label("Why?").fill("it's a test")
        dialog.get_by_role("button", name=title, exact=True).click()
        card.get_by_text(f"Command {heard + 1}: {command} takes effect").wait_for()
        given = {"command": command, "value": value, "by": "dashboard", "why": "it's a test"}
        assert coordinator.heard[-1].items() >= given.items()


def test_a_refusal_is_told_in_the_coordinators_words(page: Any, served: Dashboard, coordinator: Socket) -> None:
    coordinator.heard.append({"command": "pause"})
    page.goto(f"{served.address}#token={served.token}")
    page.locator(".big-state").wait_for()
    page.goto(f"{served.address}#/controls")
    card = page.locator(".command").filter(has=page.get_by_role("heading", name="Pause", exact=True))
    card.get_by_role("button").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")  # the dialog closes by keyboard
    page.get_by_role("dialog").wait_for(state="detached")
    card.get_by_role("button").click()
    page.get_by_role("dialog").wait_for()  # a key that is pressed before goes to the page behind it
    page.get_by_label("Why?").press("Enter")  # and is confirmed by it
    card.get_by_text("pause was given already").wait_for()


def test_a_value_that_cannot_be_is_not_sent(page: Any, served: Dashboard, coordinator: Socket) -> None:
    page.goto(f"{served.address}#token={served.token}")
    page.locator(".big-state").wait_for()
    page.goto(f"{served.address}#/controls")
    card = page.locator(".command").filter(has=page.get_by_role("heading", name="End after a step", exact=True))
    heard = len(coordinator.heard)
    for wrong in ("", "0", "1.5"):
        card.get_by_label("Step").fill(wrong)
        card.get_by_role("button").click()
        assert page.get_by_role("dialog").count() == 0, wrong
    assert len(coordinator.heard) == heard


@pytest.mark.parametrize("clipboard", [True, False])
def test_the_line_to_join_with_can_be_copied(
    page: Any, served: Dashboard, coordinator: Socket, clipboard: bool
) -> None:
    """Off https and this machine, browsers let no page write to the clipboard."""
    invite = Path(coordinator._socket.getsockname()).with_name("join-token")
    invite.write_text("swarm1-" + "abc" * 100)
    if clipboard:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto(f"{served.address}#token={served.token}")
    page.locator(".big-state").wait_for()
    page.goto(f"{served.address}#/controls")
    page.get_by_role("button", name="Copy").click()
    line = f"swarm-peer join {invite.read_text()}"
    if clipboard:
        page.get_by_text("Copied.").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == line
    else:
        page.get_by_text("It is selected").wait_for()
        assert page.evaluate("getSelection().toString()").strip() == line


def test_only_checkpoints_that_the_archive_still_has_are_offered(page: Any, tmp_path: Path) -> None:
    WatchedLog(tmp_path)
    with dashboard(tmp_path) as served:
        served.wait("/api/v1/run", lambda run: not run["warnings"])
        rows = served.get("/api/v1/checkpoints")["checkpoints"]
        assert all(row["complete"] and not row["here"] for row in rows)
        folder = tmp_path / "archive" / f"{rows[0]['version']:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        page.goto(f"{served.address}#token={served.token}")
        page.locator(".big-state").wait_for()
        page.goto(f"{served.address}#/results?at={served.get('/api/v1/run')['last_at'] - 1}")
        offered = page.locator("tr", has_text="no longer in the archive")
        offered.first.wait_for()
        assert offered.count() == len(rows) - 1 and offered.locator("a, button").count() == 0
        kept = page.locator("tr", has=page.get_by_role("link", name="stage 0"))
        assert kept.count() == 1 and kept.get_by_text(str(rows[0]["version"]), exact=True).count() == 1
        assert kept.get_by_role("button", name="Export for Hugging Face").count() == 1


def test_the_printed_address_can_be_opened_where_the_page_is_shown(page: Any, served: Dashboard) -> None:
    page.goto(f"{served.address}#/controls")
    page.get_by_role("heading", name="Are you the organiser?").wait_for()
    page.evaluate("(token) => { location.hash = 'token=' + token }", served.token)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Controls").click()
    page.locator(".command").first.wait_for()
    assert served.token not in page.url and served.token not in page.evaluate("document.body.innerText")
