"""Limits how often one peer gets the same frame, part or sum in a pass, from another peer or from the coordinator.

A peer asks again for what it lacks, since a message may be lost. But each answer takes the uplink that all others need,
and an insider could ask for everything all the time.
"""

from __future__ import annotations

from collections import Counter

from swarm.protocol.ids import Actor, Key

MOST = 16
"""Largest number of answers. The deadline after which an honest peer asks again doubles each time, so it reaches this
number only if its connection breaks again and again within a step; then the coordinator does without it.
"""


class Answers:
    """The answers that one peer has sent in a pass."""

    def __init__(self) -> None:
        self._sent: Counter[tuple[Actor, Key]] = Counter()

    def allow(self, actor: Actor, key: Key) -> bool:
        """Count one more answer. Return False if the actor has had the largest number of them."""
        if self._sent[actor, key] >= MOST:
            return False
        self._sent[actor, key] += 1
        return True
