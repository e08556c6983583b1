"""The only compute thread of a simulated peer. It runs one task at a time, in the order of `Priority`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from swarm.simulation.kernel.timeline import Process


class Priority(enum.IntEnum):
    CONTROL = 0
    BACKWARD = 1
    FORWARD = 2
    WEIGHTS = 3


@dataclass(slots=True)
class Task:
    action: Any
    run: Callable[[Any], None]
    seconds: float
    void: bool = False
    """True if the result of the task no longer counts. A running task still runs to its end."""


class ComputeQueue:
    """The tasks of `process`, in virtual time. A stalled process computes nothing, a slow one takes longer."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._heap: list[tuple[int, int, Task]] = []
        self._count = 0
        self._running: Task | None = None

    def add(self, priority: Priority, action: Any, run: Callable[[Any], None], seconds: float) -> None:
        """Call `run(action)` when the task is done. `seconds`: its duration from the start."""
        self._count += 1
        heappush(self._heap, (priority, self._count, Task(action, run, seconds)))
        if self._running is None:
            self._next()

    def cancel(self, what: Callable[[Any], bool], *, running: bool = True) -> None:
        """Void the tasks whose action satisfies `what`; the running task only if `running`."""
        for task in self._tasks(running):
            if what(task.action):
                task.void = True

    def _tasks(self, running: bool) -> Iterator[Task]:
        if running and self._running is not None:
            yield self._running
        for _, _, task in self._heap:
            yield task

    def _next(self) -> None:
        process = self._process
        while self._heap:
            task = heappop(self._heap)[2]
            if not task.void:
                self._running = task
                seconds = task.seconds * process.slowness * (0.9 + 0.2 * process.world.random.random())
                process.world.at(process.world.now + seconds, process, (self._finish, task))
                return

    def _finish(self, task: Task) -> None:
        self._running = None
        if not task.void:
            task.run(task.action)
        if self._process.alive and self._running is None:
            self._next()
