"""The TCP sockets of a child process, such as the libp2p daemon: its parent may read and set their options.

This needs Linux 5.6 (pidfd_getfd). Some systems forbid it, such as containers with Docker's default profile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Collection, Iterator

_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
_PIDFD_GETFD = 438  # the same number on all processors


def tcp_sockets(pid: int, descriptors: Collection[int] | None = None) -> Iterator[socket.socket]:
    """This process's own handles to the TCP sockets of a child, each until the next one is asked for.

    `descriptors`: the child's descriptors of the sockets; None: all. Raises OSError if this system does not allow it or
    if there is no such process.
    """
    process = os.pidfd_open(pid)
    try:
        for fd in names(pid) if descriptors is None else descriptors:
            if (found := _handle(process, fd)) is not None:
                with found:
                    if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                        yield found
    finally:
        os.close(process)


def names(pid: int) -> dict[int, str]:
    """{descriptor: name} of all sockets of a process. Raises OSError if there is no such process."""
    found, folder = {}, f"/proc/{pid}/fd"
    for descriptor in os.listdir(folder):  # once a second, and pathlib is slower
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if (name := os.readlink(f"{folder}/{descriptor}")).startswith("socket:"):
                found[int(descriptor)] = name
    return found


def no_descriptor(error: OSError) -> bool:
    """Whether the process or the system has too many open files: it may work later."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def _handle(process: int, fd: int) -> socket.socket | None:
    """This process's own handle to a socket of another process. None: it was closed meanwhile. Raises OSError."""
    if (own := _SYSCALL(_PIDFD_GETFD, process, fd, 0)) < 0:
        if (number := ctypes.get_errno()) == errno.EBADF:
            return None
        raise OSError(number, os.strerror(number))
    try:
        return socket.socket(fileno=own)
    except OSError:  # another kind of file has the descriptor now
        os.close(own)
        return None
