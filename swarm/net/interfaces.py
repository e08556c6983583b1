"""This machine's own addresses, best first, for others to dial.

The libp2p daemon can announce only the addresses of the default route, or all addresses. The first choice leaves out a
VPN through which friends can reach this machine behind a home router. With the second, every peer would dial our
container bridges. So this file selects the addresses.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_VPN = re.compile(r"(tun|tap|utun|wg|tailscale|zt|ppp|nebula|wt|ipsec|gre|sit|vti|ham|proton|nord|mullvad|.*vpn)", re.I)
_OF_CONTAINERS = re.compile(
    r"(docker|br-[0-9a-f]{8,}|veth|cni|cbr|flannel|cali|cilium|kube|nodelocaldns|weave|podman|nerdctl|lxc|lxd|incus|"
    r"virbr|vnet|vmnet|vboxnet|bridge\d|vEthernet|hassio|crc|minikube|azv)",
    re.I,
)
_NET = Path("/sys/class/net")
_IF_INET6 = Path("/proc/net/if_inet6")
_TEMPORARY, _DEPRECATED, _TENTATIVE, _FAILED = 0x01, 0x20, 0x40, 0x08
_FAR = {socket.AF_INET: "8.8.8.8", socket.AF_INET6: "2620:fe::fe"}
"""Internet addresses used to ask the kernel which of our own addresses has a route to the internet; nothing is sent."""


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    addresses: tuple[IpAddress, ...]
    bridges_containers: bool = False
    """Whether the interface connects this machine to its own containers or virtual machines."""


def own_addresses() -> list[IpAddress]:
    """Addresses at which others may reach this machine; best first. Loopback only if there is nothing else."""
    return best_first(_interfaces(), [source for family in _FAR if (source := _source(family)) is not None])


def best_first(interfaces: Iterable[Interface], default: Iterable[IpAddress]) -> list[IpAddress]:
    """The addresses in this order: default route, VPNs, global addresses, other local networks.

    `default`: the addresses with a route to the internet. Link-local IPv4 addresses, those of container bridges and
    loopback are used only if there are no others.
    """
    sources = list(default)
    found = [(interface, address) for interface in interfaces for address in interface.addresses]
    places: list[Callable[[Interface, IpAddress], bool]] = [
        lambda interface, address: address in sources,
        lambda interface, address: _is_network(interface, address) and _VPN.match(interface.name) is not None,
        lambda interface, address: _is_network(interface, address) and address.is_global,
        lambda interface, address: _is_network(interface, address),
    ]
    best = [address for fits in places for interface, address in found if fits(interface, address)]
    if not best:
        best = [address for _, address in found if address.is_link_local and address.version == 4]
        best += [address for interface, address in found if interface.bridges_containers and not _is_odd(address)]
        best = best or [address for _, address in found if address.is_loopback]
    return list(dict.fromkeys(best))


def _is_network(interface: Interface, address: IpAddress) -> bool:
    return not interface.bridges_containers and not _is_odd(address)


def _is_odd(address: IpAddress) -> bool:
    return address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified


def _interfaces() -> list[Interface]:
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    unfit = _unfit_ipv6()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        if name not in up:
            continue
        texts = [e.address.partition("%")[0] for e in entries if e.family in (socket.AF_INET, socket.AF_INET6)]
        each = tuple(address for text in texts if (address := ipaddress.ip_address(text)) not in unfit)
        found.append(Interface(name, each, _bridges_containers(name)))
    return found


def _bridges_containers(name: str) -> bool:
    members = _NET / name / "brif"
    if members.is_dir():  # a bridge with a network card or a VPN in it is the machine's own network
        names = [member.name for member in members.iterdir()]
        return not any((_NET / member / "device").exists() or _VPN.match(member) for member in names)
    return _OF_CONTAINERS.match(name) is not None


def _unfit_ipv6() -> set[IpAddress]:
    """IPv6 addresses that are deprecated, tentative or duplicate, or temporary on an interface with a permanent one."""
    passing: dict[str, set[IpAddress]] = {}
    lasting: set[str] = set()
    unfit: set[IpAddress] = set()
    try:
        lines = _IF_INET6.read_text(encoding="ascii").splitlines()
    except OSError:
        return unfit
    for line in lines:
        digits, _, _, _, flags, name = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        state = int(flags, 16)
        if state & (_DEPRECATED | _TENTATIVE | _FAILED):
            unfit.add(address)
        elif state & _TEMPORARY:
            passing.setdefault(name, set()).add(address)
        elif address.is_global:
            lasting.add(name)
    return unfit.union(*(found for name, found in passing.items() if name in lasting))


def _source(family: socket.AddressFamily) -> IpAddress | None:
    """The address from which this machine would reach the internet."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_FAR[family], 9))
            found = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError:
        return None
    return None if _is_odd(found) else found
