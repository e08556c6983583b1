"""Lets programs use the machine in turn, a few seconds each, so that all meet the same noise.

Outside its turn a program is stopped (SIGSTOP), with all its children except libp2p's daemons. A daemon has nothing to
do while all processes that it serves are stopped, and the connections of a stopped daemon would time out. What a
program does in its own seconds can then be compared with what the others do in the same minutes.
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
    """A program. `pids`: its processes; their children are found."""

    name: str
    pids: Sequence[int]
    turns: list[tuple[float, float]] = field(default_factory=list)
    """The times at which it ran: Unix seconds from and to."""

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
    """Let the programs run in turn. All are stopped at the start and at the end. `over` is called after every round."""
    while not over():
        for program in programs:
            program.go_on()
            begin = time.time()
            time.sleep(seconds)
            program.stop()
            program.turns.append((begin, time.time()))
