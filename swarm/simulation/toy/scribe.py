"""Scribes receive the events of a simulated run's coordinators, for example to write their logs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from swarm.events import Event, EventLog
from swarm.simulation.kernel.timeline import Process


class Scribe(Protocol):
    """Called by the world of a run, in order of time."""

    def told(self, coordinator: Process, event: Event, now: float) -> None:
        """Write `event` to the coordinator's log, with the time `now`, virtual seconds."""

    def settled(self, coordinator: Process) -> None:
        """The coordinator has handled an input and carried out all orders of its core."""


class LogWriter:
    """Writes the log of each coordinator as a real one does: `folder`/ACTOR/events.jsonl, in virtual seconds.

    Does not write to a folder that contains logs of another run: raises FileExistsError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[str, EventLog] = {}
        self._now = 0.0

    def told(self, coordinator: Process, event: Event, now: float) -> None:
        actor = str(coordinator.actor)
        log = self._logs.get(actor)
        if log is None:
            path = self._folder / actor / "events.jsonl"
            if path.exists():
                raise FileExistsError(f"{path} exists already: choose another --log folder")
            log = self._logs[actor] = EventLog(path, lambda: self._now)
        self._now = now
        log.append(event)

    def settled(self, coordinator: Process) -> None:
        pass

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
