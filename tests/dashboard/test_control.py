"""Commands: they reach the socket of the coordinator as they were given, and what it answers reaches the viewer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering_coordinator import Coordinator
from served_dashboard import Dashboard, dashboard, generated_home

from benchmarks.generated_log import Shape
from peers.run.home import Home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated_home(tmp_path_factory.mktemp("h"), Shape(peers=4, stages=2, hours=0.05, step_seconds=20))


@pytest.fixture(scope="module")
def shown(home: Path) -> Iterator[Dashboard]:
    with dashboard(home) as running:
        yield running


@pytest.fixture
def coordinator(home: Path) -> Iterator[Coordinator]:
    path = home / "control.sock"
    path.unlink(missing_ok=True)
    running = Coordinator(path)
    running.start()
    yield running
    running.close()
    path.unlink(missing_ok=True)


def test_a_command_is_given_as_it_was_written(shown: Dashboard, coordinator: Coordinator) -> None:
    why = "lunch \u2014 <b>\n" + "x" * 300
    answer = shown.act("/api/v1/control", {"command": "rate", "value": 0.5, "why": why})
    assert answer.status == 200 and answer.json == {"ok": True, "number": 7, "text": "paused from the next step on"}
    (heard,) = coordinator.heard
    assert heard.items() >= {"command": "rate", "value": "0.5", "by": "dashboard", "why": why}.items()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b'{"ok": false, "error": "it is paused already"}\n', 409),
        (b'{"ok": false, "unsure": true, "error": "no majority yet"}\n', 504),
        (b"", 504),
        (b"nonsense\n", 504),
        (b"[1]\n", 504),
        (b"x" * 100_000, 504),
    ],
)
def test_what_the_coordinator_says_is_told(
    shown: Dashboard, coordinator: Coordinator, said: bytes, status: int
) -> None:
    coordinator.answer = said
    answer = shown.act("/api/v1/control", {"command": "pause"})
    assert answer.status == status
    assert answer.json["error"] == (json.loads(said)["error"] if said.startswith(b"{") else answer.json["error"])


def test_only_commands_that_there_are_are_passed_on(shown: Dashboard, coordinator: Coordinator) -> None:
    for body in ({"command": "rm"}, {"command": "status"}, {}, {"command": "pause", "why": "x" * 500}):
        assert shown.act("/api/v1/control", body).status == 400
    assert coordinator.heard == []


def test_a_page_offers_what_can_be_given(shown: Dashboard, home: Path, coordinator: Coordinator) -> None:
    own = {"Authorization": f"Bearer {shown.token}"}
    with Home.open(home):  # as a coordinator's process does
        shown.wait("/api/v1/run", lambda run: run["live"])
        assert shown.get("/api/v1/run", **own)["control"] is True
        assert shown.get("/api/v1/run")["control"] is False, "not to who has no token"
    shown.wait("/api/v1/run", lambda run: not run["live"])
    assert shown.get("/api/v1/run", **own)["control"] is False


def test_nobody_there(shown: Dashboard) -> None:
    answer = shown.act("/api/v1/control", {"command": "pause"})
    assert answer.status == 503 and answer.json["error"].startswith("no coordinator")
