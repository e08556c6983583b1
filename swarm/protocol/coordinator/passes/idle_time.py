"""Since when peers have had something to do and nothing came of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from swarm.protocol.ids import Actor

_Key = TypeVar("_Key", bound=Hashable)


class IdleTime:
    """Of one open pass. Two clocks an actor: some of what is left to it is there to be had; all of it is."""

    def __init__(self) -> None:
        self._some: dict[Actor, float] = {}
        self._all: dict[Actor, float] = {}

    def seen(self, actor: Actor, some: bool, everything: bool, now: float) -> tuple[float | None, float | None]:
        """How it stands now, and since when that was seen at all the times when this was asked."""
        for since, holds in ((self._some, some), (self._all, everything)):
            if holds:
                since.setdefault(actor, now)
            else:
                since.pop(actor, None)
        return self._some.get(actor), self._all.get(actor)

    def moved(self, actor: Actor) -> None:
        """Something came of it."""
        self._some.pop(actor, None)
        self._all.pop(actor, None)

    def excuse(self, seconds: float, now: float) -> None:
        """Time that counts against nobody."""
        self._some = excused(self._some, seconds, now)
        self._all = excused(self._all, seconds, now)


def excused(times: Mapping[_Key, float], seconds: float, now: float) -> dict[_Key, float]:
    """Moments from which something is counted, so much later, but none after `now`."""
    return {key: min(now, at + seconds) for key, at in times.items()}
