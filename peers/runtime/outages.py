"""Outages: reports undelivered messages to an actor once, and once more when the outage is over.

While a peer waits for its coordinator, a message fails every second or two, each for the same reason. The first
failure gets a line in the log; the others are counted, and reported when the state changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.protocol.ids import Actor

_MOST = 4096


@dataclass
class _Outage:
    reason: str
    untold: int = 0


class Outages:
    """Counts undelivered messages. `tell(actor, count, reason)`: called for a report that is worth a line in the log.

    Messages that are counted but not reported when the process ends are never reported.
    """

    def __init__(self, tell: Callable[[Actor, int, str], None]) -> None:
        self._tell = tell
        self._of: dict[Actor, _Outage] = {}

    def dropped(self, actor: Actor, count: int, reason: str) -> None:
        """Messages to an actor were given up."""
        outage = self._of.get(actor)
        if outage is not None:
            outage.untold += count
            return
        if len(self._of) >= _MOST:
            self._end(next(iter(self._of)), "and for other reasons meanwhile")
        self._of[actor] = _Outage(reason)
        self._tell(actor, count, reason)

    def up(self, actor: Actor) -> None:
        """The actor is reached again."""
        self._end(actor, "before it was reached again")

    def _end(self, actor: Actor, when: str) -> None:
        outage = self._of.pop(actor, None)
        if outage is not None and outage.untold:
            self._tell(actor, outage.untold, f"{when} ({outage.reason})")
