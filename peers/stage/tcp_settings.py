"""What the settings of this system's TCP mean for a peer (docs/slow-links.md): slow starts and long queues."""

from __future__ import annotations

from pathlib import Path

_SETTINGS = Path("/proc/sys/net/ipv4")
_KEEPS_RATE = ("bbr",)
"""Congestion controls whose connections keep their rate while they are idle."""

MUCH_UNSENT = 256 << 10
"""Bytes per connection."""


def slows_after_pauses(settings: Path = _SETTINGS) -> str | None:
    """The congestion control of connections that send slowly again after a pause. None: they keep their rate, or it is
    not known, because this is not Linux.
    """
    try:
        control = (settings / "tcp_congestion_control").read_text().strip()
        slow_start = (settings / "tcp_slow_start_after_idle").read_text().strip()
    except OSError:
        return None
    return None if slow_start == "0" or control in _KEEPS_RATE else control


def queues_much(settings: Path = _SETTINGS) -> bool:
    """Return True if Linux queues much unsent data for a connection of which a program has not limited the queue."""
    try:
        return int((settings / "tcp_notsent_lowat").read_text()) > MUCH_UNSENT
    except (OSError, ValueError):  # not Linux, or not a number
        return False
