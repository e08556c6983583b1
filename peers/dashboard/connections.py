"""The viewers' connections: how many there may be, and how long one may do nothing.

If all places are taken, a new connection takes the place of another one of the address that has the most connections.
So no host can keep out others, and a connection that waits for a request keeps out nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 512
REQUEST_S = 10.0
"""Seconds until a request must be complete, from its first byte. For the first request, from the connection's start."""
KEEP_ALIVE_S = 30
"""Seconds for which a connection may wait for its next request."""
UNREAD_S = 20.0
"""Seconds after which a connection is dropped if its viewer reads nothing of an answer."""
_LOOK_EVERY_S = 1.0
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b'content-length: 58\r\nretry-after: 10\r\n\r\n{"error": "too many connections: ask again in a moment"}\r\n'
)


class Connections:
    """All connections of a server. `run` drops those that do nothing, until it is cancelled."""

    def __init__(self, most: int = MOST_CONNECTIONS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self.clock = clock
        """Seconds of a clock that nobody sets."""
        self._all: dict[Connection, None] = {}  # the oldest comes first

    def __len__(self) -> int:
        return len(self._all)

    def protocol(self, **parts: Any) -> Connection:
        """A new connection, as uvicorn makes it."""
        return Connection(self, **parts)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.drop_stuck()

    def drop_stuck(self) -> None:
        now = self.clock()
        for each in list(self._all):
            if each.is_stuck(now):
                each.drop()

    def admit(self, new: Connection) -> bool:
        """Add a connection. False: there is no place for it."""
        self._all[new] = None
        if len(self._all) <= self._most:
            return True
        counts = Counter(each.address for each in self._all)
        greediest, most = counts.most_common(1)[0]
        of_it = [each for each in self._all if each.address == greediest and each is not new]
        waiting = [each for each in of_it if each.is_waiting]
        if waiting:
            leaver = min(waiting, key=lambda each: each.waits_since)
        elif most > counts[new.address]:
            leaver = of_it[-1]
        else:
            del self._all[new]
            return False
        leaver.drop()
        return True

    def forget(self, connection: Connection) -> None:
        self._all.pop(connection, None)


class Connection(H11Protocol):
    """One connection. Also counts for how long it waits for its viewer."""

    def __init__(self, connections: Connections, **parts: Any) -> None:
        super().__init__(**parts)
        self._connections = connections
        self.address = ""
        """The viewer's host, as `host_of` tells it."""
        self.waits_since = connections.clock()
        """The time at which it was opened, or its last request was complete."""
        self._asked_at: float | None = None
        """The time since which a request is incomplete. None: none is."""
        self._unread = 0
        self._unread_since = 0.0
        """Bytes that the viewer did not read yet, and the time since which it has read none of them."""

    @property
    def is_waiting(self) -> bool:
        """True if no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = host_of(self.client[0] if self.client else "")
        self.waits_since = self._asked_at = self._connections.clock()
        if not self._connections.admit(self):
            transport.write(_REFUSAL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        incomplete = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not incomplete:
            self._asked_at, self.waits_since = None, self._connections.clock()
        elif self._asked_at is None and (self.timeout_keep_alive_task is None or self.conn.trailing_data[0]):
            self._asked_at = self._connections.clock()

    def is_stuck(self, now: float) -> bool:
        """True if the viewer takes too long with its request, or does not read its answer."""
        if self._asked_at is not None and now - self._asked_at > REQUEST_S:
            return True
        unread = self.transport.get_write_buffer_size()
        writes = not (self.flow.write_paused or self.transport.is_closing() or self.is_waiting)
        if writes or not self._unread or unread < self._unread:
            self._unread_since = now
        self._unread = unread
        return now - self._unread_since > UNREAD_S

    def drop(self) -> None:
        self._connections.forget(self)
        self.transport.abort()


def host_of(address: str) -> str:
    """What counts as one host: an IPv4 address, or the 64 bits of an IPv6 address that name a network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
