"""A machine of the emulated swarm: `swarm-peer` processes, one after another in one home, seen through their event
log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from peers.chaos import clock
from peers.demo.event_tail import EventTail
from peers.launching.nursery import Nursery
from peers.launching.process import Process
from peers.run.home import Home
from swarm.events import Event, ProcessStarted

_SLOW_PERIOD_S = 0.04
"""A slowed process runs and pauses in turn. Each period has this number of seconds."""
_FILLER = "filler"


@dataclass(frozen=True, slots=True)
class Seen:
    """An event, and the time at which it was written: Unix seconds of the emulator's clock."""

    at: float
    event: Event


class EmulatedMachine:
    """A machine on which processes are started with `start`. `ended` reports an end that was not ordered."""

    def __init__(
        self,
        name: str,
        folder: Path,
        nursery: Nursery,
        namespace: str | None,
        disk: int | None,
        forgotten: frozenset[type[Event]] = frozenset(),
    ) -> None:
        """`forgotten`: kinds of events that `read` returns and `log` does not keep, for a play of hours."""
        self.name = name
        self.home = Home(folder / "homes" / name)
        self.output = folder / f"{name}.txt"
        self.disk = disk
        self._child: Process | None = None
        self.started_at = 0.0
        self.argv: tuple[str, ...] = ()
        self.log: list[Seen] = []
        self._forgotten = forgotten
        self.lives: list[str] = []
        """The actor names in logs of the processes that ran here, the current one last."""
        self.ordered_to_end = False
        self._nursery = nursery
        self._namespace = namespace
        self._clock = folder / "clocks" / name
        self._skew_s = 0.0
        self._tail = EventTail(self.home.events)
        self._slowing: _Slowing | None = None

    def start(self, argv: Sequence[str]) -> None:
        """Run `swarm-peer ARGV… --home …`. Its previous process must have ended."""
        assert not self.running, f"{self.name} runs already"
        self.home.path.mkdir(parents=True, exist_ok=True)
        self.argv = (*argv, "--home", str(self.home.path))
        self.ordered_to_end = False
        self.started_at = time.time()
        self._child = self._nursery.start(self.argv, self.output, namespace=self._namespace, clock=self._clock)

    def restart(self) -> None:
        self.start(self.argv[:-2])

    @property
    def pid(self) -> int:
        """Process id of its last process; 0 if it has never run."""
        return 0 if self._child is None else self._child.pid

    @property
    def code(self) -> int | None:
        """Exit code of its last process; None while it runs, or if it has never run."""
        return None if self._child is None else self._child.code

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.code is None

    @property
    def ended(self) -> bool:
        """True if the process ended by itself."""
        return self.code is not None and not self.ordered_to_end

    def read(self) -> list[Seen]:
        """The events logged since the last call."""
        found = [Seen(at - self._skew_s, event) for at, event in self._tail.read()]
        self.lives += [seen.event.actor for seen in found if isinstance(seen.event, ProcessStarted)]
        self.log += [seen for seen in found if type(seen.event) not in self._forgotten]
        return found

    def words(self, lines: int = 12) -> str:
        """The last lines of its output."""
        if not self.output.exists():
            return "(nothing)"
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:]) or "(nothing)"

    # ------------------------------------------------------------ what may befall it

    def kill(self) -> None:
        self.ordered_to_end = True
        self.slow(1.0)
        self._signal(signal.SIGKILL)

    def leave(self) -> None:
        """Stop it with Ctrl-C, as a terminal does: the process and all its children get the signal."""
        self.ordered_to_end = True
        with contextlib.suppress(ProcessLookupError):
            if self.running:
                os.killpg(self.pid, signal.SIGINT)

    def stop(self) -> None:
        self.slow(1.0)
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def slow(self, factor: float) -> None:
        """From this call on, give the process 1/factor of its time. 1: all of it."""
        if self._slowing is not None:
            self._slowing.end()
            self._slowing = None
        if factor > 1 and self.running:
            self._slowing = _Slowing(self, factor)

    def fill(self, leave: int) -> None:
        """Fill its disk, up to `leave` bytes. Without a separate disk: limit the growth of its files to that."""
        assert self.disk is not None
        if self._namespace is None:
            longest = self.home.events.stat().st_size + leave
            psutil.Process(self.pid).rlimit(psutil.RLIMIT_FSIZE, (longest, psutil.RLIM_INFINITY))
            return
        place = os.statvfs(self.home.path)
        size = place.f_bavail * place.f_frsize - leave
        with (self.home.path / _FILLER).open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(1, size))

    def free(self) -> None:
        if self._namespace is None and self.running:
            psutil.Process(self.pid).rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        (self.home.path / _FILLER).unlink(missing_ok=True)

    def skew(self, seconds: float) -> None:
        """Shift the wall clock of the process from this call on."""
        self._skew_s = seconds
        self._clock.parent.mkdir(parents=True, exist_ok=True)
        clock.write(self._clock, seconds)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send(number)


class _Slowing:
    """Stops and continues a process in turn, in a separate thread, until `end`."""

    def __init__(self, machine: EmulatedMachine, factor: float) -> None:
        self._machine = machine
        self._run_s = _SLOW_PERIOD_S / factor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._machine._signal(signal.SIGCONT)

    def _work(self) -> None:
        while not self._over.is_set() and self._machine.running:
            self._machine._signal(signal.SIGSTOP)
            self._over.wait(_SLOW_PERIOD_S - self._run_s)
            self._machine._signal(signal.SIGCONT)
            self._over.wait(self._run_s)
