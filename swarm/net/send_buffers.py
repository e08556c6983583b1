"""Keeps the kernel's send buffers of the daemon's connections small (TCP_NOTSENT_LOWAT, Linux 3.12).

Linux lets a connection queue up to 4 MB of data. All streams to a peer share one connection, so an urgent message waits
behind that queue. And if a line becomes slow or loses packets, the queue breaks the connection: a full buffer accepts
data again only after a third of it has left, and the daemon's multiplexer (yamux) closes a connection whose write takes
longer than 10 s. With 4 MB queued, that is any line below 140 kB/s.

libp2p sets no such limit, and only root can change the kernel's default. But a process may work on its child's sockets
(child_sockets.py). Where that is forbidden, the buffers stay as the system has them.
"""

from __future__ import annotations

import asyncio
import socket

from swarm.net.child_sockets import names, no_descriptor, tcp_sockets

UNSENT = 32 << 10
"""Bytes of a connection that may wait in the kernel before they are sent for the first time. With fewer, the daemon
would have to refill buffers more often; a transfer on one machine has the same rate with 16 KiB as without a limit.
"""
LOOK_EVERY_S = 1.0
"""Seconds between two looks for new connections: a new connection takes longer to fill its buffer on a slow line."""

NOTSENT_LOWAT = 25  # TCP_NOTSENT_LOWAT of linux/tcp.h; the socket module has it from Python 3.12 on


class SendBuffers:
    """Limits the send buffers of all TCP connections of one process, which must be a child of this process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: frozenset[str] = frozenset()
        """The names of all sockets of the last look."""
        self.refused = ""
        """Why this system does not allow it: not Linux, an old kernel, or forbidden. Empty: it does, or `watch` has not
        begun.
        """

    async def watch(self, every_s: float = LOOK_EVERY_S) -> None:
        """Limit each new connection. Returns only if this system does not allow it, or when the process has ended."""
        while True:
            try:
                self.limit()
            except AttributeError:
                self.refused = "this Python has no os.pidfd_open"
                return
            except OSError as error:
                if not no_descriptor(error):
                    self.refused = error.strerror or str(error)
                    return
                self._seen = frozenset()
            await asyncio.sleep(every_s)

    def limit(self) -> int:
        """Limit the connections that are new since the last call. Returns their number.

        A listening socket passes its limit on to the connections that it accepts. Raises OSError if this system does
        not allow it or if the process has ended.
        """
        present = names(self._pid)
        new = [fd for fd, name in present.items() if name not in self._seen]
        self._seen = frozenset(present.values())
        limited = 0
        for found in tcp_sockets(self._pid, new):
            found.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT)
            limited += 1
        return limited
