"""The task queue of the compute thread: the tasks for which other peers wait most come first."""

from __future__ import annotations

import enum
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Task = TypeVar("Task")


class Urgency(enum.IntEnum):
    """Lower values are executed first. All replicas wait for a reduction; the previous stage waits for a backward, the
    next stage for a forward. No peer waits for the weight gradients of a backward until the reduction.
    """

    REDUCE = 0
    BACKWARD = 1
    FORWARD = 2
    WEIGHTS = 3


BACKWARDS_IN_A_ROW = 4
"""After this many consecutive backwards, deferred weight gradients come first. A peer reports a microbatch to the
coordinator when it is forwarded and when it is in the sums; without such reports, the peer counts as stalled
(protocol/timeouts.py).
"""


class Backlog(Generic[Task]):
    """A thread-safe queue, ordered by urgency, then by microbatch, then by arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, int, int, Task]] = []
        self._arrivals = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._backwards = 0
        """Number of consecutive backwards among the tasks popped last."""

    def push(self, urgency: Urgency, microbatch: int, task: Task) -> bool:
        """Queue a task. Returns False, without queueing, if the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            heapq.heappush(self._heap, (urgency, microbatch, next(self._arrivals), task))
            self._changed.notify()
            return True

    def pop(self, until: Callable[[], bool] = lambda: False) -> Task | None:
        """Remove and return the most urgent task. If the queue is empty, wait for a task. Return None when the queue is
        closed, or when it is empty and `until` is true.

        Call `wake` when `until` may have become true.
        """
        with self._changed:
            while not self._heap and not self._closed and not until():
                self._changed.wait()
            if self._closed or not self._heap:
                return None
            urgency = self._heap[0][0]
            if urgency is Urgency.BACKWARD and self._backwards >= BACKWARDS_IN_A_ROW and self._first(Urgency.WEIGHTS):
                urgency = Urgency.WEIGHTS
            if urgency is Urgency.BACKWARD:
                self._backwards += 1
            elif urgency is not Urgency.REDUCE:
                self._backwards = 0
            return self._take(urgency)

    def take(self, urgency: Urgency) -> Task | None:
        """Remove and return the first task of this urgency; None if there is none."""
        with self._changed:
            return self._take(urgency)

    def _take(self, urgency: Urgency) -> Task | None:
        if self._heap and self._heap[0][0] is urgency:
            return heapq.heappop(self._heap)[3]
        if (entry := self._first(urgency)) is None:
            return None
        self._heap.remove(entry)
        heapq.heapify(self._heap)
        return entry[3]

    def _first(self, urgency: Urgency) -> tuple[Urgency, int, int, Task] | None:
        return min((entry for entry in self._heap if entry[0] is urgency), key=lambda entry: entry[1:3], default=None)

    def waiting(self, urgency: Urgency) -> list[Task]:
        """The queued tasks of this urgency, in the order of execution."""
        with self._changed:
            return [entry[3] for entry in sorted(e for e in self._heap if e[0] is urgency)]

    def drop(self, unwanted: Callable[[Task], bool]) -> None:
        with self._changed:
            self._heap = [entry for entry in self._heap if not unwanted(entry[3])]
            heapq.heapify(self._heap)

    def wake(self) -> None:
        """Let a waiting `pop` look at its condition again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> list[Task]:
        """Close the queue and wake `pop`; returns the tasks that were not executed."""
        with self._changed:
            self._closed = True
            left = [entry[3] for entry in self._heap]
            self._heap = []
            self._changed.notify_all()
            return left
