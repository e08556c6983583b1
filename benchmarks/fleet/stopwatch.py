"""What a core costs: CPU time of this thread, by what it was given to handle."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from swarm.protocol.io import Received


class Stopwatch:
    """Stands before a core and counts. Everything else is the core's."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.seconds = 0.0
        """CPU time in the core, `next_wakeup` included."""
        self.calls = 0
        self.by_input: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        """{kind: [how many, CPU seconds]}"""

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
