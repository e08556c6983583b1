"""Keeps messages that arrived too early: their pass is not open here yet, or the reduction has not begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame, Message, ReducePart

LIMIT = 4096
LIMIT_BYTES = 256 << 20
"""Limit of the payloads, in bytes."""
MEMBER_BYTES = 32 << 20
"""Limit of the payloads of one member before a pass is open here, in bytes. It may be any member, because the siblings
in that pass are not known yet. An honest sibling sends parts only when it has computed its whole share of the step. By
then, the pass has usually been open here for a long time.
"""


class EarlyMessages:
    """Keeps a bounded number of messages. If a message does not fit, it is dropped; its receiver asks for it again
    later.

    Each sender has a share of the bytes, so one sender cannot fill the buffer. If it is full nevertheless, the sender
    that uses the largest part of its share loses its newest message. So senders cannot displace one that uses less.
    """

    def __init__(self) -> None:
        self.dropped: set[Actor] = set()
        """The senders of dropped messages. The user of this class empties it."""
        self._kept: list[tuple[Actor, Message]] = []
        self._number: dict[Actor, int] = {}
        self._bytes: dict[Actor, int] = {}
        self._shares: dict[Actor, int] = {}

    def keep(self, sender: Actor, message: Message, share: int) -> None:
        """Keep a message. `share`: bytes that all messages of this sender may take, at least 1."""
        share = min(share, LIMIT_BYTES)
        self._kept.append((sender, message))
        self._shares[sender] = share
        self._count(sender, 1, size := _payload_bytes(message))
        if size and self._bytes[sender] > share:
            self._drop_newest(sender, with_payload=True)
        while sum(self._bytes.values()) > LIMIT_BYTES:
            used = {actor: nbytes / self._shares[actor] for actor, nbytes in self._bytes.items()}
            self._drop_newest(_largest(used, sender), with_payload=True)
        if len(self._kept) > LIMIT:
            self._drop_newest(_largest(self._number, sender), with_payload=False)

    def _drop_newest(self, whose: Actor, with_payload: bool) -> None:
        """Drop the newest message of a sender; `with_payload`: the newest that has a payload."""
        self.dropped.add(whose)
        for i in reversed(range(len(self._kept))):
            actor, message = self._kept[i]
            size = _payload_bytes(message)
            if actor == whose and (size or not with_payload):
                del self._kept[i]
                self._count(actor, -1, -size)
                return

    def _count(self, sender: Actor, number: int, size: int) -> None:
        self._number[sender] = self._number.get(sender, 0) + number
        self._bytes[sender] = self._bytes.get(sender, 0) + size
        if not self._number[sender]:
            del self._number[sender], self._bytes[sender], self._shares[sender]

    def take(self) -> list[tuple[Actor, Message]]:
        """Return all kept messages in the order of arrival, and clear the buffer."""
        kept, self._kept = self._kept, []
        self._number.clear()
        self._bytes.clear()
        self._shares.clear()
        return kept

    def drop(self, void: Callable[[Message], bool]) -> None:
        shares = dict(self._shares)
        for sender, message in self.take():
            if not void(message):
                self.keep(sender, message, shares[sender])


def _largest(sizes: Mapping[Actor, float], newest: Actor) -> Actor:
    """The sender with the largest size. If several have it, `newest` if it is one of them."""
    return max(sizes, key=lambda actor: (sizes[actor], actor == newest))


def _payload_bytes(message: Message) -> int:
    """Size of the payload in bytes. Payloads of the simulator have no size and count as 0."""
    payload = message.payload if isinstance(message, ReducePart | Frame) else None
    return len(payload) if isinstance(payload, Sized) else 0
