"""Decides which faults are due as the swarm's event logs grow. Pure: events and times are arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from peers.chaos.fault import PlannedFault
from swarm.events import Event, PassOpened


@dataclass(slots=True)
class _Pending:
    fault: PlannedFault
    since: float | None
    """The time from which events count. None: it has not come yet."""
    seen: int = 0
    due_at: float | None = None


class Schedule:
    """The faults of one play. Call `see` with every event of every host, in order. `due` returns the faults that must
    happen now; then call `struck`.
    """

    def __init__(self, faults: Iterable[PlannedFault], actors: Callable[[str], frozenset[str]]) -> None:
        self._actors = actors
        self._pending = [_Pending(fault, None if fault.when.after is not None else 0.0) for fault in faults]
        self._opened: float | None = None

    @property
    def waiting(self) -> list[PlannedFault]:
        return [pending.fault for pending in self._pending]

    def see(self, host: str, event: Event, at: float) -> None:
        if self._opened is None and isinstance(event, PassOpened) and event.pass_kind == "train":
            self._opened = at
        for pending in self._pending:
            sight = pending.fault.when.sight
            if sight is None or pending.due_at is not None or pending.since is None or at < pending.since:
                continue
            if (host == sight.of or sight.is_of_group(host)) and sight.matches(event, self._actors):
                pending.seen += 1
                if pending.seen == pending.fault.when.count:
                    pending.due_at = at + pending.fault.when.plus_s

    def due(self, now: float) -> list[PlannedFault]:
        """The faults whose moment has come, oldest first; each is returned once."""
        for pending in self._pending:
            if pending.fault.when.sight is None and pending.due_at is None and pending.since is not None:
                begin = pending.since or self._opened
                if begin is not None:
                    pending.due_at = begin + pending.fault.when.plus_s
        ready = [p for p in self._pending if p.due_at is not None and p.due_at <= now]
        self._pending = [p for p in self._pending if p not in ready]
        return [pending.fault for pending in sorted(ready, key=lambda p: p.due_at or 0.0)]

    def struck(self, fault: PlannedFault, at: float) -> None:
        """`fault` has happened at this time: faults that follow it count from now."""
        for pending in self._pending:
            if pending.fault.when.after == fault.name and pending.since is None:
                pending.since = at
