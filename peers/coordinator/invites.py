"""Invites in a coordinator's home: makes new ones, and lists the state of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peers.coordinator.organiser_key import organiser_key
from peers.coordinator.pass_book import PassBook, PassBookError
from peers.coordinator.record import read_commands
from peers.run.home import Home
from swarm.manifest import key_fingerprint
from swarm.net.invite import Invite, InviteError, parse
from swarm.net.passes import Pass
from swarm.protocol.controls import EXPELLED_OF_A_PASS, Controls


@dataclass(frozen=True, slots=True)
class Listed:
    """A pass, and its state according to the decision record."""

    given: Pass
    peers: tuple[str, ...]
    """Peer ids of the devices that have joined or that observe with it."""
    expelled: int
    """The number of these devices that are expelled from the run."""
    revoked: bool

    @property
    def joined(self) -> int:
        return len(self.peers)

    def state(self, now: float) -> str:
        """The state in a word or two. `now`: Unix seconds."""
        if self.revoked:
            return "revoked"
        if self.given.open:
            return "open to everybody"
        if self.expelled >= EXPELLED_OF_A_PASS:
            return f"closed: {self.expelled} devices are expelled"
        if now >= self.given.expires_at:
            return "expired"
        return "used up" if self.joined >= self.given.devices else "open"

    def to_json(self, now: float) -> dict[str, Any]:
        """The pass as JSON. `now`: Unix seconds."""
        return {
            "name": self.given.name,
            "serial": self.given.serial.hex(),
            "role": role_of(self.given),
            "open": self.given.open,
            "devices": self.given.devices,
            "joined": self.joined,
            "peers": list(self.peers),
            "expelled": self.expelled,
            "expires_at": self.given.expires_at,
            "revoked": self.revoked,
            "state": self.state(now),
        }


def role_of(given: Pass) -> str:
    """The role, as in `invite --role`."""
    return "observe" if given.observes else "peer"


def line_of(token: str, given: Pass) -> str:
    """The command line for the person who gets the invite."""
    return f"swarm-peer {'dashboard' if given.observes else 'join'} {token}"


def invite_of(path: Path, name: str, devices: int, expires_at: int, *, observes: bool = False) -> tuple[str, Pass]:
    """A new invite from the home at `path`, and its pass. Raises PassBookError, PassError, InviteError, OSError."""
    home = Home(path)
    printed = _printed(home)
    key = organiser_key(home) if home.organiser_key.exists() else None
    if key is None or key_fingerprint(key.public_key().public_bytes_raw()) != printed.fingerprint:
        raise PassBookError(f"the organiser's key of this run is not in {home.path}: use the home that began the run")
    ticket = book_of(path).issue(key, name, devices, expires_at, observes=observes)
    return replace(printed, ticket=ticket, key=None if observes else printed.key).encode(), ticket.given


def book_of(path: Path) -> PassBook:
    """The passes of the run whose coordinator has this home. Raises PassBookError, InviteError, OSError."""
    home = Home(path)
    return PassBook(home, str(_printed(home).run_hash))


def listed(path: Path) -> list[Listed]:
    """All passes that were made in a home, by name. Raises PassBookError, InviteError, RecordError, OSError."""
    home = Home(path)
    run_hash = str(_printed(home).run_hash)
    controls = Controls.of(read_commands(home.decisions, run_hash))
    expelled = {command.value for command in controls.expelled}
    revoked = {command.value for command in controls.revoked}
    rows = []
    for ticket in PassBook(home, run_hash).tickets():
        given = ticket.given
        devices = controls.came_with(given.serial.hex()) if not given.open else _of_open(given, controls)
        rows.append(Listed(given, tuple(sorted(devices)), len(devices & expelled), given.serial.hex() in revoked))
    return rows


def _of_open(given: Pass, controls: Controls) -> frozenset[str]:
    """The devices that came with an open pass, each listed with its own pass."""
    return frozenset(
        device.peer for device in controls.admitted if device.serial == given.of_device(device.peer).serial.hex()
    )


def _printed(home: Home) -> Invite:
    """The invite that the coordinator printed last."""
    try:
        text = home.join_token.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise PassBookError(
            f"no run was coordinated in {home.path} yet: start `swarm-peer coordinate` first, or name its --home"
        ) from None
    try:
        return parse(text)
    except InviteError as error:
        raise PassBookError(
            f"{home.join_token} is damaged ({error}): start `swarm-peer coordinate` again, which writes it anew"
        ) from None
