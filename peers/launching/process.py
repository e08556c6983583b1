"""A launched process, and the interface of launchers, which start all other `swarm-peer` processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02


class LaunchFailed(OSError):
    """A process could not be started; the message says why."""


class Process:
    """A launched process. Process ids are reused within the hour, so the end of the process is recorded here."""

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        """`popen`: for a child of this process. Without it, the launcher must call `ended`."""
        self.pid = pid
        self._popen = popen
        self._code: int | None = None

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while the process lives."""
        if self._code is None and self._popen is not None:
            self._code = self._popen.poll()
        return self._code

    def ended(self, code: int) -> None:
        self._code = code

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it has ended."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Wait for the process to end and return its exit code. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (code := self.code) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} has not ended within {seconds:g} s")
            time.sleep(_POLL_S)
        return code


class Launcher(ABC):
    """Starts processes that die with this one, by SIGKILL. Each has its own process group, so Ctrl-C reaches none of
    them.
    """

    @abstractmethod
    def start(
        self,
        argv: Sequence[str],
        output: Path,
        *,
        file: Path | None = None,
        namespace: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Run `swarm-peer ARGV…` and append its output to `output`, line by line. Raises LaunchFailed.

        `file`: the Python file to run with `argv` instead. `namespace`: path of its network namespace. `environment`:
        variables in addition to those of this process.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the launcher's own resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_output(path: str) -> int:
    """A descriptor that appends to a file readable by its owner only."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only; looked up here, not between a fork and an exec


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends. Without effect outside Linux."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
