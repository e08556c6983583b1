"""Requests of the organiser to one member of a group of coordinators, kept until the leader has answered.

The member sends a request to the leader repeatedly, and to the next leader if that one dies. Because every request has
an id, its repetitions cause only one command.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.protocol.coordinator.io import ControlRequested
from swarm.protocol.ids import Actor

MOST = 64
"""Number of requests that may wait for an answer."""


@dataclass(slots=True)
class Asked:
    event: ControlRequested
    origin: Actor | None
    """The member that received the request from the organiser. None: this member."""
    since: float
    told_at: float = -math.inf


class ForwardedControls:
    def __init__(self, again_s: float, patience_s: float) -> None:
        """A request is sent every `again_s` seconds, and abandoned after `patience_s` seconds."""
        self._again_s = again_s
        self._patience_s = patience_s
        self._asked: dict[str, Asked] = {}

    @property
    def next_at(self) -> float:
        return min((asked.told_at + self._again_s for asked in self._asked.values()), default=math.inf)

    def ask(self, event: ControlRequested, origin: Actor | None, now: float) -> bool:
        """Keep a request until it is answered. Return False if too many requests wait: then it is not kept."""
        known = self._asked.get(event.request)
        if known is not None:
            known.told_at = -math.inf
        elif len(self._asked) < MOST:
            self._asked[event.request] = Asked(event, origin, now)
        else:
            return False
        return True

    def again(self) -> None:
        """Another member leads. Send all requests at once."""
        for asked in self._asked.values():
            asked.told_at = -math.inf

    def due(self, now: float) -> list[ControlRequested]:
        """The requests to send now."""
        those = [asked for asked in self._asked.values() if now >= asked.told_at + self._again_s]
        for asked in those:
            asked.told_at = now
        return [asked.event for asked in those]

    def given_up(self, now: float) -> list[ControlRequested]:
        """This member's own requests without an answer for `patience_s`. Late requests of other members are dropped."""
        late = [asked for asked in self._asked.values() if now >= asked.since + self._patience_s]
        for asked in late:
            if asked.origin is not None:
                del self._asked[asked.event.request]
        return [asked.event for asked in late if asked.origin is None]

    def answered(self, request: str) -> Asked | None:
        """A request is answered. Stop repeating it. Return None if it was not waiting."""
        return self._asked.pop(request, None)
