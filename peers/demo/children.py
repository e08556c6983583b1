"""Children: other `swarm-peer` commands, run as child processes, each writing to a separate file.

None outlives us: `stop` ends them, and on Linux the kernel does if we are killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_LAST_LINES = 12
_PR_SET_PDEATHSIG = 1


class ChildDied(RuntimeError):
    """A child ended unexpectedly; the message has its name, how it ended and its last lines."""


class Child:
    """A running command. `expected`: its end is not an accident. Otherwise only code 0 with `ends` is not one."""

    def __init__(self, name: str, arguments: Sequence[str], output: Path, ends: bool) -> None:
        self.name = name
        self.output = output
        self.expected = False
        self._ends = ends
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "peers", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # this process passes Ctrl-C on, in order
                preexec_fn=_die_with_parent(),
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """Exit code, None while it runs; −9 for SIGKILL."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def check(self) -> None:
        """Raise ChildDied if it ended by accident."""
        code = self.code()
        if code is None or self.expected or (self._ends and code == 0):
            return
        lines = self.output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        raise ChildDied(f"{self.name} {how}; its last lines:\n  " + "\n  ".join(lines or ["(none)"]))


class Children:
    """All children together. As a context manager it stops those that are left."""

    def __init__(self) -> None:
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
        """Run `swarm-peer ARGUMENTS`. `ends`: it ends by itself."""
        child = Child(name, arguments, output, ends)
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
                child._process.wait()


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
