"""The addresses on which a host listens, and those that it gives to others.

A host listens on IPv4 and IPv6, if the machine has both, with the same port: many machines in mobile networks have only
IPv6. This file chooses the port, and not the daemon, so that the port is known for every address of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import socket
from collections.abc import Iterable, Sequence

from swarm.net.addresses import AddressError, components, split_peer
from swarm.net.interfaces import IpAddress, own_addresses

MAX_ADDRESSES = 16
"""Largest number of addresses given to others."""
_TRIES = 200
_LASTING_PORTS = range(10_000, 32_000)
"""Ports below the range that systems use for outgoing connections, so they stay free between two starts."""
_ANY = ("0.0.0.0", "::")


def listen_on(port: int) -> tuple[str, ...]:
    """Multiaddresses to listen on a TCP port at all IPv4 and IPv6 addresses; port 0: any free port."""
    return (f"/ip4/0.0.0.0/tcp/{port}", f"/ip6/::/tcp/{port}")


DEFAULT_LISTEN = listen_on(0)


def settle(listen: Sequence[str]) -> tuple[str, ...]:
    """`listen` without addresses of a family that this machine lacks, and with a free TCP port in place of 0.

    All addresses stay if the machine has neither family. Raises AddressError.
    """
    places = [(address, dict(components(address))) for address in listen]
    usable = [(address, parts) for address, parts in places if not _is_any(parts) or _can_bind(_host(parts), 0)]
    places = usable or places
    open_hosts = [_host(parts) for _, parts in places if parts.get("tcp") == "0"]
    port = _free_port(open_hosts) if open_hosts else 0
    return tuple(
        address.replace("/tcp/0", f"/tcp/{port}", 1) if parts.get("tcp") == "0" else address
        for address, parts in places
    )


def lasting_port() -> int:
    """A TCP port that is free now on IPv4 and IPv6, and that no outgoing connection will use; 0 if none was found."""
    for _ in range(_TRIES):
        port = random.choice(_LASTING_PORTS)
        if all(_can_bind(host, port) for host in _ANY if _can_bind(host, 0)):
            return port
    return 0


def told(listen: Sequence[str], visible: Iterable[str], peer_id: str) -> list[str]:
    """At most MAX_ADDRESSES addresses to give to others, best first, each ending in /p2p/ and the host's peer id.

    `visible`: the addresses that the daemon reports, such as the public address of the router.
    """
    own = own_addresses()
    named = [each for address in listen for each in _expanded(address, own)]
    seen = [split_peer(address)[0] for address in visible]
    others = [address for address in seen if "/p2p-circuit" not in address and not _is_ours(address, listen)]
    ranked = sorted(named, key=lambda address: _rank(address, own))
    whole = [f"{address}/p2p/{peer_id}" for address in dict.fromkeys((*ranked, *others))]
    # the daemon's relay addresses are kept unchanged: they already end in our peer id
    whole += [address for address in visible if "/p2p-circuit" in address]
    return whole[: MAX_ADDRESSES - 1] + whole[-1:] if len(whole) > MAX_ADDRESSES else whole


def on_loopback(maddrs: Iterable[str]) -> tuple[str, ...]:
    """Loopback addresses for a process on this machine that listens at `maddrs`; empty if it is on another machine.

    They stay valid if this machine's own addresses change, such as when it moves to another network.
    """
    found: dict[str, None] = {}
    for address in maddrs:
        with contextlib.suppress(AddressError, ValueError):  # others have told it: it is judged when it is dialled
            parts = dict(components(address))
            host = _host(parts)
            if host is None or host in _ANY or "p2p-circuit" in parts or bound(host, 0) is not None:
                continue
            version, loopback = (4, "127.0.0.1") if "ip4" in parts else (6, "::1")
            found[address.replace(f"/ip{version}/{host}/", f"/ip{version}/{loopback}/", 1)] = None
    return tuple(found)


def check_announced(announce: Sequence[str], peer_id: str) -> tuple[str, ...]:
    """Check the values of --announce; returns each address once, without a peer id. Raises AddressError."""
    checked = []
    for address in announce:
        plain, named = split_peer(address)
        parts = dict(components(address))
        if named is not None and named != peer_id:
            raise AddressError(f"--announce {address}: it names peer {named}, but this is {peer_id}; leave out /p2p/…")
        _check_announced_host(address, parts)
        port = parts.get("tcp") or parts.get("udp")
        if "p2p-circuit" not in parts and port is None:
            raise AddressError(f"--announce {address}: the port is missing; use for example {plain}/tcp/4001")
        if port == "0":
            raise AddressError(
                f"--announce {address}: port 0 cannot be dialled; give the port that leads to this machine, and --port"
            )
        checked.append(plain)
    found = tuple(dict.fromkeys(checked))
    if len(found) > MAX_ADDRESSES:
        raise AddressError(
            f"--announce is given {len(found)} times; at most {MAX_ADDRESSES} addresses are announced: leave some out"
        )
    return found


def _check_announced_host(address: str, parts: dict[str, str]) -> None:
    host = parts.get("ip4") or parts.get("ip6")
    if host is None:
        if not any(name in parts for name in ("dns", "dns4", "dns6", "p2p-circuit")):
            raise AddressError(f"--announce {address}: it has neither an IP address nor a DNS name")
        return
    ip = ipaddress.ip_address(host)
    reason = None
    if ip.is_unspecified:
        reason = "this means all addresses of this machine and cannot be dialled; give the address that others can dial"
    elif ip.is_multicast or (ip.version == 4 and str(ip) == "255.255.255.255"):
        reason = "this is a multicast or broadcast address, not the address of a machine"
    elif ip.version == 6 and ip.is_link_local:
        reason = "addresses that begin with fe80 are valid only within one local network; give another address"
    elif ip.version == 4 and (int(ip) >> 24) in (0, *range(240, 256)):
        reason = "no machine has such an address"
    if reason is not None:
        raise AddressError(f"--announce {address}: {reason}")


def _expanded(address: str, own: Sequence[IpAddress]) -> list[str]:
    parts = dict(components(address))
    if (parts.get("tcp") or parts.get("udp")) == "0":
        return []  # the daemon has chosen the port, so `visible` contains these addresses
    if not _is_any(parts):
        return [address]
    version = 4 if "ip4" in parts else 6
    head = f"/ip{version}/{_host(parts)}/"
    return [address.replace(head, f"/ip{version}/{ip}/", 1) for ip in own if ip.version == version]


def _is_ours(address: str, listen: Sequence[str]) -> bool:
    """Whether the address is one of this machine's own: those were ranked before, or left out on purpose."""
    parts = dict(components(address))
    host = _host(parts)
    ports = {dict(components(each)).get("tcp") for each in listen}
    local = host is not None and (ipaddress.ip_address(host).is_loopback or _can_bind(host, 0))
    return local and (parts.get("tcp") in ports)


def _rank(address: str, own: Sequence[IpAddress]) -> int:
    host = _host(dict(components(address)))
    ip = None if host is None else ipaddress.ip_address(host)
    return own.index(ip) if ip in own else len(own)


def _host(parts: dict[str, str]) -> str | None:
    return parts.get("ip4") or parts.get("ip6")


def _is_any(parts: dict[str, str]) -> bool:
    return _host(parts) in _ANY


def _can_bind(host: str | None, port: int) -> bool:
    return host is None or bound(host, port) is None


def _free_port(hosts: Sequence[str | None]) -> int:
    """A TCP port that is free at all of `hosts`; 0 if none was found, so that the daemon chooses one."""
    first = next((host for host in hosts if host is not None), None)
    for _ in range(_TRIES if first is not None else 0):
        try:
            with _socket(str(first)) as probe:
                probe.bind((first, 0))
                port = int(probe.getsockname()[1])
        except OSError:
            return 0
        if all(_can_bind(host, port) for host in hosts):
            return port
    return 0


def bound(host: str, port: int) -> int | None:
    """Try to bind a TCP port and release it at once. Returns the error number, or None if the port is free."""
    try:
        with _socket(host) as probe:
            probe.bind((host, port))
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return None


def _socket(host: str) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore leftover connections of an earlier process
    if ":" in host:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return found
