"""Slow start: whether this system's TCP sends slowly again after a pause (docs/slow-links.md, section Pauses)."""

from __future__ import annotations

from pathlib import Path

_SETTINGS = Path("/proc/sys/net/ipv4")
_KEEPS_RATE = ("bbr",)
"""Congestion controls whose connections keep their rate while they are idle."""


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
