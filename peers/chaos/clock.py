"""A wall clock that runs fast or slow, for one process: the Unix time that hivemind and we read is shifted.

Time namespaces do not shift CLOCK_REALTIME, and the machine has one clock. So `time.time` is replaced before any import
that keeps a reference to it (`install`), and reads its offset from a file that the emulator may change at any moment
(`follow`). Timers of the event loop are monotonic and do not change, as when a real clock is set. The libp2p daemon is
another program and keeps the machine's time; it compares it with no other clock.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_OFFSET = struct.Struct("<d")
_true_time = time.time
_true_time_ns = time.time_ns
_followed: mmap.mmap | None = None


def install() -> None:
    """Make `time.time` of this process shiftable from this call on."""
    time.time = _shifted
    time.time_ns = lambda: _true_time_ns() + int(_offset() * 1e9)


def follow(path: Path) -> None:
    """Shift this process's clock by the seconds in the file `path`, now and whenever the file changes."""
    global _followed
    with path.open("r+b") as file:
        _followed = mmap.mmap(file.fileno(), _OFFSET.size)


def write(path: Path, seconds: float) -> None:
    """Set the offset of the process that follows `path`."""
    if not path.exists():
        path.write_bytes(_OFFSET.pack(seconds))
        return
    with path.open("r+b") as file:
        file.write(_OFFSET.pack(seconds))  # in place: the same pages are mapped elsewhere


def _shifted() -> float:
    return _true_time() + _offset()


def _offset() -> float:
    return 0.0 if _followed is None else float(_OFFSET.unpack_from(_followed)[0])
