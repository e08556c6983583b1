"""The door: access control of one actor, which decides locally which peers may open streams to it.

It accepts a coordinator by its peer id, and a device by its certificate. A device without a certificate may show an
enrolment to a coordinator. Every other peer is a stranger, which is told nothing about the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from swarm.net.dht_clock import get_dht_time
from swarm.net.passes import Certificate, Pass, PassError, open_enrolment

MAX_REMEMBERED = 4096
"""Largest number of remembered valid certificates, whose signatures need not be checked again."""
STRANGER = "you show no valid pass: ask the organiser for an invite (swarm3-…)"
"""The only answer that a stranger gets."""


class Stranger(Exception):
    """The peer has no pass or certificate with a valid signature of this run."""


class Void(Exception):
    """The signature is valid, but the pass has expired or is of another run; the message gives the reason."""


class ShutOut(Void):
    """The peer's device is banned, or its pass is revoked."""


class Door:
    """The access control of one actor. `coordinators`: peer ids; `organiser`: the public key that signs passes.

    `organiser` None: no device can enrol here (so at peers). `clock` returns Unix seconds. The default is the shared
    time of the DHT nodes, because a volunteer's own clock may be wrong.
    """

    def __init__(
        self,
        run_hash: str,
        coordinators: Collection[str],
        organiser: bytes | None = None,
        clock: Callable[[], float] = get_dht_time,
    ) -> None:
        self.run_hash = run_hash
        self.coordinators = frozenset(coordinators)
        self.banned: Mapping[str, str] = {}
        """Banned peers: {peer id: reason}."""
        self.revoked: Mapping[bytes, str] = {}
        """Revoked passes: {serial: reason}. Only coordinators fill it in; peers know only `banned`."""
        self._organiser = organiser
        self._clock = clock
        self._genuine: dict[bytes, Certificate] = {}

    def check(self, peer: str, certificate: bytes, enrolment: bytes) -> Pass | Certificate | None:
        """Check the access of `peer`, which libp2p has authenticated. Returns its certificate or pass.

        None: the peer is a coordinator. Raises Stranger, Void (ShutOut).
        """
        if peer in self.coordinators:
            return None
        if certificate:
            return self._certificate(peer, certificate)
        if self._organiser is None or not enrolment:
            raise Stranger
        try:
            given = open_enrolment(enrolment, peer, self._organiser)
        except PassError:
            raise Stranger from None
        self._check_use(given)
        return given

    def _certificate(self, peer: str, raw: bytes) -> Certificate:
        shown = self._genuine.get(raw)
        if shown is None:
            try:
                shown = Certificate.open(raw)
            except PassError:
                raise Stranger from None
            if shown.issuer not in self.coordinators:
                raise Stranger
            while len(self._genuine) >= MAX_REMEMBERED:
                del self._genuine[next(iter(self._genuine))]
            self._genuine[raw] = shown
        if shown.peer != peer:
            raise Stranger
        if (why := self.banned.get(peer)) is not None:
            raise ShutOut(why)
        self._check_use(shown)
        return shown

    def _check_use(self, shown: Pass | Certificate) -> None:
        if shown.run_hash != self.run_hash:
            raise Void("your pass is for another run than the one that is hosted here now: ask for a new invite")
        if (why := self.revoked.get(shown.serial)) is not None:
            raise ShutOut(why)
        if self._clock() >= shown.expires_at:
            raise Void("your pass has expired: ask for a new invite")
