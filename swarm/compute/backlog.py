"""The compute thread's queue: what the swarm waits for longest goes first."""

from __future__ import annotations

import enum
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Task = TypeVar("Task")


class Urgency(enum.IntEnum):
    """Lower is sooner. All replicas wait for a reduce; a backward frees a graph, a forward takes one."""

    REDUCE = 0
    BACKWARD = 1
    FORWARD = 2


class Backlog(Generic[Task]):
    """Thread-safe. Within one urgency by microbatch, then first come, first served."""

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, int, int, Task]] = []
        self._arrivals = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def push(self, urgency: Urgency, microbatch: int, task: Task) -> bool:
        """False, and nothing queued, once closed."""
        with self._changed:
            if self._closed:
                return False
            heapq.heappush(self._heap, (urgency, microbatch, next(self._arrivals), task))
            self._changed.notify()
            return True

    def pop(self, wait: bool = True) -> Task | None:
        """What is most urgent. Waits for work if asked to; None once closed, or when there is nothing to wait for."""
        with self._changed:
            while wait and not self._heap and not self._closed:
                self._changed.wait()
            return None if self._closed or not self._heap else heapq.heappop(self._heap)[3]

    def drop(self, unwanted: Callable[[Task], bool]) -> None:
        with self._changed:
            self._heap = [entry for entry in self._heap if not unwanted(entry[3])]
            heapq.heapify(self._heap)

    def close(self) -> list[Task]:
        """Wake `pop` for the last time; returns what was never done."""
        with self._changed:
            self._closed = True
            left = [entry[3] for entry in self._heap]
            self._heap = []
            self._changed.notify_all()
            return left
