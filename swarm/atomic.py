"""Atomic files: a reader sees the whole file or none of it, even if the writer dies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
"""Suffix of an unfinished file. A remaining one was torn by a crash and is meaningless."""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears as `path` when the block ends: written, synced, renamed, folder synced.

    If the block raises, or the disk is full (OSError, naming `path`), `path` is unchanged and no other file remains.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb", buffering=0) as file:
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


def write_whole(file: BinaryIO, part: bytes | memoryview) -> None:
    """Write all of `part` to an unbuffered file: one call may write less. Raises OSError."""
    left = memoryview(part).cast("B")
    while left:
        left = left[file.write(left) :]


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
