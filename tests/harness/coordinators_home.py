"""The home of a coordinator that has printed its invite, and what its decision record says."""

from __future__ import annotations

from pathlib import Path

from authority import Authority

from peers.coordinator.organiser_key import organiser_key
from peers.coordinator.pass_book import PassBook
from peers.coordinator.record import DecisionRecord
from peers.run.home import Home
from swarm.manifest import key_fingerprint
from swarm.net.identity import Identity
from swarm.net.invite import Invite
from swarm.net.run_key import RunKey
from swarm.protocol.messages import Command

RUN = "ab" * 32


def coordinators_home(path: Path) -> Home:
    """Make the home. Its printed invite is for 8 devices."""
    with Home.open(path) as opened:
        me, key = Identity.load(opened.identity).peer_id, organiser_key(opened)
        ticket = PassBook(opened, RUN).printed(key, 8)
        address = f"/ip4/203.0.113.5/tcp/4001/p2p/{me}"
        fingerprint = key_fingerprint(key.public_key().public_bytes_raw())
        printed = Invite((address,), me, RUN, fingerprint, ticket, RunKey.derive(key, RUN))
        opened.join_token.write_text(printed.encode() + "\n")
        DecisionRecord(opened.decisions, RUN).close()
        return Home(opened.path)


def record(home: Home, *commands: tuple[str, str]) -> None:
    written = DecisionRecord(home.decisions, RUN)
    for number, (name, value) in enumerate(commands, 1):
        written.write_command(Command(number, name, value, "Ann", "", f"r{number}"))
    written.close()


def peer_of(number: int) -> str:
    """The peer id of a device."""
    return Authority(100 + number).coordinator.peer_id
