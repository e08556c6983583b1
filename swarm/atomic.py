"""Atomic files: a reader sees the whole file or none of it, even if the writer dies."""

from __future__ import annotations

import contextlib
import errno
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
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb", buffering=0, opener=_only_ours if private else None) as file:
            yield file
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        # write() and fsync() name the error, but not the file
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _only_ours(path: str, flags: int) -> int:
    with contextlib.suppress(FileNotFoundError):  # a torn one may have other permissions
        os.unlink(path)
    return os.open(path, flags | os.O_EXCL, 0o600)


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
