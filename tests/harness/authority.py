"""An organiser and a coordinator for tests: they admit whom a test wants."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm.net.door import Door
from swarm.net.identity import Identity
from swarm.net.passes import SERIAL_BYTES, Certificate, Ticket
from swarm.net.run_key import RunKey

HOUR_S = 3600


class Authority:
    """An organiser's key that signs passes, and a coordinator's identity that signs certificates, of any run.

    Two authorities with the same `seed` have the same keys, even in different processes.
    """

    def __init__(self, seed: int = 1) -> None:
        self.organiser = Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32))
        self.public_key = self.organiser.public_key().public_bytes_raw()
        self.coordinator = Identity(Ed25519PrivateKey.from_private_bytes((seed + 1000).to_bytes(32)), Path())

    def ticket(
        self, run_hash: str, name: str = "alice", devices: int = 8, lasts_s: int = HOUR_S, **kind: bool
    ) -> Ticket:
        return Ticket.issue(self.organiser, run_hash, name, devices, int(time.time()) + lasts_s, **kind)

    def certificate(
        self,
        run_hash: str,
        peer: str,
        serial: bytes = bytes(SERIAL_BYTES),
        lasts_s: int = HOUR_S,
        *,
        observes: bool = False,
    ) -> bytes:
        now = int(time.time())
        of = Certificate(run_hash, serial, "alice", peer, self.coordinator.peer_id, now, now + lasts_s, observes)
        return of.sealed(self.coordinator)

    def run_key(self, run_hash: str) -> RunKey:
        return RunKey.derive(self.organiser, run_hash)

    def door(self, run_hash: str, *coordinators: str) -> Door:
        """The access control of an actor that accepts this authority's organiser and coordinator."""
        return Door(run_hash, (self.coordinator.peer_id, *coordinators), self.public_key)
