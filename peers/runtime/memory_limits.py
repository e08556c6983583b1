"""The memory that this process may still allocate: the machine's free memory, or less if a limit applies.

A container, a systemd unit or a batch job limits a group of processes (cgroups v2 or v1). The kernel kills a process
that exceeds the limit, and the machine's free memory does not show the limit. The limits of the process's group and of
all groups above it apply.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

from swarm.cgroups import groups, lines_of

_VERSIONS = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes", "memory.soft_limit_in_bytes"), "memory.usage_in_bytes", "total_inactive_file"),
)
"""The names of files of cgroups v2 and v1: (limits, used memory, files in memory that the kernel drops first)."""
_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2⁶³ if there is no limit."""


def free_memory() -> int:
    """Free memory of the machine in bytes, or what a limit leaves, if that is less."""
    return min(int(psutil.virtual_memory().available), allowed_memory())


def allowed_memory() -> int:
    """Bytes that this process may allocate beyond the present use of its groups; at most the machine's memory."""
    left = [int(psutil.virtual_memory().total)]
    left.extend(_left_of_groups())
    own = psutil.Process().memory_info()
    for limit, used in ((resource.RLIMIT_AS, own.vms), (resource.RLIMIT_DATA, own.data)):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            left.append(soft - used)
    return max(0, min(left))


def own_memory() -> int:
    """Bytes that this process uses now."""
    return int(psutil.Process().memory_info().rss)


def _left_of_groups() -> Iterator[int]:
    for folder in groups("memory"):
        for limits, usage, cache in _VERSIONS:
            limit = min((_number(folder / name) for name in limits), default=_UNLIMITED)
            if limit < _UNLIMITED:
                used = _number(folder / usage, 0) - _figures(folder / "memory.stat").get(cache, 0)
                yield limit - max(0, used)


def _number(path: Path, otherwise: int = _UNLIMITED) -> int:
    """The number in a file; `otherwise` for "max" or a missing file."""
    text = "".join(lines_of(path)[:1]).strip()
    return int(text) if text.isdecimal() else otherwise


def _figures(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in lines_of(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
