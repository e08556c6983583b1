"""The pass book: the passes made in a coordinator's home, each in a file that only its user may read."""

from __future__ import annotations

import base64
import json
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.run.home import Home
from swarm.atomic import atomic_file, write_whole
from swarm.net.passes import MAX_DEVICES, NEVER, Ticket, check_name

PRINTED = "printed"
"""Name of the pass in the invite that `coordinate` prints."""
PRINTED_S = 365 * 86_400
"""Validity of that pass in seconds."""
OPEN = "open"
"""Name of the pass of an open run, which everybody may use."""


class PassBookError(ValueError):
    """A pass cannot be made, found or read; the text says what to do."""


class PassBook:
    """The passes of one run in one home. Several processes may use it at once."""

    def __init__(self, home: Home, run_hash: str) -> None:
        self._folder = home.passes
        self._run_hash = run_hash

    def tickets(self) -> list[Ticket]:
        """All passes of the run, by name. Raises PassBookError, OSError."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                fields = json.loads(path.read_bytes())
                ticket = Ticket(base64.b64decode(fields["pass"]), base64.b64decode(fields["seed"]))
                ticket.check()
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise PassBookError(
                    f"{path} is damaged ({error}): restore the file, or delete it and revoke the pass"
                ) from None
            if ticket.given.run_hash == self._run_hash:
                found.append(ticket)
        return sorted(found, key=lambda ticket: (ticket.given.name, ticket.given.expires_at))

    def find(self, name: str) -> Ticket:
        """The newest pass with that name. Raises PassBookError, OSError."""
        named = [ticket for ticket in self.tickets() if ticket.given.name == name]
        if not named:
            raise PassBookError(f"no pass is called {name[:40]!r}: `swarm-peer invites` lists them")
        return named[-1]

    def issue(
        self,
        organiser: Ed25519PrivateKey,
        name: str,
        devices: int,
        expires_at: int,
        *,
        observes: bool = False,
    ) -> Ticket:
        """Make a new pass. It is on disk when this returns. Raises PassBookError, PassError, OSError."""
        if any(ticket.given.name == check_name(name) for ticket in self.tickets()):
            raise PassBookError(f"there is a pass called {name!r} already: choose another name")
        ticket = Ticket.issue(organiser, self._run_hash, name, devices, expires_at, observes=observes)
        return self._kept(ticket)

    def printed(self, organiser: Ed25519PrivateKey, devices: int) -> Ticket:
        """The pass of the printed invite: the stored one, unless it has expired or is for fewer devices.

        Raises PassBookError, PassError, OSError.
        """
        now = time.time()
        for ticket in reversed([ticket for ticket in self.tickets() if ticket.given.name == PRINTED]):
            if ticket.given.expires_at > now + PRINTED_S / 2 and ticket.given.devices >= devices:
                return ticket
        return self._kept(Ticket.issue(organiser, self._run_hash, PRINTED, devices, int(now) + PRINTED_S))

    def open_to_all(self, organiser: Ed25519PrivateKey) -> Ticket:
        """The pass of an open run. It is the same at every start. Raises PassBookError, PassError, OSError."""
        for ticket in self.tickets():
            if ticket.given.open:
                return ticket
        return self._kept(Ticket.issue(organiser, self._run_hash, OPEN, MAX_DEVICES, NEVER, open=True))

    def _kept(self, ticket: Ticket) -> Ticket:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        body = {
            "pass": base64.b64encode(ticket.sealed).decode(),
            "seed": base64.b64encode(ticket.seed).decode(),
        }
        with atomic_file(self._folder / f"{ticket.given.serial.hex()}.json", private=True) as file:
            write_whole(file, json.dumps(body).encode())
        return ticket
