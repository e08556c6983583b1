"""What a member of a group of coordinators is asked by the organiser, until whoever leads has answered.

It is told to the leader again and again, and to the next one if that dies: by its name a request is one command.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.protocol.coordinator.io import ControlRequested
from swarm.protocol.ids import Actor

MOST = 64
"""Requests that wait for an answer; further ones are asked again by whoever asks."""


@dataclass(slots=True)
class Asked:
    event: ControlRequested
    origin: Actor | None
    """The member that was asked; None: this one."""
    since: float
    told_at: float = -math.inf


class ForwardedControls:
    def __init__(self, again_s: float, patience_s: float) -> None:
        """A request is told every `again_s`, and given up after `patience_s`."""
        self._again_s = again_s
        self._patience_s = patience_s
        self._asked: dict[str, Asked] = {}

    @property
    def next_at(self) -> float:
        return min((asked.told_at + self._again_s for asked in self._asked.values()), default=math.inf)

    def ask(self, event: ControlRequested, origin: Actor | None, now: float) -> None:
        known = self._asked.get(event.request)
        if known is not None:
            known.told_at = -math.inf
        elif len(self._asked) < MOST:
            self._asked[event.request] = Asked(event, origin, now)

    def again(self) -> None:
        """Somebody else leads: all is to be told at once."""
        for asked in self._asked.values():
            asked.told_at = -math.inf

    def due(self, now: float) -> list[ControlRequested]:
        """What is to be told now."""
        those = [asked for asked in self._asked.values() if now >= asked.told_at + self._again_s]
        for asked in those:
            asked.told_at = now
        return [asked.event for asked in those]

    def given_up(self, now: float) -> list[ControlRequested]:
        """Nobody has answered for so long. What others ask is forgotten: they tell it again."""
        late = [asked for asked in self._asked.values() if now >= asked.since + self._patience_s]
        for asked in late:
            if asked.origin is not None:
                del self._asked[asked.event.request]
        return [asked.event for asked in late if asked.origin is None]

    def answered(self, request: str) -> Asked | None:
        """It waits no more. None: it did not."""
        return self._asked.pop(request, None)
