"""Bursts: what a peer sends to its neighbours in a step after a pause, and when it will do so in the next step.

Steps resemble each other. So a burst of the next step is expected as large as in the last step, and as early as in any
of the last steps. Two bursts matter of each kind of data: the first one, and the last one if a pause precedes it. The
pipeline waits for both, while it fills and while it drains. Between them, a slow frame delays nothing, because other
microbatches are under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swarm.protocol.ids import Actor
from swarm.protocol.messages import PADDED_KINDS

FORWARD, BACKWARD, SUMS = range(len(PADDED_KINDS))


class Way(NamedTuple):
    """The data of one kind for one actor. `kind`: an index into PADDED_KINDS. `last`: the last burst of a step instead
    of the first.
    """

    actor: Actor
    kind: int
    last: bool


@dataclass(frozen=True, slots=True)
class Burst:
    """An expected burst. `after_s`: seconds from the opening of the step. `beside`: number of bursts of this kind, for
    several actors; they may leave at the same time.
    """

    way: Way
    after_s: float
    nbytes: int
    beside: int = 1


@dataclass(slots=True)
class _Sent:
    """The data of one kind that was sent to one actor in a step. Times are seconds from the opening."""

    first_s: float
    first_bytes: int
    count: int = 1
    last_s: float = 0.0
    last_bytes: int = 0
    rested: bool = False
    """Whether a pause preceded the last message."""


class StepBursts:
    """The bursts of one step."""

    def __init__(self) -> None:
        self._sent: dict[tuple[Actor, int], _Sent] = {}

    def note(self, actor: Actor, kind: int, nbytes: int, after_s: float, rested: bool) -> None:
        """Note a message. `rested`: whether the connection has paused."""
        sent = self._sent.get((actor, kind))
        if sent is None:
            self._sent[actor, kind] = _Sent(after_s, nbytes)
        elif kind == SUMS:
            sent.first_bytes += nbytes  # the parts leave together
        else:
            sent.count += 1
            sent.last_s, sent.last_bytes, sent.rested = after_s, nbytes, rested

    def count(self, actor: Actor, kind: int) -> int:
        """The number of messages that were noted."""
        sent = self._sent.get((actor, kind))
        return 0 if sent is None else sent.count

    def bursts(self) -> dict[Way, Burst]:
        found = {}
        for (actor, kind), sent in self._sent.items():
            way = Way(actor, kind, last=False)
            found[way] = Burst(way, sent.first_s, sent.first_bytes)
            if sent.rested:
                way = Way(actor, kind, last=True)
                found[way] = Burst(way, sent.last_s, sent.last_bytes)
        return found


def expected(steps: Sequence[StepBursts]) -> list[Burst]:
    """The bursts of the next step. `steps`: the last ones; the newest is last."""
    if not steps:
        return []
    *older, newest = (step.bursts() for step in steps)
    beside = Counter((way.kind, way.last) for way in newest)
    return [
        Burst(
            way,
            min(step[way].after_s for step in (newest, *older) if way in step),
            burst.nbytes,
            beside[way.kind, way.last],
        )
        for way, burst in newest.items()
    ]
