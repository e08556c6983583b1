"""Turns: at most as many peers on one machine compute at once as it has cores for.

Four processes that share two cores in slices of milliseconds have 0.87 of the throughput of two processes with a core
each; with turns, 0.95 (measured with `reference`, which has no communication, d = 512). So a peer computes a microbatch
to its end within a turn. A turn is a lock on a file that all peers of a user on this machine share.

A peer that releases a lock writes to a pipe, the bell, which wakes a waiting peer. Polling instead would take 1 % of
the machine, and add one or two milliseconds between turns. If a peer dies, the kernel releases its lock, but the bell
does not ring. If a peer is stopped while it has a lock, the others use the remaining cores. If there are none, or if
the stopped peer is the next one in the queue, the others wait in vain for a while, and then compute without turns.

Turns only improve speed: a peer without a turn computes anyway, with the same results.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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

from swarm.cores import quota, visible_cores

SHORT_S = 0.02
"""Microbatches that take less than this need no turn: the kernel's time slices are as long."""
PATIENCE, LONGEST_S = 8.0, 30.0
"""Longest wait for a turn: PATIENCE times the time of the last microbatch, and at most LONGEST_S seconds."""
SULK_S, LONGEST_SULK_S = 60.0, 3600.0
"""Seconds without turns after a wait in vain: SULK_S at first, doubled each time up to LONGEST_SULK_S."""
_LOOK_EVERY_S = 0.1
"""Longest wait for a bell before looking for a free lock again, because a dying peer does not ring."""
_RINGS = 1 << 16
"""Capacity of a pipe, bytes: the largest number of unread rings."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Turns:
    """The turns of one compute thread, which uses `threads` cores.

    `folder`: of the locks; None: the user's common one.
    """

    def __init__(self, threads: int, folder: Path | None = None) -> None:
        cores = _names_of_cores()
        places = cores[: len(cores) // threads * threads : threads] or cores[:1]
        self._places: list[int]
        files = _open_files(folder, places)
        self._queue, self._queue_bell, self._place_bell, *self._places = files or (-1, -1, -1)
        self._usual_s = 0.0
        """Seconds that the last microbatch took."""
        self._sulk_s = SULK_S
        self._without_until = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A context in which to compute a microbatch."""
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
        """Wait for a free place; None if none became free in time.

        The waiting peer locks the queue, so that a peer that has just had a turn cannot overtake it.
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
        except OSError:  # this file system does not support locks
            self._without_until = math.inf
        finally:
            if first:
                _give_back(self._queue, self._queue_bell)
        return None

    def end(self) -> None:
        """Stop waiting for turns. Any thread may call it."""
        self._ended.set()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for file in (self._queue, self._queue_bell, self._place_bell, *self._places) if self._places else ():
            os.close(file)
        self._places = []


def _names_of_cores() -> list[str]:
    """A name for each core that may be used at once. With a quota, they are not particular cores but belong to the
    group, whose processes share them.
    """
    limit = quota()
    if limit is None:
        return [f"core-{core}" for core in sorted(visible_cores())]
    group = hashlib.sha256(bytes(limit.group)).hexdigest()[:12]
    return [f"group-{group}-{number}" for number in range(math.ceil(limit.cores))]


def _machine() -> str:
    """A name for this machine, because several machines may share a folder for temporary files."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def _locked(file: int) -> bool:
    """Try to lock a file without waiting; returns whether it succeeded. Raises OSError if locks are not supported."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _give_back(lock: int, bell: int) -> None:
    """Release a lock and wake those that wait for it. Never raises: an error would lose the results of the turn."""
    with contextlib.suppress(OSError):  # locks are no longer supported
        fcntl.flock(lock, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):  # the pipe is full of unread rings
        os.write(bell, b"!")


def _listen(bell: int) -> float:
    """Wait until the bell rings, at most `_LOOK_EVERY_S`. Returns the seconds waited, at most `_LOOK_EVERY_S` even if
    the process was stopped meanwhile.

    One of the waiting peers gets a ring. Old rings that no peer waited for wake one peer in vain, once.
    """
    begun = time.monotonic()
    waiting = select.poll()
    waiting.register(bell, select.POLLIN)
    if waiting.poll(1000 * _LOOK_EVERY_S):
        with contextlib.suppress(BlockingIOError):  # another peer has read the ring
            os.read(bell, _RINGS)
    return min(time.monotonic() - begun, _LOOK_EVERY_S)


def _open_files(folder: Path | None, names: list[str]) -> list[int]:
    """Open the queue, its bell, the bell of the places, and the places; [] without a folder that only the user can
    access.
    """
    opened: list[int] = []
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    queue = f"queue-{names[0]}"
    bells = [f"{queue}-bell", f"{queue}-places-bell"]
    try:
        folder = folder or Path(tempfile.gettempdir()) / f"swarm-peer-turns-{os.getuid()}-{_machine()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{folder} does not belong to this user alone")
        for bell in bells:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(folder / bell, 0o600)
        for name in (queue, *bells, *names):
            is_bell = name in bells
            opened.append(os.open(folder / name, flags | (os.O_NONBLOCK if is_bell else os.O_CREAT), 0o600))
            if stat.S_ISFIFO(os.fstat(opened[-1]).st_mode) != is_bell:
                raise FileExistsError(f"{folder / name} exists, but is another kind of file")
    except OSError:
        for file in opened:
            os.close(file)
        return []
    return opened
