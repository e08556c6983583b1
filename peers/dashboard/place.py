"""The address and port of a dashboard, as people write them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from swarm.dns_name import is_dns_name

ADDRESS, PORT = "127.0.0.1", 7070
_FORM = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<four>[0-9.]+|localhost))?:?(?P<port>[0-9]+)?", re.ASCII)


class PlaceError(ValueError):
    """The text is not an ADDRESS:PORT."""


@dataclass(frozen=True)
class Place:
    """Where a dashboard is served. `wish`: True if a later port may be used when this port is taken."""

    address: str = ADDRESS
    port: int = PORT
    wish: bool = True

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read a place such as `127.0.0.1:7070`, `[::1]:7070`, `0.0.0.0` or `7070`. Without a port it is a wish. Raises
        PlaceError.

        An empty text means the default.
        """
        if not text:
            return cls()
        if (found := _FORM.fullmatch(text)) is None:
            raise PlaceError(f"{text!r} is not an ADDRESS:PORT: write 127.0.0.1:7070, [::1]:7070 or 0.0.0.0:7070")
        address, port = (ADDRESS, text) if text.isdigit() else (found["six"] or found["four"] or ADDRESS, found["port"])
        address = ADDRESS if address == "localhost" else address
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise PlaceError(f"{address!r} is not an IP address of this machine") from None
        if port and (len(port) > 5 or int(port) > 65_535):
            raise PlaceError(f"port {port[:20]}: the largest port is 65535")
        return cls(address, int(port) if port else PORT, not port)

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def shown(self) -> str:
        """The host name in the address that people open; for "all addresses", this machine's loopback address."""
        address = ipaddress.ip_address(self.address)
        if address.is_unspecified:
            return ADDRESS if address.version == 4 else "[::1]"
        return self.address if address.version == 4 else f"[{self.address}]"

    def __str__(self) -> str:
        address = self.address if ":" not in self.address else f"[{self.address}]"
        return address if self.wish else f"{address}:{self.port}"


def server_name(text: str) -> str:
    """A name of this server for --host, in lower case. Raises PlaceError."""
    if is_dns_name(text):
        return text.lower()
    try:
        ipaddress.ip_address(text.removeprefix("[").partition("]")[0])
    except ValueError:
        raise PlaceError(
            f"--host {text[:80]!r} is not a name: write only the name, such as swarm.example, without a port"
        ) from None
    raise PlaceError(
        f"--host {text}: it adds a name, and IP addresses need none. To serve at an address, use --address"
    )


def is_place(text: str) -> bool:
    """True if `text` has the form of an ADDRESS:PORT, perhaps of a wrong one, and is not the next argument after an
    option without a value.
    """
    return bool(text) and _FORM.fullmatch(text) is not None
