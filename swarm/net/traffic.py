"""Counts the bytes that an actor sends and receives, by channel and by receiver."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from swarm.net.handshake import Channel
from swarm.protocol.ids import Actor

MOST_COUNTED = 4096
"""Largest number of actors whose bytes are counted separately between two calls of `take_sent`."""
BY_LINK_KIND = (Channel.ACTIVATION, Channel.GRADIENT, Channel.REDUCE, Channel.BULK, Channel.CONTROL)
"""The channels, in the order in which LINK_KINDS names their traffic."""


@dataclass(frozen=True)
class Traffic:
    """Bytes by channel since the start, with framing, without handshakes."""

    sent: dict[str, int]
    received: dict[str, int]


class TrafficMeter:
    """Counts the bytes of one actor."""

    def __init__(self) -> None:
        self._sent: Counter[Channel] = Counter()
        self._received: Counter[Channel] = Counter()
        self._sent_to: dict[Actor, Counter[Channel]] = {}
        """Bytes sent to each actor since the last call of `take_sent`."""

    def sent(self, actor: Actor, channel: Channel, nbytes: int) -> None:
        self._sent[channel] += nbytes
        counts = self._sent_to.get(actor)
        if counts is None:
            if len(self._sent_to) >= MOST_COUNTED:
                return  # `take_sent` is not being called
            counts = self._sent_to[actor] = Counter()
        counts[channel] += nbytes

    def received(self, channel: Channel, nbytes: int) -> None:
        self._received[channel] += nbytes

    def take_sent(self, most: int) -> dict[Actor, tuple[int, ...]]:
        """Bytes sent since the last call to the `most` actors that got the most data: {actor: bytes by LINK_KINDS}."""
        taken, self._sent_to = self._sent_to, {}
        sent = {actor: tuple(counts[channel] for channel in BY_LINK_KIND) for actor, counts in taken.items()}
        largest = sorted(sent, key=lambda actor: (-sum(sent[actor][:-1]), -sent[actor][-1], actor))[:most]
        return {actor: sent[actor] for actor in largest}

    def total(self) -> Traffic:
        sent = {channel.value: self._sent[channel] for channel in Channel}
        return Traffic(sent, {channel.value: self._received[channel] for channel in Channel})
