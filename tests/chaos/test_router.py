"""The router of a home: what it lets in and out, and that checksums stay right."""

from __future__ import annotations

import socket
import struct

import pytest

from peers.chaos.router import FORGETS_S, HOME, Router

OUTSIDE, OTHER = "10.77.0.3", "10.77.0.4"
TCP, UDP, ICMP = 6, 17, 1


def sum16(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def packet(protocol: int, source: str, target: str, ports: tuple[int, int], *, unsummed: bool = False) -> bytes:
    """With an IP option, and right checksums."""
    here, there = socket.inet_aton(source), socket.inet_aton(target)
    place = {TCP: 16, UDP: 6, ICMP: 2}[protocol]
    inner = bytearray(struct.pack("!HH", *ports) + bytes(range(24)))
    inner[place : place + 2] = b"\0\0"
    if not unsummed:
        pseudo = here + there + struct.pack("!HH", protocol, len(inner))
        inner[place : place + 2] = (~sum16(pseudo + inner) & 0xFFFF).to_bytes(2, "big")
    header = bytearray(struct.pack("!BBHHHBBH", 0x46, 0, 24 + len(inner), 7, 0, 64, protocol, 0) + here + there)
    header += bytes([1, 1, 1, 0])
    header[10:12] = (~sum16(bytes(header)) & 0xFFFF).to_bytes(2, "big")
    return bytes(header + inner)


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_addresses_change_and_checksums_stay_right(protocol: int) -> None:
    router = Router(OUTSIDE)
    assert router.out(packet(protocol, HOME, OTHER, (4001, 5000)), 0.0) == packet(
        protocol, OUTSIDE, OTHER, (4001, 5000)
    )
    assert router.into(packet(protocol, OTHER, OUTSIDE, (5000, 4001)), 1.0) == packet(
        protocol, OTHER, HOME, (5000, 4001)
    )


def test_no_checksum_stays_none() -> None:
    sent = packet(UDP, HOME, OTHER, (1, 2), unsummed=True)
    assert Router(OUTSIDE).out(sent, 0.0) == packet(UDP, OUTSIDE, OTHER, (1, 2), unsummed=True)


@pytest.mark.parametrize(
    ("source", "ports"), [(OTHER, (5001, 4001)), (OTHER, (5000, 4002)), ("10.77.0.9", (5000, 4001))]
)
def test_only_answers_come_in(source: str, ports: tuple[int, int]) -> None:
    router = Router(OUTSIDE)
    router.out(packet(TCP, HOME, OTHER, (4001, 5000)), 0.0)
    assert router.into(packet(TCP, source, OUTSIDE, ports), 0.0) is None


def test_what_is_silent_for_long_is_forgotten() -> None:
    router = Router(OUTSIDE)
    answer = packet(TCP, OTHER, OUTSIDE, (5000, 4001))
    router.out(packet(TCP, HOME, OTHER, (4001, 5000)), 0.0)
    assert router.into(answer, FORGETS_S) is not None
    assert router.into(answer, FORGETS_S + 1.0) is None


def test_other_protocols_and_strange_sources_do_not_pass() -> None:
    router = Router(OUTSIDE)
    assert router.out(packet(ICMP, HOME, OTHER, (0, 0)), 0.0) is None
    assert router.out(packet(TCP, "10.9.9.9", OTHER, (4001, 5000)), 0.0) is None
    assert router.into(packet(ICMP, OTHER, OUTSIDE, (0, 0)), 0.0) is None
