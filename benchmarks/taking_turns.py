"""Programs that have the machine in turn, a few seconds each, so that all meet the same machine, however noisy.

Whose turn it is not is stopped (SIGSTOP), with all its children but libp2p's daemons. These have nothing to do while
all whom they serve stand still, and one that is stopped itself finds its connections timed out. What a program does in
seconds of its own can then be compared with what the others do in the same minutes.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

DAEMON = "p2pd"


@dataclass(slots=True)
class Program:
    """`pids`: its processes; their children are found."""

    name: str
    pids: Sequence[int]
    turns: list[tuple[float, float]] = field(default_factory=list)
    """Unix seconds: from when to when it ran."""

    def own(self, at: float) -> float:
        """Seconds that it has run by a moment, in its turns."""
        return sum(min(at, end) - begin for begin, end in self.turns if begin < at)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                for each in (process, *process.children(recursive=True)):
                    if each.name() != DAEMON:
                        each.send_signal(number)


def take_turns(programs: Sequence[Program], over: Callable[[], bool], seconds: float) -> None:
    """All are stopped at the start, and at the end. `over` is asked after every round."""
    while not over():
        for program in programs:
            program.go_on()
            begin = time.time()
            time.sleep(seconds)
            program.stop()
            program.turns.append((begin, time.time()))
