"""Chooses the microbatches that slow replicas of a stage give up during a step, so that all finish together. A pure
function.

Replicas of equal speed finish a step at different times, but moving work between them costs a forward and gains
nothing. So work moves only from a replica that takes `SLOWER` times as long per microbatch as the taker, and only if
the remaining work is then done a third sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.protocol.ids import Actor

SLOWER = 1.5
"""Work is taken from a replica only if its seconds per microbatch exceed the taker's by this factor."""
WORTH = 1.5
"""A move is worth it if the remaining time without it is at least this multiple of the remaining time with it."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A replica that has not finished."""

    pace: float
    """Seconds of computing per microbatch."""
    left: int
    """Number of microbatches that it has not finished."""
    movable: int
    """Number of them that may move to another replica."""
    sends_s: float = 0.0
    """Seconds that it needs to send its part of the sums once it has finished."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A replica that has finished. If it takes over work, it sends its part of the sums again."""

    pace: float
    sends_s: float = 0.0

    @property
    def soonest(self) -> float:
        """Seconds until it has sent its part of the sums, if it takes over one microbatch."""
        return self.pace + self.sends_s


def relief(busy: Mapping[Actor, Busy], idle: Sequence[Idle], promised: int = 0) -> dict[Actor, int]:
    """The number of microbatches that each busy replica should give up. Each replica keeps at least one. Replicas that
    give up nothing are not in the result.

    `promised`: the number of microbatches that other replicas were already asked to give up. The idle replicas compute
    these first. Then, one microbatch at a time moves from the replica that would finish last to the replica that would
    have sent its part of the sums first.
    """
    if not idle:
        return {}
    computed = [0.0] * len(idle)
    given = dict.fromkeys(busy, 0)
    latest = dict.fromkeys(busy, 0.0)

    def sent_at(taker: int) -> float:
        """The time at which it would have sent its part of the sums, if it took one more microbatch."""
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
