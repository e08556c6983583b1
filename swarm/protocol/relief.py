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


def relief(busy: Mapping[Actor, Busy], idle: Sequence[float], promised: int = 0) -> dict[Actor, int]:
    """How many microbatches each busy replica is to give up; who is not named gives up none, and all keep one.

    `idle`: paces of those who have finished. `promised`: microbatches that others were asked for, and that are done
    first. Each microbatch goes from whoever would end last to whoever would be done with it first.
    """
    ends = [0.0] * len(idle)
    given = dict.fromkeys(busy, 0)
    latest = dict.fromkeys(busy, 0.0)
    open_ = set(busy) if idle else set()
    for _ in range(promised if idle else 0):
        taker = min(range(len(idle)), key=lambda i: ends[i] + idle[i])
        ends[taker] += idle[taker]
    while open_:
        giver = max((actor for actor in busy if actor in open_), key=lambda a: (busy[a].left - given[a]) * busy[a].pace)
        each = busy[giver]
        faster = [i for i, pace in enumerate(idle) if each.pace > SLOWER * pace]
        taker = min(faster, key=lambda i: ends[i] + idle[i], default=-1)
        kept = each.left - given[giver]
        if taker < 0 or min(kept - 1, each.movable - given[giver]) < 1 or ends[taker] + idle[taker] >= kept * each.pace:
            open_.discard(giver)
            continue
        ends[taker] += idle[taker]
        given[giver] += 1
        latest[giver] = ends[taker]

    def is_worth(actor: Actor) -> bool:
        each = busy[actor]
        return each.left * each.pace >= WORTH * max((each.left - given[actor]) * each.pace, latest[actor])

    return {actor: count for actor, count in given.items() if count and is_worth(actor)}
