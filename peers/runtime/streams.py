"""Standard streams that cannot end a process: closed ones, encodings without our characters, readers that have ended or
do not read.

`mend` is for every command. `outlive_reader` is for commands that run for hours. Their output is only for people, and
all of it is also in the event log. So if the reader has ended, the terminal is closed, the disk behind `>log` is full
or a pager does not advance, output lines are lost, but the work continues.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TextIO, cast

STUCK_S = 0.5
"""Seconds that a line waits for a stuck reader. After that no line waits until the reader continues."""

_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)


def mend() -> None:
    """Open the streams that the parent has closed, and print `\\u2026` for a character that the stream's encoding
    lacks.

    Otherwise the first sockets and files of this process would become its standard streams.
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
    """Call it at the end of a command. A closed reader (`| head`) is not an error; raises OSError for a full disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _lead_nowhere(stream.fileno())  # otherwise Python tries it again at its end, and complains
            if error.errno not in _GONE:
                raise


def outlive_reader() -> None:
    """From this call on, print only while a reader is there, and never fail or wait long because of the reader."""
    sys.stdout = _outliving(sys.stdout, 1)
    sys.stderr = _outliving(sys.stderr, 2)


def _outliving(stream: TextIO, number: int) -> TextIO:
    """The protected stream. The same stream is returned if a program that calls us has replaced it."""
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
    except (OSError, ValueError):  # an object in memory
        return False


class _Outliving(io.FileIO):
    """A file descriptor to which writing never fails, whatever happens to its reader."""

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
                # a pipe with any room takes this much whole: a longer write would wait for the reader
                written += super().write(view[written : written + select.PIPE_BUF]) or 0
                self._stuck = False
            except OSError as error:
                if error.errno in _GONE:
                    _lead_nowhere(self.fileno())
                break
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered here."""


def _lead_nowhere(number: int) -> None:
    """Point a descriptor to the null device, because libraries write to it too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
