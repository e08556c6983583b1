"""File descriptors: a process of a swarm has sockets to many, and the usual limit is a low one."""

from __future__ import annotations

import contextlib
import resource

WANTED = 65_536
LEAST = 128
"""A peer of a small run opens some eighty: files of its home, sockets to its daemon, libraries."""


class TooFewDescriptors(OSError):
    """The limit is lower than what any peer needs; the text says how to raise it."""


def raise_limit() -> None:
    """To what this process may have without asking. Raises TooFewDescriptors if that is less than any needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise TooFewDescriptors(
            f"this process may open {soft} files and sockets, at least {LEAST} are needed: raise the limit with "
            f"`ulimit -n 4096`, or LimitNOFILE= of its systemd unit"
        )
