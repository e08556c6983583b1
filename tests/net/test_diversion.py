"""Some addresses' new connections go to a socket that nobody reads; all others reach the listener."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.net.callers import block_of
from swarm.net.diversion import Block, Diversion, Instruction, program

ONE, OTHER = "127.0.0.1", "127.0.0.2"
addresses = st.ip_addresses()
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's interface is Linux's")


def packet_of(source: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    if source.version == 4:
        return bytes([0x45]) + bytes(11) + source.packed + bytes(4)
    return bytes([0x60]) + bytes(7) + source.packed + bytes(16)


def run(instructions: list[Instruction], packet: bytes) -> int:
    """What classic BPF says: offsets from 0xFFF00000 on count from the IP header."""
    at = value = 0
    while True:
        code, yes, no, k = instructions[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("!I", packet, k - 0xFFF00000)
            case 0x30:
                value = packet[k - 0xFFF00000]
            case 0x74:
                value >>= k
            case 0x15:
                at += yes if value == k else no
            case 0x05:
                at += k
            case 0x06:
                return k
            case _:
                raise AssertionError(f"instruction {code:#x}")


@given(st.lists(addresses.map(block_of), max_size=64), addresses)
def test_a_program_diverts_the_sources_of_its_blocks_alone(blocks: list[Block], source) -> None:
    inside = any(source in block for block in blocks)
    assert run(program(blocks), packet_of(source)) == inside
    for block in blocks:
        assert run(program(blocks), packet_of(block[-1])) == 1


@contextlib.contextmanager
def listener(host: str) -> Iterator[socket.socket]:
    """A socket as libp2p's: another one may share its port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, 0))
        made.listen(100)
        made.settimeout(0.3)
        yield made


def arrives(to: socket.socket, source: str) -> bool:
    """Whether a new connection from `source` reaches the listener."""
    with socket.socket(to.family) as caller:
        caller.settimeout(0.3)
        caller.bind((source, 0))
        with contextlib.suppress(TimeoutError):
            caller.connect(to.getsockname()[:2])
        try:
            accepted, _ = to.accept()
        except TimeoutError:
            return False
        accepted.close()
        return True


@on_linux
def test_new_connections_of_a_block_stay_away_and_others_arrive() -> None:
    with listener(ONE) as port:
        before = socket.create_connection(port.getsockname(), source_address=(OTHER, 0))
        accepted, _ = port.accept()
        diversion = Diversion([port.getsockname()])
        diversion.divert([ipaddress.IPv4Network(OTHER)])
        assert not any(arrives(port, OTHER) for _ in range(3))
        assert all(arrives(port, ONE) for _ in range(100))
        accepted.sendall(b"still here")
        assert before.recv(10) == b"still here"
        diversion.divert([ipaddress.IPv4Network("127.0.0.3")])
        assert arrives(port, OTHER)
        diversion.close()
        assert all(arrives(port, source) for source in (OTHER, "127.0.0.3") for _ in range(50))
        for end in (before, accepted):
            end.close()


@on_linux
@pytest.mark.parametrize(("block", "stays_away"), [("::/64", True), ("2001:db8::/64", False), ("0.0.0.0/32", False)])
def test_ipv6_is_diverted_by_its_network(block: str, stays_away: bool) -> None:
    if not socket.has_ipv6 or "00000000000000000000000000000001" not in _own_ipv6():
        pytest.skip("this machine has no IPv6")
    with listener("::1") as port:
        diversion = Diversion([port.getsockname()[:2]])
        diversion.divert([ipaddress.ip_network(block)])
        assert [arrives(port, "::1") for _ in range(2)] == [not stays_away] * 2
        diversion.close()
        assert arrives(port, "::1")


def _own_ipv6() -> str:
    try:
        with open("/proc/net/if_inet6") as file:
            return file.read()
    except OSError:
        return ""


@on_linux
def test_a_port_that_nobody_may_share_is_left_alone() -> None:
    with socket.socket() as port:
        port.bind((ONE, 0))
        port.listen(10)
        port.settimeout(0.3)
        diversion = Diversion([port.getsockname()])
        with pytest.raises(OSError, match="in use"):
            diversion.divert([ipaddress.IPv4Network(OTHER)])
        assert arrives(port, OTHER)
        diversion.close()
