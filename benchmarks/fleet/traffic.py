"""Counts what crossed the fleet's internet: messages and bytes by kind, to and from the coordinator and between
peers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from swarm.protocol.messages import Message

FROM, TO, BETWEEN = "from the coordinator", "to the coordinator", "between peers"


@dataclass(slots=True)
class Count:
    messages: int = 0
    nbytes: int = 0
    largest: int = 0

    def add(self, nbytes: int) -> None:
        self.messages += 1
        self.nbytes += nbytes
        self.largest = max(self.largest, nbytes)


class TrafficCount:
    """The counts: `counts[way, kind of message]`."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Count] = defaultdict(Count)

    def add(self, from_coordinator: bool, to_coordinator: bool, message: Message, nbytes: int) -> None:
        way = FROM if from_coordinator else TO if to_coordinator else BETWEEN
        self.counts[way, type(message).__name__].add(nbytes)

    def bulk(self, nbytes: int) -> None:
        self.counts[BETWEEN, "state"].add(nbytes)

    def control(self) -> Count:
        """Messages and bytes of control between the coordinator and its peers, both ways. Tokens are not control."""
        found = Count()
        for (way, kind), count in self.counts.items():
            if way in (FROM, TO) and kind != "Frame":
                found.messages += count.messages
                found.nbytes += count.nbytes
                found.largest = max(found.largest, count.largest)
        return found
