"""Probation: a peer that failed by its own fault gets no work for some steps, then a single microbatch as a trial.

If a peer stalls, fails or disagrees in a step, other peers must do its work again. Without probation, a peer that
accepts work and never answers would get its share in every step. Broken connections, restarts and silence do not count:
they end the peer's part in the step anyway, and the network may be the cause. `Delays` counts the time for which others
had waited for the peer. A peer is left out for longer after each failure.

A single broken device of a person affects only that device. If a second device of the person fails too, all devices of
that person wait as long as the one that waits longest (`People`). Otherwise each further device would get its own
trial.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import PassId

MOST_STRIKES = 12
LONGEST = 2 ** (MOST_STRIKES - 1)
"""Upper bounds of the strikes, and of the steps for which a peer is left out."""
REMEMBERED = 4096
"""Number of peers whose strikes are kept: those struck last."""
DEVICES = 2
"""If this number of a person's devices have strikes, the strikes count for all devices of the person."""


@dataclass(slots=True)
class _Record:
    strikes: int = 0
    until: int = 0
    """The first step in which the peer may get work again."""
    struck_in: PassId | None = None


class Probation:
    """The strikes of each peer id. They hold for all its incarnations, so a restart does not clear them."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._records: dict[str, _Record] = {}

    def strike(self, peer: str, pass_id: PassId, strikes: int = 1) -> None:
        """The peer failed by its own fault in this pass. It is tried again in the next step, then after 2, 4, 8, …
        steps.

        At most one call per pass counts. With two `strikes`, the peer stays away as long as if it had failed once
        before. With none, it stays away as long as the last time.
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

    def hold(self, peer: str, pass_id: PassId, strikes: int, steps: int = 0) -> int:
        """The peer delays the run: it has at least so many strikes from now on (at least one). It is left out
        accordingly, but of at least `steps` steps after that of the pass. Return the number of steps.
        """
        self.strike(peer, pass_id, max(strikes - self.strikes(peer), 0))
        record = self._records[peer]
        record.strikes = min(MOST_STRIKES, max(record.strikes, strikes, 1))
        left_out = max(2 ** (record.strikes - 1), min(steps + 1, LONGEST))
        record.until = max(record.until, pass_id.step + left_out)
        return record.until - pass_id.step - 1

    def worked(self, peer: str, pass_id: PassId) -> None:
        """The peer did its work in a decided step. Remove one strike, unless the peer was struck in this pass."""
        record = self._records.get(peer)
        if record is None or record.struck_in == pass_id:
            return
        record.strikes -= 1
        record.until = 0
        if record.strikes <= 0:
            del self._records[peer]

    def is_benched(self, peer: str, step: int) -> bool:
        """Return True if the peer gets no work in this step, provided that its stage has other peers."""
        return any(step < record.until for record in self._of_person(peer))

    def is_tried(self, peer: str) -> bool:
        """Return True if the peer is on trial: it gets at most one microbatch."""
        return bool(self._of_person(peer))

    def strikes(self, peer: str) -> int:
        return max((record.strikes for record in self._of_person(peer)), default=0)

    def _of_person(self, peer: str) -> list[_Record]:
        """The strikes that count for a peer: its own, or those of all devices of its person if several of them have
        strikes.
        """
        own, person = self._records.get(peer), self._people.of(peer)
        if not self._records or person == peer:
            return [] if own is None else [own]
        found = {each: record for each, record in self._records.items() if self._people.of(each) == person}
        if len(found) >= DEVICES:
            return list(found.values())
        return [] if own is None else [own]
