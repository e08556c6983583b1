"""Keeps messages that arrived too early: their pass is not open here yet, or the reduction has not begun."""

from __future__ import annotations

from collections.abc import Callable, Sized

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame, Message, ReducePart

LIMIT = 4096
LIMIT_BYTES = 256 << 20
"""Limit of the payloads, in bytes."""


class EarlyMessages:
    """Keeps a bounded number of messages. If a message does not fit, it is dropped; its receiver asks for it again
    later.

    When the buffer is full, the sender with the largest share of it loses its newest message. So one sender cannot
    displace all others.
    """

    def __init__(self) -> None:
        self.dropped = False
        """True if a message was dropped. The user of this class sets it back to False."""
        self._kept: list[tuple[Actor, Message]] = []
        self._number: dict[Actor, int] = {}
        self._bytes: dict[Actor, int] = {}

    def keep(self, sender: Actor, message: Message) -> None:
        self._kept.append((sender, message))
        self._count(sender, 1, _payload_bytes(message))
        while sum(self._bytes.values()) > LIMIT_BYTES:
            self._drop_newest_of_largest(self._bytes, sender)
        if len(self._kept) > LIMIT:
            self._drop_newest_of_largest(self._number, sender)

    def _drop_newest_of_largest(self, sizes: dict[Actor, int], sender: Actor) -> None:
        self.dropped = True
        largest = max(sizes, key=lambda actor: (sizes[actor], actor == sender))
        for i in reversed(range(len(self._kept))):
            actor, message = self._kept[i]
            size = _payload_bytes(message)
            if actor == largest and (size or sizes is self._number):
                del self._kept[i]
                self._count(actor, -1, -size)
                return

    def _count(self, sender: Actor, number: int, size: int) -> None:
        self._number[sender] = self._number.get(sender, 0) + number
        self._bytes[sender] = self._bytes.get(sender, 0) + size
        if not self._number[sender]:
            del self._number[sender], self._bytes[sender]

    def take(self) -> list[tuple[Actor, Message]]:
        """Return all kept messages in the order of arrival, and clear the buffer."""
        kept, self._kept = self._kept, []
        self._number.clear()
        self._bytes.clear()
        return kept

    def drop(self, void: Callable[[Message], bool]) -> None:
        for sender, message in self.take():
            if not void(message):
                self.keep(sender, message)


def _payload_bytes(message: Message) -> int:
    """Size of the payload in bytes. Payloads of the simulator have no size and count as 0."""
    payload = message.payload if isinstance(message, ReducePart | Frame) else None
    return len(payload) if isinstance(payload, Sized) else 0
