"""Peers that failed by their own fault: left out for longer each time, then tried with a single microbatch.

A peer that stalls, fails or disagrees in a step loses its work, and other peers do it again. Without probation, a peer
that accepts work and never answers would get its share in every step. A broken connection, a restart and a silence do
not count: they end the peer's part in the step by themselves, and the network may be the cause.

One device of a person may be broken. When a second one fails too, all of that person's devices wait as long as the one
that waits longest (`People`): else each further device would be another first try.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import PassId

MOST_STRIKES = 12
"""A peer is left out for 2^11 steps at most."""
REMEMBERED = 4096
"""Number of peers kept, those with the newest strikes."""
DEVICES = 2
"""When so many devices of a person have strikes, all have."""


@dataclass(slots=True)
class _Record:
    strikes: int = 0
    until: int = 0
    """The step from which on the peer may be tried again."""
    struck_in: PassId | None = None


class Probation:
    """Strikes by peer id, for all incarnations: a restart clears nothing."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._records: dict[str, _Record] = {}

    def strike(self, peer: str, pass_id: PassId, strikes: int = 1) -> None:
        """The peer failed by its own fault in this pass: try it again in the next step, then after 2, 4, 8, … steps.

        It counts once per pass. With two `strikes` it stays away as long as if it had failed once before.
        """
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > REMEMBERED:
            del self._records[next(iter(self._records))]
        if record.struck_in == pass_id:
            return
        before = [each.strikes for each in self._of_person(peer) if each.struck_in != pass_id]
        record.struck_in = pass_id
        record.strikes = min(MOST_STRIKES, max([record.strikes, *before]) + strikes)
        record.until = pass_id.step + 2 ** (record.strikes - 1)

    def worked(self, peer: str, pass_id: PassId) -> None:
        """The peer did its work in a decided step: remove one strike, unless it was struck in this pass."""
        record = self._records.get(peer)
        if record is None or record.struck_in == pass_id:
            return
        record.strikes -= 1
        record.until = 0
        if record.strikes <= 0:
            del self._records[peer]

    def is_benched(self, peer: str, step: int) -> bool:
        """Return True if it has no part in this step, if its stage has other peers."""
        return any(step < record.until for record in self._of_person(peer))

    def is_tried(self, peer: str) -> bool:
        """Return True if it gets at most one microbatch."""
        return bool(self._of_person(peer))

    def strikes(self, peer: str) -> int:
        return max((record.strikes for record in self._of_person(peer)), default=0)

    def _of_person(self, peer: str) -> list[_Record]:
        """The records that count for a peer: its own, or those of all of its person's devices if several have one."""
        own, person = self._records.get(peer), self._people.of(peer)
        if not self._records or person == peer:
            return [] if own is None else [own]
        found = {each: record for each, record in self._records.items() if self._people.of(each) == person}
        if len(found) >= DEVICES:
            return list(found.values())
        return [] if own is None else [own]
