"""File descriptors: a process of a swarm has many sockets, and the default limit is low."""

from __future__ import annotations

import contextlib
import resource

WANTED = 65_536
LEAST = 128
"""The smallest usable limit. A peer of a small run opens about eighty descriptors: files of its home, sockets to its
daemon, libraries.
"""


class TooFewDescriptors(OSError):
    """The limit is lower than any peer needs; the text says how to raise it."""


def raise_limit() -> None:
    """Raise the limit as far as this process may. Raises TooFewDescriptors if that is less than any peer needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit that they do not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise TooFewDescriptors(
            f"this process may open {soft} files and sockets, but needs at least {LEAST}: raise the limit with "
            f"`ulimit -n 4096`, or LimitNOFILE= of its systemd unit"
        )
