"""Diverts new connections of some address blocks from the libp2p daemon to a socket that nobody reads.

The kernel lets several listening sockets of one user share an address (SO_REUSEPORT; libp2p's listeners have this
option), and a small program of the user chooses the socket for each new connection (SO_ATTACH_REUSEPORT_CBPF, Linux
4.6). Connections that exist are not touched. The diverted ones cost this machine almost nothing: the queue of a socket
that nobody reads is soon full, and then the kernel drops further attempts. No privilege is needed.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
import sys
from collections.abc import Collection, Sequence

Block = ipaddress.IPv4Network | ipaddress.IPv6Network
"""One IPv4 address (/32), or the IPv6 addresses of one network (/64)."""
MOST_BLOCKS = 64
"""Largest number of blocks that are diverted at a time. The kernel allows a program of 4,096 instructions."""

_ATTACH_PROGRAM = 51  # SO_ATTACH_REUSEPORT_CBPF
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here on count from the IP header
_SOURCE4, _SOURCE6 = _NETWORK_HEADER + 12, _NETWORK_HEADER + 8
# Instructions of classic BPF, as of linux/filter.h: load a word or a byte, shift right, jump, return a constant
_LOAD_WORD, _LOAD_BYTE, _SHIFT, _JUMP_IF_EQUAL, _JUMP, _RETURN = 0x20, 0x30, 0x74, 0x15, 0x05, 0x06
_DAEMON, _SINK = 0, 1
"""What the program returns: the number of a socket, in the order in which they began to listen."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


class Diversion:
    """The diversion at the listening sockets of this machine's daemon."""

    def __init__(self, listen: Sequence[tuple[str, int]]) -> None:
        """`listen`: the IP addresses and TCP ports at which the daemon listens."""
        self._listen = listen
        self._sinks: list[socket.socket] = []

    def divert(self, blocks: Collection[Block]) -> None:
        """Divert the connections of these blocks, and no others. At most MOST_BLOCKS of them are diverted.

        Raises OSError if this system does not allow it; then nothing is diverted.
        """
        if not sys.platform.startswith("linux"):
            raise OSError(f"{sys.platform} does not let a program choose among the sockets of a port")
        try:
            if blocks and not self._sinks:
                for host, port in self._listen:
                    self._sinks.append(_sink(host, port))
            for sink in self._sinks:
                _attach(sink, program(list(blocks)[:MOST_BLOCKS]))
        except OSError:
            self._remove()
            raise
        if not blocks:
            self._remove()

    def close(self) -> None:
        """Divert nothing any more."""
        if self._sinks:
            self.divert(())

    def _remove(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks.clear()


def program(blocks: Collection[Block]) -> list[Instruction]:
    """The program that returns 1 for a packet whose source is in one of the blocks, else 0."""
    four: list[Instruction] = []
    six: list[Instruction] = []
    for block in blocks:
        if isinstance(block, ipaddress.IPv4Network):
            four += [(_JUMP_IF_EQUAL, 0, 1, int(block.network_address)), (_RETURN, 0, 0, _SINK)]
        else:
            high, low = struct.unpack_from("!II", block.network_address.packed)
            six += [(_LOAD_WORD, 0, 0, _SOURCE6), (_JUMP_IF_EQUAL, 0, 3, high), (_LOAD_WORD, 0, 0, _SOURCE6 + 4)]
            six += [(_JUMP_IF_EQUAL, 0, 1, low), (_RETURN, 0, 0, _SINK)]
    four = [(_LOAD_WORD, 0, 0, _SOURCE4), *four, (_RETURN, 0, 0, _DAEMON)]
    six = [*six, (_RETURN, 0, 0, _DAEMON)]
    version: list[Instruction] = [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT, 0, 0, 4)]
    return [*version, (_JUMP_IF_EQUAL, 1, 0, 4), (_JUMP, 0, 0, len(four)), *four, *six]


def _sink(host: str, port: int) -> socket.socket:
    """A socket that listens beside the daemon's. Until it has a program, it may get a connection of anybody."""
    sink = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if sink.family == socket.AF_INET6:
            sink.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sink.bind((host, port))
        sink.listen(0)
    except OSError:
        sink.close()
        raise
    return sink


def _attach(sink: socket.socket, instructions: list[Instruction]) -> None:
    raw = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    held = ctypes.create_string_buffer(raw)
    sink.setsockopt(socket.SOL_SOCKET, _ATTACH_PROGRAM, struct.pack("@HP", len(instructions), ctypes.addressof(held)))
