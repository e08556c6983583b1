"""The door: judges who may speak to an actor of a run, by what it shows. Nobody is asked for that.

A coordinator is known by its peer id. A device shows its certificate. One that has none yet may show an enrolment to a
coordinator. Everybody else is a stranger, and is not told anything of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from swarm.net.dht_clock import get_dht_time
from swarm.net.passes import Certificate, Pass, PassError, open_enrolment

MAX_REMEMBERED = 4096
"""Certificates whose signature is not checked again."""
STRANGER = "you show no valid pass: ask the organiser for an invite (swarm3-…)"
"""All that a stranger is told, whatever it does."""


class Stranger(Exception):
    """It shows nothing that anybody of this run has signed."""


class Void(Exception):
    """What it shows is genuine, and not good any more, or not for this run; the text says why."""


class ShutOut(Void):
    """Its device or its pass has no part in the run any more."""


class Door:
    """Of one actor. `coordinators`: peer ids; `organiser`: the public key whose passes a coordinator takes.

    `organiser` None: nobody can enrol here, as at peers. `clock` gives Unix seconds: the time that the nodes of the DHT
    share, since a volunteer's own clock may be wrong.
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
        """By peer id, why it has no part in the run any more."""
        self.revoked: Mapping[bytes, str] = {}
        """By serial, why a pass is not good any more. Peers know of `banned` alone."""
        self._organiser = organiser
        self._clock = clock
        self._genuine: dict[bytes, Certificate] = {}

    def check(self, peer: str, certificate: bytes, enrolment: bytes) -> Pass | Certificate | None:
        """Let in `peer`, whom libp2p has authenticated. Returns what it has shown; None: it is a coordinator.

        Raises Stranger, Void.
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
            raise Void("your pass is of another run than the one that is hosted here now: ask for a new invite")
        if (why := self.revoked.get(shown.serial)) is not None:
            raise ShutOut(why)
        if self._clock() >= shown.expires_at:
            raise Void("your pass has expired: ask for a new invite")
