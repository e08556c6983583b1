"""Counts the new connections of each address block, and finds the blocks that make too many."""

from __future__ import annotations

import functools
import ipaddress
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from swarm.net.diversion import Block
from swarm.net.interfaces import IpAddress
from swarm.net.listening import bound
from swarm.net.token_bucket import TokenBucket

BURST = 100
"""Connections that one block may make at once. Many peers behind one router may all come back at once."""
RATE = 1.0
"""Further connections per second."""
FORGIVEN_S = 1800.0
"""Seconds after which an earlier flood of a block no longer counts."""
_MOST_BLOCKS = 4096
"""Largest number of blocks whose connections are counted. The one that has been counted for longest is forgotten."""

Connection = tuple[str, str]
"""Address and port of the other side, in the kernel's notation."""
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_COUNTERS = Path("/proc/self/net/snmp")
_ROUTES = Path("/proc/self/net/route")
_UNFINISHED = ("02", "03", "0A", "0C")
"""States of sockets without a connection: their source addresses may be forged."""


@dataclass(frozen=True, slots=True)
class Flood:
    """A block that has made too many connections."""

    block: Block
    connections: int
    """Number of its connections since it was first seen, or since its last flood."""
    seconds: float
    times: int
    """Number of its floods so far, with this one; those that are forgiven do not count."""


class Callers:
    """The connections to some ports of this machine, looked at again and again."""

    def __init__(self, is_exempt: Callable[[IpAddress], bool] | None = None) -> None:
        """`is_exempt(address)`: whether an address may make any number of connections; None: see `exempt`."""
        self._is_exempt = is_exempt or functools.lru_cache(maxsize=1024)(exempt)
        self._known: frozenset[Connection] | None = None
        self._counted: dict[Block, _Counted] = {}

    def look(self, present: frozenset[Connection], now: float) -> list[Flood]:
        """The blocks that have exceeded the rate since the last look. The first look only notes what is there.

        `present`: connections that exist now. `now`: seconds of a monotonic clock.
        """
        new, self._known = present - (present if self._known is None else self._known), present
        floods = []
        for block, number in Counter(block for at, _ in new if (block := self._block(at)) is not None).items():
            counted = self._counted.setdefault(block, _Counted(TokenBucket(RATE, BURST, now), now))
            counted.connections += number
            counted.bucket.charge(number, now)
            if counted.bucket.wait(0, now) > 0:
                times = 1 if now - counted.flooded_at > FORGIVEN_S else counted.floods + 1
                floods.append(Flood(block, counted.connections, now - counted.since, times))
                del self._counted[block]  # to the end, so that it is not forgotten soon
                self._counted[block] = _Counted(counted.bucket, now, floods=times, flooded_at=now)
        while len(self._counted) > _MOST_BLOCKS:
            del self._counted[next(iter(self._counted))]
        return floods

    def _block(self, at: str) -> Block | None:
        address = _address(at)
        return None if self._is_exempt(address) else block_of(address)


@dataclass(slots=True)
class _Counted:
    bucket: TokenBucket
    since: float
    connections: int = 0
    floods: int = 0
    flooded_at: float = 0.0
    """Time of the last of these floods."""


def block_of(address: IpAddress) -> Block:
    return ipaddress.ip_network((address, 32 if address.version == 4 else 64), strict=False)


def exempt(address: IpAddress) -> bool:
    """Whether the address may stand for anybody: this machine, or a router that puts its own address in place of the
    sender's, as container systems do.
    """
    return address.is_loopback or bound(str(address), 0) is None or address in _gateways()


def _gateways() -> set[IpAddress]:
    try:
        lines = _ROUTES.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return set()
    found = (line.split("\t")[2] for line in lines)
    return {_address(gateway) for gateway in found if int(gateway, 16)}


def accepted_so_far() -> int:
    """Number of TCP connections that this machine has accepted, at all ports. Far cheaper to read than `connections`.

    Raises OSError if this system does not count them.
    """
    names, values = (line.split() for line in _COUNTERS.read_text(encoding="ascii").splitlines() if line[:4] == "Tcp:")
    return int(values[names.index("PassiveOpens")])


def connections(ports: Iterable[int]) -> frozenset[Connection]:
    """The connections to these TCP ports of this machine that exist, or have ended within a minute.

    Raises OSError if this system has no table of them.
    """
    endings = tuple(f":{port:04X}" for port in ports)
    found = set()
    for table in _TABLES:
        if table.exists():  # a machine may lack IPv6
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, remote, state, _ = line.split(None, 4)
                if local.endswith(endings) and state not in _UNFINISHED:
                    host, _, port = remote.partition(":")
                    found.add((host, port))
    return frozenset(found)


def _address(digits: str) -> IpAddress:
    """An address of the kernel's tables: words of 32 bits in hex, each with this machine's order of bytes."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(packed) == 4:
        return ipaddress.IPv4Address(packed)
    return ipaddress.IPv6Address(packed).ipv4_mapped or ipaddress.IPv6Address(packed)
