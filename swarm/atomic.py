"""Atomic files: a reader sees the whole file or none of it, even if the writer dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
"""Suffix of an unfinished file. A remaining one was torn by a crash and is meaningless."""


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EPERM)
"""How file systems that cannot sync a folder answer, such as network drives and some in user space."""


@contextlib.contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write that appears as `path` when the block ends: written, synced, renamed, folder synced.

    private: no other user may read it, if the file system keeps permissions. The file has these permissions when it is
    made: some file systems refuse to change them.

    If the block raises, or the disk is full (OSError, naming `path`), `path` is unchanged and no other file remains.
    Two writers of one `path` write two files, and the one that ends last counts. What a killed writer leaves behind is
    removed by the next writer of `path`.
    """
    temporary, file = unfinished_file(path, private=private)
    try:
        with file:
            try:
                yield file
                os.fsync(file.fileno())
                temporary.replace(path)  # while the lock is held: without it, the file would pass for a torn one
            except BaseException:
                drop_unfinished(temporary, file)
                raise
        sync_folder(path.parent)
    except OSError as error:
        # write() and fsync() name the error, but not the file
        if error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def unfinished_file(path: Path, *, private: bool = False) -> tuple[Path, BinaryIO]:
    """A new file to write beside `path`, with its name, which no living writer uses. Raises OSError naming `path`.

    It is locked while it is open. Once it is closed, the next writer of `path` removes it.
    """
    number = 0
    while True:
        temporary = path.with_name(f"{path.name}.part{number}{TEMPORARY}")
        try:
            file = open(temporary, "xb", buffering=0, opener=_only_ours if private else None)  # noqa: SIM115
        except FileExistsError:
            number += not _gone(temporary)
            continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        if _is_locked(file, temporary):
            return temporary, file
        file.close()


def drop_unfinished(temporary: Path, file: BinaryIO) -> None:
    """Remove an unfinished file, which is still open, and not one of another writer that has taken its name."""
    with contextlib.suppress(OSError):
        if _is_named(file.fileno(), temporary):
            temporary.unlink()


def _only_ours(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_locked(file: BinaryIO, temporary: Path) -> bool:
    """Lock a new file. False if another writer has taken it for a torn one meanwhile, and removes it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this disk has no locks, so nobody removes the file
        return True
    return _is_named(file.fileno(), temporary)


def _gone(temporary: Path) -> bool:
    """Remove a torn file: nobody has locked it. False if its writer lives, or if it cannot be known or removed."""
    try:
        torn = os.open(temporary, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(torn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_named(torn, temporary):  # else another writer has already removed it
            os.unlink(temporary)
    except OSError:
        return False
    finally:
        os.close(torn)
    return True


def _is_named(handle: int, path: Path) -> bool:
    """Whether `path` is the name of this open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def torn(path: Path) -> list[Path]:
    """What killed writers of `path` have left. Meaningless while one of them lives."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.part*{TEMPORARY}"))


def write_whole(file: BinaryIO, part: bytes | memoryview) -> None:
    """Write all of `part` to an unbuffered file: one call may write less. Raises OSError."""
    left = memoryview(part).cast("B")
    while left:
        left = left[file.write(left) :]


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable, if its file system can. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(handle)


def keeps_permissions(folder: Path) -> bool:
    """False if everybody may read each file in `folder`, whatever it was made with, as on USB sticks and some network
    drives. Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=folder)  # made for this user alone
    try:
        return not os.fstat(handle).st_mode & 0o077
    finally:
        os.close(handle)
        os.unlink(name)
