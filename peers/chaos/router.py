"""The router of a home: translates addresses, and admits only replies (RFC 3022, checksums by RFC 1624).

Ports stay unchanged, because one host is behind it. It admits packets only from the address and port that the host has
sent to.
"""

from __future__ import annotations

import socket

FORGETS_S = 120.0
"""Seconds after which the router forgets a silent connection."""
HOME = "10.0.0.2"
"""The address of every host behind a router, as it sees itself."""
_CHECKSUM = {6: 16, 17: 6}
"""For TCP and UDP, the offset of the checksum behind the IP header."""
_SOURCE, _TARGET = 12, 16


class Router:
    """The router of one host. `address`: the IPv4 address that the internet sees. Packets are whole IPv4 packets;
    others than TCP and UDP are dropped.
    """

    def __init__(self, address: str) -> None:
        self._outside = socket.inet_aton(address)
        self._inside = socket.inet_aton(HOME)
        self._heard: dict[bytes, float] = {}
        """The time when a packet was last sent, by protocol, the other end's address and port, and own port."""
        self._forgot_at = 0.0

    def out(self, packet: bytes, now: float) -> bytes | None:
        """The packet that leaves for the internet; None: it is dropped."""
        if packet[9] not in _CHECKSUM or packet[_SOURCE : _SOURCE + 4] != self._inside:
            return None
        here, there = _ports(packet)
        if now - self._forgot_at > FORGETS_S:
            self._forgot_at = now
            self._heard = {end: at for end, at in self._heard.items() if now - at <= FORGETS_S}
        self._heard[packet[9:10] + packet[_TARGET : _TARGET + 4] + there + here] = now
        return _readdressed(packet, _SOURCE, self._outside)

    def into(self, packet: bytes, now: float) -> bytes | None:
        """The packet that reaches the host; None: it is dropped, because the host has not asked for it."""
        if packet[9] not in _CHECKSUM:
            return None
        there, here = _ports(packet)
        heard = self._heard.get(packet[9:10] + packet[_SOURCE : _SOURCE + 4] + there + here)
        if heard is None or now - heard > FORGETS_S:
            return None
        return _readdressed(packet, _TARGET, self._inside)


def _ports(packet: bytes) -> tuple[bytes, bytes]:
    """Ports of the source and the target."""
    at = 4 * (packet[0] & 15)
    return packet[at : at + 2], packet[at + 2 : at + 4]


def _readdressed(packet: bytes, place: int, address: bytes) -> bytes:
    changed = bytearray(packet)
    before = changed[place : place + 4]
    changed[place : place + 4] = address
    for at in (10, 4 * (packet[0] & 15) + _CHECKSUM[packet[9]]):
        old = int.from_bytes(changed[at : at + 2], "big")
        if at != 10 and not old and packet[9] == 17:
            continue  # UDP without a checksum
        total = ~old & 0xFFFF
        for word in (0, 2):
            total += ~int.from_bytes(before[word : word + 2], "big") & 0xFFFF
            total += int.from_bytes(address[word : word + 2], "big")
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        changed[at : at + 2] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed)
