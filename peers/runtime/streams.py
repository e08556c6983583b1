"""Standard streams that cannot end a process: closed ones, encodings without our signs, readers that are gone or stuck.

`mend` is for every command. `outlive_reader` is for those that work for hours: what they print is for whoever looks,
and all of it is in the event log too. So a reader that has died, a terminal that was closed, a full disk behind `>log`
or a pager that nobody turns costs lines of output, never the work.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TextIO, cast

STUCK_S = 0.5
"""How long a line waits for a reader that takes nothing; after that none waits until it takes some again."""

_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)


def mend() -> None:
    """Open what the parent has closed, and print `\\u2026` for a sign that the stream's encoding lacks.

    Without it the first sockets and files of this process would be its standard streams.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(opened := os.open(os.devnull, os.O_RDWR), number)
            if opened != number:
                os.close(opened)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """At the end of a command. A reader that has gone (`| head`) is no error; raises OSError for a full disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _lead_nowhere(stream.fileno())  # else Python tries it again when it ends, and complains
            if error.errno not in _GONE:
                raise


def outlive_reader() -> None:
    """Print from now on as long as somebody reads, and never fail or wait for long because of it."""
    sys.stdout = _outliving(sys.stdout, 1)
    sys.stderr = _outliving(sys.stderr, 2)


def _outliving(stream: TextIO, number: int) -> TextIO:
    """The same stream, unless it is one of somebody who calls us within a program."""
    if not isinstance(stream, io.TextIOWrapper) or not _leads_to(stream, number):
        return stream
    if isinstance(stream.buffer, io.BufferedWriter) and isinstance(stream.buffer.raw, _Outliving):
        return stream
    stream.flush()
    raw = io.BufferedWriter(cast(io.RawIOBase, _Outliving(number)))
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)


def _leads_to(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):  # something in memory
        return False


class _Outliving(io.FileIO):
    """A descriptor that takes everything, whatever becomes of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._poll = select.poll()
        self._poll.register(number, select.POLLOUT)
        self._stuck = False

    def write(self, data: bytes) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            if not self._poll.poll(0 if self._stuck else 1000 * STUCK_S):
                self._stuck = True
                break
            try:
                # no more than a pipe takes whole once it has any room: a longer write would wait for the reader
                written += super().write(view[written : written + select.PIPE_BUF]) or 0
                self._stuck = False
            except OSError as error:
                if error.errno in _GONE:
                    _lead_nowhere(self.fileno())
                break
        return len(view)

    def flush(self) -> None:
        """Nothing is held here."""


def _lead_nowhere(number: int) -> None:
    """Nobody will ever read it; libraries write to it too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
