"""Where a host listens and what is told of it; what a person may announce."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from swarm.net import listening
from swarm.net.addresses import AddressError, components, split_peer
from swarm.net.dialler import Dialler
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.interfaces import own_addresses
from swarm.net.listening import DEFAULT_LISTEN, check_announced, lasting_port, listen_on, on_loopback, settle, told
from swarm.net.records import MAX_ADDRESSES
from swarm.protocol.ids import Actor

PEER = "12D3KooWFgUwxVPokMAUw9ynzJgUu4273drzeBUVqVxeoz4iD6mu"
OTHER = "12D3KooWQYV9dGMFoRzNStwpXztXaBUjtPqi6aU76ZgUriHhKust"


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        return True
    return False


def test_any_port_is_one_port_of_both_families() -> None:
    found = settle(DEFAULT_LISTEN)
    ports = {dict(components(address))["tcp"] for address in found}
    assert len(ports) == 1 and ports != {"0"}
    assert len(found) == (2 if has_ipv6() else 1)


def test_a_family_that_the_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = listening.bound
    monkeypatch.setattr(listening, "bound", lambda host, port: 97 if ":" in host else real(host, port))
    assert [address.split("/")[1] for address in settle(listen_on(0))] == ["ip4"]
    assert settle(("/ip6/::/tcp/4001",)) == ("/ip6/::/tcp/4001",), "who asks for it is told why it fails"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_peers_reach_each_other_over_ipv6_alone(
    make_host: Callable[..., Awaitable[Host]], tmp_path: Path
) -> None:
    hosts = [await Host.create(tmp_path / f"identity{n}", DEFAULT_LISTEN) for n in range(2)]
    try:
        port = dict(components(hosts[0].listen[0]))["tcp"]
        await hosts[1].connect(hosts[0].peer_id, [f"/ip6/::1/tcp/{port}"])
    finally:
        for host in hosts:
            await host.close()


async def test_a_host_tells_real_addresses_and_at_most_sixteen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = await Host.create(tmp_path / "identity", DEFAULT_LISTEN)
    try:
        where = await host.addresses()
        ips = [next(value for name, value in components(address) if name in ("ip4", "ip6")) for address in where]
        assert ips == [str(address) for address in own_addresses()]
        many = [ipaddress.ip_address(f"10.0.{n}.1") for n in range(40)]
        monkeypatch.setattr(listening, "own_addresses", lambda: many)
        assert len(await host.addresses()) == MAX_ADDRESSES == listening.MAX_ADDRESSES
    finally:
        await host.close()


def test_what_routers_and_relays_have_made_of_it_is_told_too() -> None:
    public = f"/ip4/203.0.113.5/tcp/40001/p2p/{PEER}"
    relayed = f"/ip4/203.0.113.9/tcp/4001/p2p/{OTHER}/p2p-circuit/p2p/{PEER}"
    found = told(("/ip4/127.0.0.1/tcp/4001",), [f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", relayed, public], PEER)
    assert found == [f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", public, relayed]
    many = [f"/ip4/203.0.113.{n}/tcp/1/p2p/{PEER}" for n in range(30)]
    assert told((), [*many, relayed], PEER)[-1] == relayed, "often the only one that leads here"
    assert all(split_peer(address)[1] == PEER for address in found)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("/ip4/0.0.0.0/tcp/4001", "all addresses"),
        ("/ip6/::/tcp/4001", "all addresses"),
        ("/ip4/203.0.113.7", "the port is missing"),
        ("/ip4/203.0.113.7/tcp/0", "port 0"),
        ("/dns4/example.org", "the port is missing"),
        ("/dns4/-swarm..example/tcp/4001", "this is no DNS name: use letters"),
        ("/dns/the swarm/tcp/4001", "this is no DNS name: use letters"),
        ("/dns/schwärme.example/tcp/4001", "in its form xn--"),
        ("/ip6/2001:db8::7%eth0/tcp/4001", "names a link of one machine"),
        ("swarm.example:4001", "such as /dns/swarm.example/tcp/4001$"),
        ("203.0.113.7:4001", "such as /ip4/203.0.113.7/tcp/4001$"),
        ("[2001:db8::7]:4001", "such as /ip6/2001:db8::7/tcp/4001$"),
        ("https://swarm.example", "such as /ip4/203.0.113.5/tcp/4001"),
        ("/tcp/4001", "neither an IP address nor a DNS name"),
        ("/ip4/224.0.0.1/tcp/4001", "a multicast or broadcast address"),
        ("/ip4/255.255.255.255/tcp/4001", "a multicast or broadcast address"),
        ("/ip4/250.0.0.1/tcp/4001", "no machine"),
        ("/ip6/fe80::1/tcp/4001", "fe80"),
        (f"/ip4/203.0.113.7/tcp/4001/p2p/{OTHER}", "it names peer"),
        ("203.0.113.7:4001", "not a multiaddress"),
        ("/ip4/203.0.113.700/tcp/4001", "203.0.113.700"),
    ],
)
def test_what_nobody_can_dial_is_not_announced(address: str, what: str) -> None:
    with pytest.raises(AddressError, match=what):
        check_announced([address], PEER)


def test_what_is_announced_is_taken_once_and_without_the_id() -> None:
    plain = "/ip4/203.0.113.7/tcp/4001"
    assert check_announced([plain, f"{plain}/p2p/{PEER}", "/dns4/example.org/tcp/4001"], PEER) == (
        plain,
        "/dns4/example.org/tcp/4001",
    )
    with pytest.raises(AddressError, match="at most 16"):
        check_announced([f"/ip4/203.0.113.{n}/tcp/1" for n in range(17)], PEER)


def test_a_lasting_port_is_none_that_the_system_gives_away() -> None:
    assert 10_000 <= lasting_port() < 32_000


def test_a_process_on_this_machine_is_dialled_at_loopback_too() -> None:
    """So that it is found when this machine's own addresses have changed."""
    own = [str(address) for address in own_addresses()]
    here = [f"/ip{6 if ':' in each else 4}/{each}/tcp/4001/p2p/{PEER}" for each in own]
    v4, v6 = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", f"/ip6/::1/tcp/4001/p2p/{PEER}"
    assert set(on_loopback(here)) == {v6 if ":" in each else v4 for each in own}
    elsewhere = ["/ip4/203.0.113.7/tcp/4001", "/ip6/2001:db8::7/tcp/4001", "/dns4/example.org/tcp/4001"]
    relayed = f"{here[0].replace(PEER, OTHER)}/p2p-circuit/p2p/{PEER}"
    assert on_loopback([*elsewhere, relayed, "/ip4/0.0.0.0/tcp/4001", "nonsense", "/ip4/999.1.1.1/tcp/1"]) == ()


def test_the_dialler_adds_loopback_to_what_it_is_told_once() -> None:
    dialler = Dialler(cast(Host, None), Actor(OTHER, 1), "run", Role.PEER, b"", lambda peer: False)
    own = next(address for address in own_addresses() if address.version == 4)
    here, there = f"/ip4/{own}/tcp/4001/p2p/{PEER}", f"/ip4/203.0.113.7/tcp/4001/p2p/{PEER}"
    assert dialler.learn(PEER, [here])
    assert dialler.maddrs[PEER] == (here, f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}")
    assert not dialler.learn(PEER, [here]), "nothing has changed"
    assert dialler.learn(PEER, [there]) and dialler.maddrs[PEER] == (there,), "it has moved away"
