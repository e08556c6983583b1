"""A side folder: a command writes files there first, and then replaces those of its output folder, all or none.

    OUT/.NAME/owner.lock    held while the command runs, so that a second one does not write to OUT meanwhile
    OUT/.NAME/new           the files to publish
    OUT/.NAME/old           while they are published: what they replace
    OUT/.NAME/publishing    names the files to publish. It exists only while they are published

If publishing fails, or Ctrl-C comes meanwhile, all files are moved back. If the process is killed meanwhile, the next
command that writes to OUT moves them back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from swarm.atomic import atomic_file, sync_folder, write_whole

_LOCK = "owner.lock"
_BUSY = "another swarm-peer writes to this folder: wait until it has ended, or name another folder"


class SideFolder:
    """The open side folder of `out`, called `name`. See `side_folder`."""

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._side = out / name
        self._old = self._side / "old"
        self._names = self._side / "publishing"
        self.new = self._side / "new"
        """Where the new files are written."""

    def publish(self, names: Sequence[str], replaced: Sequence[str]) -> None:
        """Move `names` from `new` into place, and what they replace, the names in `replaced`, out of it.

        The last of `names` says that the others are complete, so it should be the first of `replaced`. Both may be
        folders. Raises OSError.
        """
        self._old.mkdir()
        with atomic_file(self._names) as file:
            write_whole(file, json.dumps(list(names)).encode())
        for name in replaced:
            (self._out / name).replace(self._old / name)
        for name in names:
            (self.new / name).replace(self._out / name)
        sync_folder(self._out)

    def take_back(self) -> None:
        """Move all files back if publishing has begun and not ended. May be repeated. Raises OSError."""
        try:
            names = json.loads(self._names.read_bytes())
        except FileNotFoundError:
            return
        if os.path.lexists(self.new / names[-1]):
            for name in names:
                if not os.path.lexists(self.new / name):
                    (self._out / name).replace(self.new / name)
            for path in self._old.iterdir():
                path.replace(self._out / path.name)
            sync_folder(self._out)
        self._names.unlink()  # before the others: without them, it would seem that publishing had ended

    def remove(self) -> None:
        """Remove the side folder with its content, the lock last."""
        for path in (self._old, self.new):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self._side / _LOCK).unlink()
            self._side.rmdir()  # fails if another process has locked it meanwhile


@contextlib.contextmanager
def side_folder(out: Path, name: str) -> Iterator[SideFolder]:
    """Make the side folder `name` in `out`, and `out` itself. It is removed at the end.

    Raises OSError, also if another process has this side folder now.
    """
    found = SideFolder(out, name)
    lock = _locked(out, out / name)
    try:
        found.take_back()
        for path in (out / name).iterdir():
            if path.name != _LOCK:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        found.new.mkdir()
        try:
            yield found
        finally:
            found.take_back()
            found.remove()
    finally:
        os.close(lock)


def _locked(out: Path, side: Path) -> int:
    """The open lock of a side folder. A disk without locks gives it to everybody. Raises OSError."""
    while True:
        side.mkdir(parents=True, exist_ok=True)
        if side.is_symlink():  # what it leads to is not ours to empty
            raise OSError(errno.EEXIST, "is a link", str(side))
        try:
            lock = os.open(side / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # its owner has just removed it
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise OSError(errno.EBUSY, _BUSY, str(out)) from None
        except OSError:
            return lock
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(side / _LOCK)):
                return lock
        os.close(lock)  # its owner has removed it before this process got the lock
