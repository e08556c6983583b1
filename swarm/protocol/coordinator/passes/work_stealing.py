"""What slow replicas of a stage give up in the midst of a step, so that all of it end together. A pure function.

Replicas of equal speed end a step at different moments; moving work between them costs a forward and gains nothing. So
work goes only from who takes `SLOWER` times as long as whoever takes over, and if what is left is done a third sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.protocol.ids import Actor

SLOWER = 1.5
"""How many times another's seconds per microbatch an actor takes before work is taken from it."""
WORTH = 1.5
"""How many times as long what an actor has left would take if it gave nothing up."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A replica that has not finished."""

    pace: float
    """Seconds of computing per microbatch."""
    left: int
    """Microbatches that it has not finished."""
    movable: int
    """How many of those may go to somebody else."""
    sends_s: float = 0.0
    """Seconds in which it sends its part of the sums, once it has finished."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A replica that has finished. If it takes something over, it sends its part of the sums again."""

    pace: float
    sends_s: float = 0.0

    @property
    def soonest(self) -> float:
        """Seconds until its part of the sums is sent, if it takes one microbatch over."""
        return self.pace + self.sends_s


def relief(busy: Mapping[Actor, Busy], idle: Sequence[Idle], promised: int = 0) -> dict[Actor, int]:
    """How many microbatches each busy replica is to give up; who is not named gives up none, and all keep one.

    `promised`: microbatches that others were asked for, and that are done first. Each microbatch goes from whoever
    would end last to whoever would have sent its part of the sums with it first.
    """
    if not idle:
        return {}
    computed = [0.0] * len(idle)
    given = dict.fromkeys(busy, 0)
    latest = dict.fromkeys(busy, 0.0)

    def sent_at(taker: int) -> float:
        """When its part would be sent with one more."""
        return computed[taker] + idle[taker].soonest

    def ends_at(giver: Actor, kept: int) -> float:
        return kept * busy[giver].pace + busy[giver].sends_s

    for _ in range(promised):
        taker = min(range(len(idle)), key=sent_at)
        computed[taker] += idle[taker].pace
    givers = list(busy)
    while givers:
        giver = max(givers, key=lambda a: ends_at(a, busy[a].left - given[a]))
        each = busy[giver]
        faster = [i for i, other in enumerate(idle) if each.pace > SLOWER * other.pace]
        kept, movable = each.left - given[giver], each.movable - given[giver]
        taker = min(faster, key=sent_at, default=-1)
        if taker < 0 or kept < 2 or movable < 1 or sent_at(taker) >= ends_at(giver, kept):
            givers.remove(giver)
            continue
        latest[giver] = sent_at(taker)
        computed[taker] += idle[taker].pace
        given[giver] += 1

    def is_worth(actor: Actor) -> bool:
        each = busy[actor]
        return ends_at(actor, each.left) >= WORTH * max(ends_at(actor, each.left - given[actor]), latest[actor])

    return {actor: count for actor, count in given.items() if count and is_worth(actor)}
