"""Turns: of the peers on one machine no more compute at once than it has cores for.

Four processes on two cores, in slices of milliseconds, finish a seventh less than two that have a core each (measured
with `reference`, which exchanges nothing, d = 512: 0.87; in turns 0.95). So a microbatch is computed to its end in a
turn, which is a lock on a file that all peers of a user on this machine know. Who gives one back rings a bell, so that
those who wait need not look again and again: that alone took a hundredth of the machine, and a millisecond or two
between any two turns. The kernel takes the lock back from who dies, without a bell. Who is stopped with one keeps its
core from the others, as long as they find another. Where there is none, or where it is stopped as the next in turn,
they wait in vain for a while and then compute without turns.

Courtesy, not protocol: whoever cannot have a turn computes without one, and the results are the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import platform
import select
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SHORT_S = 0.02
"""What takes less is computed without a turn: the kernel's own slices are as long."""
PATIENCE, LONGEST_S = 8.0, 30.0
"""So many times as long as a microbatch took here the last time is a turn waited for, and no longer than this."""
SULK_S, LONGEST_SULK_S = 60.0, 3600.0
"""After waiting in vain: for so long turns are not asked for, at first, and at most: each time twice as long."""
_LOOK_EVERY_S = 0.1
"""So long a bell is waited for: who dies does not ring."""
_RINGS = 1 << 16
"""As many as a pipe holds."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Turns:
    """Of one compute thread, which uses `threads` cores. `folder`: of the locks; by default one for all of the user."""

    def __init__(self, threads: int, folder: Path | None = None) -> None:
        cores = sorted(_cores())
        places = cores[: len(cores) // threads * threads : threads] or cores[:1]
        self._places: list[int]
        files = _open_files(folder, [f"core-{core}" for core in places])
        self._queue, self._queue_bell, self._place_bell, *self._places = files or (-1, -1, -1)
        self._usual_s = 0.0
        """What the last microbatch took."""
        self._sulk_s = SULK_S
        self._without_until = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Compute inside."""
        wanted = self._usual_s > SHORT_S and time.monotonic() >= self._without_until
        place = self._wait() if wanted and self._places else None
        begun = time.monotonic()
        try:
            yield
        finally:
            self._usual_s = time.monotonic() - begun
            if place is not None:
                _give_back(place, self._place_bell)

    def _wait(self) -> int | None:
        """The place that was found; None when none became free in time.

        Who waits for a place holds the queue, so that nobody who has just had a turn takes the next one before it.
        """
        patience = min(PATIENCE * self._usual_s, LONGEST_S)
        first = False
        try:
            while not self._ended.is_set():
                first = first or _locked(self._queue)
                place = next((place for place in self._places if _locked(place)), None) if first else None
                if place is not None:
                    self._sulk_s = SULK_S
                    return place
                if patience <= 0:
                    self._without_until = time.monotonic() + self._sulk_s
                    self._sulk_s = min(2 * self._sulk_s, LONGEST_SULK_S)
                    return None
                patience -= _listen(self._place_bell if first else self._queue_bell)
        except OSError:  # no locks on this file system
            self._without_until = math.inf
        finally:
            if first:
                _give_back(self._queue, self._queue_bell)
        return None

    def end(self) -> None:
        """From any thread: nobody waits for a turn here any more."""
        self._ended.set()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        """No more turns: the files are closed."""
        for file in (self._queue, self._queue_bell, self._place_bell, *self._places) if self._places else ():
            os.close(file)
        self._places = []


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _machine() -> str:
    """A name for this machine, since folders for temporary files may be shared by several."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def _locked(file: int) -> bool:
    """Whether the lock could be had, without waiting for it. Raises OSError where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _give_back(lock: int, bell: int) -> None:
    """Never fails: what was computed in a turn is not to be lost with it."""
    with contextlib.suppress(OSError):  # no locks any more
        fcntl.flock(lock, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):  # full of rings that nobody heard
        os.write(bell, b"!")


def _listen(bell: int) -> float:
    """Until it rings, for `_LOOK_EVERY_S` at most; returns the seconds waited, no more than that if stopped meanwhile.

    Of those who listen one hears a ring. Rings from when nobody listened wake one in vain, once.
    """
    begun = time.monotonic()
    waiting = select.poll()
    waiting.register(bell, select.POLLIN)
    if waiting.poll(1000 * _LOOK_EVERY_S):
        with contextlib.suppress(BlockingIOError):  # another one heard it
            os.read(bell, _RINGS)
    return min(time.monotonic() - begun, _LOOK_EVERY_S)


def _open_files(folder: Path | None, names: list[str]) -> list[int]:
    """The queue, its bell, that of the places, and the places; nothing where there is no folder of the user alone."""
    opened: list[int] = []
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    queue = f"queue-{names[0]}"
    bells = [f"{queue}-bell", f"{queue}-places-bell"]
    try:
        folder = folder or Path(tempfile.gettempdir()) / f"swarm-peer-turns-{os.getuid()}-{_machine()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{folder} is not this user's folder")
        for bell in bells:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(folder / bell, 0o600)
        for name in (queue, *bells, *names):
            is_bell = name in bells
            opened.append(os.open(folder / name, flags | (os.O_NONBLOCK if is_bell else os.O_CREAT), 0o600))
            if stat.S_ISFIFO(os.fstat(opened[-1]).st_mode) != is_bell:
                raise FileExistsError(f"{folder / name} is another kind of file")
    except OSError:
        for file in opened:
            os.close(file)
        return []
    return opened
