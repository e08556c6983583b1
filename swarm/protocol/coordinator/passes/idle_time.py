"""Measures for how long peers have had work without making progress."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from swarm.protocol.ids import Actor

_Key = TypeVar("_Key", bound=Hashable)


class IdleTime:
    """The clocks of one open pass. Each actor has two. One runs while at least one of its inputs is available, the
    other while all of them are.
    """

    def __init__(self) -> None:
        self._some: dict[Actor, float] = {}
        self._all: dict[Actor, float] = {}

    def seen(self, actor: Actor, some: bool, everything: bool, now: float) -> tuple[float | None, float | None]:
        """Record whether `some` inputs or all inputs (`everything`) are available. Return since when each of the two is
        so.
        """
        for since, holds in ((self._some, some), (self._all, everything)):
            if holds:
                since.setdefault(actor, now)
            else:
                since.pop(actor, None)
        return self._some.get(actor), self._all.get(actor)

    def moved(self, actor: Actor) -> None:
        """The actor has made progress."""
        self._some.pop(actor, None)
        self._all.pop(actor, None)

    def excuse(self, seconds: float, now: float) -> None:
        """Shift all clocks by these seconds, so that this time counts against no actor."""
        self._some = excused(self._some, seconds, now)
        self._all = excused(self._all, seconds, now)


def excused(times: Mapping[_Key, float], seconds: float, now: float) -> dict[_Key, float]:
    """Shift the start times by `seconds`, but none beyond `now`."""
    return {key: min(now, at + seconds) for key, at in times.items()}
