"""The cost of a core: CPU time of this thread, by kind of input."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from swarm.protocol.io import Received


class Stopwatch:
    """Wraps a core and measures it. Everything else is passed to the core."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.seconds = 0.0
        """CPU seconds in the core, including `next_wakeup`."""
        self.calls = 0
        self.by_input: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        """The measurements: {kind: [number, CPU seconds]}"""

    def handle(self, item: Any, now: float) -> list[Any]:
        start = time.thread_time()
        actions: list[Any] = self.core.handle(item, now)
        spent = time.thread_time() - start
        self.seconds += spent
        self.calls += 1
        kind = type(item.message if isinstance(item, Received) else item).__name__
        found = self.by_input[kind]
        found[0] += 1
        found[1] += spent
        return actions

    def next_wakeup(self) -> float:
        start = time.thread_time()
        due: float = self.core.next_wakeup()
        self.seconds += time.thread_time() - start
        return due
