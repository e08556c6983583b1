"""Notices addresses that flood the libp2p daemon with connections, and keeps their connections away for a while.

The daemon has no limit for one address, and each connection costs it several milliseconds of CPU before this program
hears of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from swarm.net.addresses import components
from swarm.net.callers import Callers, Connection, Flood, accepted_so_far, connections
from swarm.net.diversion import MOST_BLOCKS, Block, Diversion

LOOK_EVERY_S = 1.0
"""Seconds between two looks at the number of connections that the machine has accepted."""
MANY = 20
"""Number of connections that the machine accepts before the guard looks where they come from."""
SHARE = 0.01
"""Largest share of a core for finding this out. It takes longer on machines with much memory or many connections."""
LOOK_AT_LEAST_EVERY_S = 10.0
"""Seconds after which the guard looks again, however long it takes."""
BLOCKED_S, MOST_BLOCKED_S = 60.0, 480.0
"""Seconds for which an address that floods can make no connection: the first time, and at most. They double each
time.
"""


FloodListener = Callable[[Flood, float, str], None]
"""Called with each flood and with the seconds for which its block can make no connection. The text says why it cannot
be blocked; empty: it is blocked.
"""


def _ignore(_flood: Flood, _blocked_s: float, _why_not: str) -> None: ...


class FloodGuard:
    """Guards the daemon of a host until `close`."""

    def __init__(self, listen: Sequence[str], callers: Callers | None = None) -> None:
        """`listen`: the multiaddresses at which the daemon listens, each with its port."""
        parts = [dict(components(address)) for address in listen]
        where = [(p.get("ip4") or p["ip6"], int(p["tcp"])) for p in parts if "tcp" in p and ("ip4" in p or "ip6" in p)]
        self.on_flood: FloodListener = _ignore
        self._ports = {port for _, port in where}
        self._callers = callers or Callers()
        self._diversion = Diversion(where)
        self._until: dict[Block, float] = {}
        """For each block that is kept away: until when, by time.monotonic."""

    async def watch(self) -> None:
        """Look again and again. Returns only if this system does not tell its connections."""
        accepted = -MANY
        try:
            while True:
                took_s = 0.0
                floods: list[Flood] = []
                if (now_accepted := accepted_so_far()) - accepted >= MANY:
                    accepted = now_accepted
                    present, took_s = await asyncio.to_thread(self._present)
                    floods = self._callers.look(present, time.monotonic())
                self._block(floods, time.monotonic())
                await asyncio.sleep(max(LOOK_EVERY_S, min(took_s / SHARE, LOOK_AT_LEAST_EVERY_S)))
        except (OSError, ValueError):  # no such tables, or others than Linux has
            return

    def close(self) -> None:
        self._diversion.close()

    def _present(self) -> tuple[frozenset[Connection], float]:
        """The connections, and the seconds of CPU that it took to find them. Raises OSError."""
        began = time.thread_time()
        return connections(self._ports), time.thread_time() - began

    def _block(self, floods: Sequence[Flood], now: float) -> None:
        passed = [block for block, until in self._until.items() if until <= now]
        for block in passed:
            del self._until[block]
        for flood in floods:
            self._until[flood.block] = now + blocked_s(flood)
        if not floods and not passed:
            return
        newest = sorted(self._until, key=self._until.__getitem__, reverse=True)[:MOST_BLOCKS]
        why_not = ""
        try:
            self._diversion.divert(newest)
        except OSError as error:
            why_not = error.strerror or str(error)
        for flood in floods:
            self.on_flood(flood, blocked_s(flood), why_not)


def blocked_s(flood: Flood) -> float:
    """Seconds for which a block can make no connection after a flood."""
    return float(min(BLOCKED_S * 2 ** (flood.times - 1), MOST_BLOCKED_S))
