"""Starts other `swarm-peer` commands as separate processes. Each writes to a separate file.

All of them end with this process: `stop` ends them, and on Linux the kernel does so if this process is killed.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.launching.process import Launcher, Process

_LAST_LINES = 12
_GONE_S = 10.0
_PROBE_BYTES = 1 << 16


class ChildDied(RuntimeError):
    """A child ended unexpectedly; the message has its name, how it ended and its last lines."""


class Child:
    """A running command. `expected`: True if its end is expected. Otherwise its end is an accident, unless `ends` is
    set and the exit code is 0.
    """

    def __init__(self, name: str, process: Process, output: Path, ends: bool) -> None:
        self.name = name
        self.output = output
        self.expected = False
        self._ends = ends
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """Exit code, None while it runs; −9 for SIGKILL."""
        return self._process.code

    def send(self, number: signal.Signals) -> None:
        self._process.send(number)

    def wait(self, seconds: float) -> int:
        """Wait for the child to end and return its exit code. Raises TimeoutError."""
        return self._process.wait(seconds)

    def check(self) -> None:
        """Raise ChildDied if it ended by accident."""
        code = self.code()
        if code is None or self.expected or (self._ends and code == 0):
            return
        lines = self.output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        told = f"{self.name} {how}; its last lines:\n  " + "\n  ".join(lines or ["(none)"])
        raise ChildDied(told + _trouble_of_disk(self.output.parent))


def _trouble_of_disk(folder: Path) -> str:
    """A line that says why nothing can be written in `folder`; empty if something can. The child may have ended for the
    same reason, and its own message was lost with it.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return f"\nnothing can be written in {folder} ({error.strerror}): free space, or use a folder on another disk"
    return ""


class Children:
    """All children together. As a context manager it stops those that are left."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._all: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Child]:
        return iter(self._all)

    def start(self, name: str, arguments: Sequence[str], output: Path, *, ends: bool = False) -> Child:
        """Run `swarm-peer ARGUMENTS`. `ends`: True if the command ends by itself."""
        output.parent.mkdir(parents=True, exist_ok=True)
        child = Child(name, self._launcher.start(arguments, output), output, ends)
        self._all.append(child)
        return child

    def check(self) -> None:
        """Raise ChildDied for the first child that ended by accident."""
        for child in self._all:
            child.check()

    def wait_for(self, done: Callable[[], bool], what: str, seconds: float, poll_s: float = 0.05) -> None:
        """Wait until `done()`. Raises ChildDied, and TimeoutError naming `what`."""
        deadline = time.monotonic() + seconds
        while not done():
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
            time.sleep(poll_s)

    def stop(self, grace_s: float = 8.0) -> None:
        """Ask the running children to leave, and kill the rest after `grace_s`."""
        running = [child for child in self._all if child.code() is None]
        for child in running:
            child.expected = True
            child.send(signal.SIGCONT)
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(child.code() is None for child in running) and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in running:
            if child.code() is None:
                child.send(signal.SIGKILL)
                child.wait(_GONE_S)
