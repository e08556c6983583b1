"""The messages that wait on an outgoing channel, and the size of those that are relayed for others."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from swarm.net.wire import payload_of
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor


class RelayedBytes:
    """The payload bytes of relayed messages in all queues of one actor, by origin. Its own messages do not count."""

    def __init__(self, me: Actor) -> None:
        self._me = me
        self._of: Counter[Actor] = Counter()
        self.total = 0

    def of(self, origin: Actor) -> int:
        return self._of[origin]

    def queued(self, message: m.Message) -> None:
        """A message was queued."""
        self._add(message, 1)

    def left(self, message: m.Message) -> None:
        """A message has left its queue."""
        self._add(message, -1)

    def _add(self, message: m.Message, sign: int) -> None:
        if not isinstance(message, m.Relay) or message.origin == self._me:
            return
        nbytes = sign * payload_bytes(message)
        self.total += nbytes
        self._of[message.origin] += nbytes
        if not self._of[message.origin]:
            del self._of[message.origin]


class SendQueue:
    """The queue of one channel. `relayed` is kept up to date; None: nobody counts."""

    def __init__(self, relayed: RelayedBytes | None) -> None:
        self._relayed = relayed
        self._messages: deque[m.Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def first(self) -> m.Message | None:
        return self._messages[0] if self._messages else None

    def append(self, message: m.Message) -> None:
        self._messages.append(message)
        if self._relayed is not None:
            self._relayed.queued(message)

    def take(self) -> m.Message:
        """Remove the first message, and return it."""
        message = self._messages.popleft()
        self._left((message,))
        return message

    def remove(self, void: Callable[[m.Message], bool] = lambda message: True) -> tuple[m.Message, ...]:
        """Remove the messages for which `void` is true, and return them."""
        removed: list[m.Message] = []
        kept: deque[m.Message] = deque()
        for message in self._messages:
            (removed if void(message) else kept).append(message)
        self._messages = kept
        self._left(removed)
        return tuple(removed)

    def close(self) -> None:
        """Its messages will not be sent: they do not count any more."""
        self._left(self._messages)
        self._relayed = None

    def _left(self, messages: Iterable[m.Message]) -> None:
        if self._relayed is not None:
            for message in messages:
                self._relayed.left(message)


def payload_bytes(message: m.Message) -> int:
    """Size of the payload of a message; 0 if it has none."""
    payload = payload_of(message)
    return 0 if payload is None else memoryview(payload).nbytes
