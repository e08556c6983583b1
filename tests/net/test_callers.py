"""Which addresses make too many connections."""

from __future__ import annotations

import socket
import struct

import pytest

from swarm.net import callers
from swarm.net.callers import BURST, FORGIVEN_S, RATE, Callers, Connection, accepted_so_far, connections, exempt


def at(address: str, ports: range) -> frozenset[Connection]:
    """Connections as the kernel's tables tell them."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    digits = "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
    return frozenset((digits, f"{port:04X}") for port in ports)


@pytest.fixture
def watched() -> Callers:
    found = Callers(lambda address: str(address) == "192.0.2.1")
    found.look(frozenset(), 0.0)
    return found


def test_a_burst_of_a_whole_house_is_no_flood_and_one_more_is(watched: Callers) -> None:
    assert watched.look(at("203.0.113.7", range(BURST)), 1.0) == []
    (flood,) = watched.look(at("203.0.113.7", range(1000, 1003)), 1.5)
    assert (str(flood.block), flood.connections, flood.seconds) == ("203.0.113.7/32", BURST + 3, 0.5)


def test_connections_that_stay_are_counted_once_and_those_of_before_never() -> None:
    before = Callers(lambda _: False)
    stay = at("203.0.113.7", range(5 * BURST))
    assert [before.look(stay, float(t)) for t in range(3)] == [[], [], []]


def test_a_slow_caller_never_floods_and_a_faster_one_does(watched: Callers) -> None:
    slow, fast = "203.0.113.7", "203.0.113.8"
    floods = []
    for second in range(1, 4 * BURST):
        ports = range(second * 2, second * 2 + 2)
        floods += watched.look(at(slow, ports[: int(RATE)]) | at(fast, ports), float(second))
    assert {str(flood.block) for flood in floods} == {f"{fast}/32"}


def test_an_address_that_floods_again_is_told_again(watched: Callers) -> None:
    times = [
        flood.times
        for n, now in enumerate([1.0, 2.0, FORGIVEN_S, 2 * FORGIVEN_S + 1, 9 * FORGIVEN_S])
        for flood in watched.look(at("203.0.113.7", range(n * 1000, n * 1000 + 2 * BURST)), now)
    ]
    assert times == [1, 2, 3, 1, 1]


def test_all_addresses_of_an_ipv6_network_count_together(watched: Callers) -> None:
    present = frozenset[Connection]().union(*(at(f"2001:db8::{n:x}", range(1)) for n in range(BURST + 5)))
    (flood,) = watched.look(present, 1.0)
    assert str(flood.block) == "2001:db8::/64"
    assert not watched.look(at("2001:db8:0:1::1", range(5)), 1.0)


def test_an_ipv4_caller_of_an_ipv6_socket_counts_as_ipv4(watched: Callers) -> None:
    (flood,) = watched.look(at("::ffff:203.0.113.7", range(BURST + 2)), 1.0)
    assert str(flood.block) == "203.0.113.7/32"


def test_exempt_addresses_may_do_anything(watched: Callers) -> None:
    assert not watched.look(at("192.0.2.1", range(10 * BURST)), 1.0)


def test_this_machine_and_the_router_in_front_of_it_are_exempt(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        f"eth0\t00000000\t{at('172.17.0.1', range(1)).__iter__().__next__()[0]}\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    monkeypatch.setattr(callers, "_ROUTES", routes)
    address = callers.ipaddress.ip_address
    assert exempt(address("127.0.0.9")) and exempt(address("::1")) and exempt(address("172.17.0.1"))
    assert not exempt(address("172.17.0.2")) and not exempt(address("203.0.113.7"))


def test_only_a_limited_number_of_addresses_is_remembered(watched: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_MOST_BLOCKS", 10)
    for n in range(100):
        watched.look(at(f"203.0.113.{n}", range(1)), 1.0)
    assert len(watched._counted) == 10


def test_the_kernel_tells_connections_and_not_listeners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        number = port.getsockname()[1]
        assert not connections([number])
        before = accepted_so_far()
        with socket.create_connection(port.getsockname(), source_address=("127.0.0.2", 0)) as caller:
            assert connections([number]) == at("127.0.0.2", range(caller.getsockname()[1], caller.getsockname()[1] + 1))
            with socket.create_server(("127.0.0.1", 0)) as idle:
                assert not connections([idle.getsockname()[1]])
        assert accepted_so_far() > before
