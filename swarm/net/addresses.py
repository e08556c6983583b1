"""Conversion of multiaddresses from text, as people write them, to bytes, as libp2p expects them.

hivemind's encoder writes a `/p2p/` component as a CIDv1, which the Go daemon refuses ("length greater than remaining
number of bytes in buffer"). The daemon needs the bare multihash. So this file encodes multiaddresses itself, for the
few protocols that this project uses.
"""

from __future__ import annotations

import ipaddress

from swarm.dns_name import is_dns_name
from swarm.net.identity import IdentityError, peer_id_bytes

MAX_ADDRESS = 512

_CODES = {
    "ip4": 4,
    "tcp": 6,
    "ip6": 41,
    "dns": 53,
    "dns4": 54,
    "dns6": 55,
    "udp": 273,
    "p2p-circuit": 290,
    "p2p": 421,
    "quic": 460,
    "quic-v1": 461,
}
_BARE = {"p2p-circuit", "quic", "quic-v1"}


class AddressError(ValueError):
    """A multiaddress is malformed or unsupported; the message contains the address."""


def encode(address: str) -> bytes:
    """Binary form of a multiaddress. Raises AddressError."""
    out = bytearray()
    for name, value in components(address):
        out += varint(_CODES[name])
        match name:
            case "ip4" | "ip6":
                out += ipaddress.ip_address(value).packed
            case "tcp" | "udp":
                out += int(value).to_bytes(2, "big")
            case "p2p":
                raw = peer_id_bytes(value)
                out += varint(len(raw)) + raw
            case "dns" | "dns4" | "dns6":
                out += varint(len(value.encode())) + value.encode()
    return bytes(out)


def block_of(raw: bytes) -> str:
    """The address block of a binary multiaddress: an IPv4 /24 or an IPv6 /48.

    A provider may assign a whole block to one customer. For a connection through a relay, this is the relay's block.
    Empty if the multiaddress does not begin with an IP address.
    """
    code, rest = raw[:1], raw[1:]
    if code == bytes([_CODES["ip4"]]) and len(rest) >= 4:
        return str(ipaddress.ip_network((rest[:4], 24), strict=False))
    if code == bytes([_CODES["ip6"]]) and len(rest) >= 16:
        six = ipaddress.IPv6Address(rest[:16])
        if six.ipv4_mapped is not None:
            return str(ipaddress.ip_network((six.ipv4_mapped, 24), strict=False))
        return str(ipaddress.ip_network((six, 48), strict=False))
    return ""


def components(address: str) -> list[tuple[str, str]]:
    """[(protocol, value), …] of a multiaddress, with every value validated. Raises AddressError."""
    parts = address.split("/")
    if len(address) > MAX_ADDRESS or len(parts) < 2 or parts[0]:
        instead = _as_multiaddress(address) or "/ip4/203.0.113.5/tcp/4001/p2p/12D3Koo…"
        raise AddressError(f"{address[:80]!r} is not a multiaddress such as {instead}")
    found, words = [], iter(parts[1:])
    for name in words:
        if name not in _CODES:
            raise AddressError(f"{address!r}: unknown protocol {name!r}; known are {', '.join(sorted(_CODES))}")
        value = "" if name in _BARE else next(words, "")
        _check(address, name, value)
        found.append((name, value))
    return found


def split_peer(address: str) -> tuple[str, str | None]:
    """(address without its last /p2p/ component, that peer id or None). Raises AddressError."""
    found = components(address)
    if found[-1][0] != "p2p":
        return address, None
    return address.rsplit("/p2p/", 1)[0], found[-1][1]


def _check(address: str, name: str, value: str) -> None:
    try:
        match name:
            case "ip4":
                ipaddress.IPv4Address(value)
            case "ip6" if ipaddress.IPv6Address(value).scope_id is not None:
                raise ValueError(f"the part after % names a link of one machine: use an address without {value!r}")
            case "tcp" | "udp" if not (value.isascii() and value.isdigit() and int(value) < 65536):
                raise ValueError(f"{value!r} is not a port")
            case "p2p":
                peer_id_bytes(value)
            case "dns" | "dns4" | "dns6" if not value:
                raise ValueError("the name is missing")
            case "dns" | "dns4" | "dns6" if not is_dns_name(value):
                raise ValueError(
                    "this is no DNS name: use letters, digits, - and dots; a name in another script in its form xn--…"
                )
    except (ValueError, IdentityError) as error:
        raise AddressError(f"{address!r}: /{name}/{value}: {error}") from None


def _as_multiaddress(text: str) -> str:
    """A multiaddress for a text such as `swarm.example:4001` or `[::1]:4001`; empty if it has another form."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        return ""
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return f"/dns/{host}/tcp/{port}" if is_dns_name(host) else ""
    return f"/ip{ip.version}/{ip}/tcp/{port}"


def is_global(address: str) -> bool:
    """Whether the address is reachable from the whole internet: not a private network, a VPN or the loopback.

    A DNS name counts as global, because it was announced on purpose. Raises AddressError.
    """
    name, value = components(address)[0]
    return name not in ("ip4", "ip6") or ipaddress.ip_address(value).is_global


def varint(number: int) -> bytes:
    """Unsigned LEB128, as multiformats and protobuf write lengths."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
