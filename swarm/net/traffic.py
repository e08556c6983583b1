"""Counts the bytes that an actor sends and receives, by kind and by receiver."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from swarm.net.handshake import Channel
from swarm.protocol.ids import Actor

MOST_COUNTED = 4096
"""Largest number of actors whose bytes are counted separately between two calls of `take_sent`."""
PADDING = "padding"
_KINDS = (*(channel.value for channel in Channel), PADDING)
_BY_LINK_KIND = ("activation", "gradient", "reduce", "bulk", PADDING, "control")
"""The kinds, in the order in which LINK_KINDS names them."""


@dataclass(frozen=True)
class Traffic:
    """Bytes by kind since the start, with framing, without handshakes. The kinds are the channels, and PADDING."""

    sent: dict[str, int]
    received: dict[str, int]


class TrafficMeter:
    """Counts the bytes of one actor."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._sent_to: dict[Actor, Counter[str]] = {}
        """Bytes sent to each actor since the last call of `take_sent`."""

    def sent(self, actor: Actor, kind: str, nbytes: int) -> None:
        self._sent[kind] += nbytes
        counts = self._sent_to.get(actor)
        if counts is None:
            if len(self._sent_to) >= MOST_COUNTED:
                return  # `take_sent` is not being called
            counts = self._sent_to[actor] = Counter()
        counts[kind] += nbytes

    def received(self, kind: str, nbytes: int) -> None:
        self._received[kind] += nbytes

    def take_sent(self, most: int) -> dict[Actor, tuple[int, ...]]:
        """Bytes sent since the last call to the `most` actors that got the most data: {actor: bytes by LINK_KINDS}."""
        taken, self._sent_to = self._sent_to, {}
        sent = {actor: tuple(counts[kind] for kind in _BY_LINK_KIND) for actor, counts in taken.items()}
        largest = sorted(sent, key=lambda actor: (-sum(sent[actor][:-1]), -sent[actor][-1], actor))[:most]
        return {actor: sent[actor] for actor in largest}

    def total(self) -> Traffic:
        return Traffic({kind: self._sent[kind] for kind in _KINDS}, {kind: self._received[kind] for kind in _KINDS})
