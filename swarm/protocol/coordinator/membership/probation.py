"""Peers that failed by their own fault: left out for longer each time, then tried with a single microbatch.

Whoever stalls, fails or disagrees in a step loses what it was given, and somebody does it again; a peer that accepts
work and never answers would otherwise be given its share in every step. What is not its fault is not counted: a broken
connection, a restart, a silence, since these end its part in a step by themselves, and the network may be to blame.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import PassId

MOST_STRIKES = 12
"""It is left out for 2^11 steps at most."""
REMEMBERED = 4096
"""Peers, those with the newest strikes."""


@dataclass(slots=True)
class _Record:
    strikes: int = 0
    until: int = 0
    """The step from which on it may be tried again."""
    struck_in: PassId | None = None


class Probation:
    """By peer, whatever its incarnation: a restart is not forgiveness."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def strike(self, peer: str, pass_id: PassId, strikes: int = 1) -> None:
        """It failed by its own fault in this pass: tried again in the next step, then after 2, 4, 8, … of them.

        Once a pass. With two `strikes` it stays away for as long as if it had failed before.
        """
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > REMEMBERED:
            del self._records[next(iter(self._records))]
        if record.struck_in == pass_id:
            return
        record.struck_in = pass_id
        record.strikes = min(MOST_STRIKES, record.strikes + strikes)
        record.until = pass_id.step + 2 ** (record.strikes - 1)

    def worked(self, peer: str, pass_id: PassId) -> None:
        """It did what it was given in a step that was decided: one strike is forgiven, if it is not of this pass."""
        record = self._records.get(peer)
        if record is None or record.struck_in == pass_id:
            return
        record.strikes -= 1
        record.until = 0
        if record.strikes <= 0:
            del self._records[peer]

    def is_benched(self, peer: str, step: int) -> bool:
        """It is to have no part in this step, if its stage has others."""
        record = self._records.get(peer)
        return record is not None and step < record.until

    def is_tried(self, peer: str) -> bool:
        """It is to be given one microbatch at most."""
        return peer in self._records

    def strikes(self, peer: str) -> int:
        record = self._records.get(peer)
        return 0 if record is None else record.strikes
