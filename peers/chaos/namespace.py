"""Network namespaces by system call: separate hosts on this machine, each with one address on a TUN device.

Nothing here has a name in the file system. A namespace lives as long as a process in it or a descriptor of it, its
device as long as the descriptor that reads its packets. So any end of this process, even SIGKILL, cleans up.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_SLOW_START_AFTER_IDLE = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
_TX_QUEUE = 1000
"""Packets that wait for the forwarder; it reads them within a millisecond or so."""

_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(OSError):
    """This process may not make hosts; the message says what is missing."""


def why_not() -> str | None:
    """The reason why namespaces cannot be used here. None if they can. This is tried in a child process."""
    pid = os.fork()
    if pid == 0:
        try:
            os.close(make_host("10.255.255.1", 1500)[1])
        except OSError as error:
            os._exit(min(error.errno or 1, 250))
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return None
    return f"a network namespace with a TUN device cannot be made: {os.strerror(code)} (it takes root)"


def make_host(address: str, mtu: int, *, slow_start: bool = True) -> tuple[int, int]:
    """Make a host. Returns descriptors of a new namespace and of its TUN device with this IPv4 address in a /8. Raises
    NamespaceError.

    `slow_start`: its TCP connections send slowly again after a pause, as by default in Linux.

    Afterwards the calling thread is in its former namespace. Reading the device returns packets that the host sends.
    """
    with _own_namespace():
        unshare(_CLONE_NEWNET, "a network namespace")
        inside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _as_at_home(slow_start)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            os.close(inside)
            raise NamespaceError(error.errno, f"/dev/net/tun: {error.strerror}") from None
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"wan", _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _request(control, _SIOCSIFADDR, b"wan", _sockaddr(address))
            _request(control, _SIOCSIFNETMASK, b"wan", _sockaddr("255.0.0.0"))
            _request(control, _SIOCSIFMTU, b"wan", struct.pack("i", mtu))
            _request(control, _SIOCSIFTXQLEN, b"wan", struct.pack("i", _TX_QUEUE))
            for name in (b"lo", b"wan"):
                flags = struct.unpack_from("H", _request(control, _SIOCGIFFLAGS, name, b""), 16)[0]
                _request(control, _SIOCSIFFLAGS, name, struct.pack("H", flags | _IFF_UP))
    return inside, device


def _as_at_home(slow_start: bool) -> None:
    """Give the new namespace the congestion control of most volunteers' systems, instead of this machine's.

    BBR, for example, keeps its rate while a connection is idle, and so hides what a pause between frames costs them.
    Linux allows only the algorithms in `tcp_allowed_congestion_control`. Reno is always allowed, and does not keep its
    rate either.
    """
    _SLOW_START_AFTER_IDLE.write_text(str(int(slow_start)))
    for name in ("cubic", "reno"):
        with contextlib.suppress(OSError):
            _CONGESTION_CONTROL.write_text(name)
            return


def enter(path: str) -> None:
    """Move the calling process, which has one thread, into the namespace behind `path`. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, _CLONE_NEWNET), path)
    finally:
        os.close(descriptor)


def own_mounts() -> None:
    """Make the mounts of this process and its children private. They vanish with these processes."""
    unshare(_CLONE_NEWNS, "a mount namespace")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")


def mount_memory(path: str, size: int) -> None:
    """Mount a file system of `size` bytes in memory at `path`. Raises OSError."""
    options = f"size={size},mode=0700".encode()
    _check(_libc.mount(b"none", path.encode(), b"tmpfs", 0, options), path)


def unshare(flags: int, what: str) -> None:
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise NamespaceError(number, f"{what} cannot be made: {os.strerror(number)}")


@contextlib.contextmanager
def _own_namespace() -> Iterator[None]:
    """Return to the former namespace in any case."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _check(_libc.setns(before, _CLONE_NEWNET), "the namespace of before")
        os.close(before)


def _sockaddr(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def _request(control: socket.socket, number: int, device: bytes, value: bytes) -> bytes:
    return fcntl.ioctl(control, number, struct.pack("16s24s", device, value))


def _check(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number or errno.EPERM, f"{what}: {os.strerror(number)}")
