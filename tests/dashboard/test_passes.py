"""Passes in the dashboard: listed, made and taken back, by the organiser alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering_coordinator import Coordinator
from coordinators_home import RUN, coordinators_home, peer_of, record
from served_dashboard import Dashboard, dashboard

from peers.coordinator.invites import listed
from peers.coordinator.pass_book import PassBook
from peers.run.home import Home
from swarm.net.invite import parse
from swarm.protocol.admissions import Device


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return coordinators_home(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def shown(home: Home) -> Iterator[Dashboard]:
    with dashboard(home.path) as running:
        yield running


def own(shown: Dashboard) -> dict[str, str]:
    return {"Authorization": f"Bearer {shown.token}"}


def test_only_the_organiser_sees_makes_and_revokes_passes(shown: Dashboard, home: Home) -> None:
    before = listed(home.path)
    assert shown.ask("/api/v1/passes").status == 403
    program = {"X_Swarm_Peer": "1", "Authorization": "Bearer " + "x" * 43}
    fields = {"name": "mallory", "devices": 9, "expires": "30d", "role": "peer"}
    assert shown.ask("/api/v1/passes", "POST", fields, **program).status in (401, 429)
    assert shown.ask("/api/v1/passes/revoke", "POST", {"serial": "00" * 16}, **program).status in (401, 429)
    assert shown.ask("/api/v1/passes", "POST", fields, **own(shown)).status == 403, "another site's page has no header"
    assert listed(home.path) == before


@pytest.mark.parametrize(("role", "command"), [("peer", "join"), ("observe", "dashboard")])
def test_a_pass_is_made_as_the_command_makes_it(shown: Dashboard, home: Home, role: str, command: str) -> None:
    fields = {"name": f"ann-{role}", "devices": 3, "expires": "12h", "role": role}
    made = shown.act("/api/v1/passes", fields)
    assert made.status == 200, made.body
    assert made.headers["cache-control"] == "no-store"
    word, _, token = made.json["line"].removeprefix("swarm-peer ").partition(" ")
    assert word == command
    ticket = parse(token).ticket
    assert ticket is not None and ticket == PassBook(home, RUN).find(f"ann-{role}")
    assert (ticket.given.devices, ticket.given.observes) == (3, role == "observe")
    assert 0 < ticket.given.expires_at - time.time() <= 12 * 3600
    again = shown.act("/api/v1/passes", fields)
    assert again.status == 409 and f"there is a pass called 'ann-{role}' already" in again.json["error"]


@pytest.mark.parametrize(
    ("field", "value", "status", "says"),
    [
        ("name", "--home=/", 409, "cannot name a pass"),
        ("name", "", 409, "cannot name a pass"),
        ("name", "x" * 41, 400, "name"),
        ("devices", 0, 400, "devices"),
        ("devices", "3", 400, "devices"),
        ("devices", True, 400, "devices"),
        ("devices", 100_001, 400, "devices"),
        ("expires", "tomorrow", 409, "is no duration"),
        ("role", "organiser", 400, "role"),
    ],
)
def test_what_is_no_pass_is_refused_in_words(
    shown: Dashboard, home: Home, field: str, value: object, status: int, says: str
) -> None:
    before = listed(home.path)
    answer = shown.act("/api/v1/passes", {"name": "bob", "devices": 1, "expires": "30d", "role": "peer", field: value})
    assert answer.status == status and says in answer.json["error"], answer.body
    assert listed(home.path) == before


def test_passes_are_listed_with_their_devices_and_taken_back_by_the_coordinator(tmp_path: Path) -> None:
    home = coordinators_home(tmp_path / "c")
    (printed,) = PassBook(home, RUN).tickets()
    serial, peers = printed.given.serial.hex(), sorted(peer_of(n) for n in (1, 2))
    record(home, *(("admit", Device(serial, 8, peer).value) for peer in peers))
    with dashboard(home.path) as shown:
        (row,) = shown.get("/api/v1/passes", **own(shown))["passes"]
        assert (row["name"], row["joined"], row["devices"], row["peers"]) == ("printed", 2, 8, peers)
        assert (row["role"], row["state"], row["revoked"]) == ("peer", "open", False)
        nobody = shown.act("/api/v1/passes/revoke", {"serial": serial, "why": "it leaked"})
        assert nobody.status == 503, "a revocation needs the coordinator"
        coordinator = Coordinator(home.path / "control.sock")
        coordinator.start()
        try:
            answer = shown.act("/api/v1/passes/revoke", {"serial": serial, "why": "it leaked"})
        finally:
            coordinator.close()
        assert answer.status == 200 and answer.json["number"] == 7
        (heard,) = coordinator.heard
        assert heard.items() >= {"command": "revoke", "value": serial, "by": "dashboard", "why": "it leaked"}.items()
