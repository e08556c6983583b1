"""The processor cores that this process may use: those that it may run on, or less if a quota of time applies.

Container systems give a quota (`--cpus 2`, systemd's CPUQuota) on a machine whose cores are all visible. The kernel
stops all threads of a group that has used up its quota, for the rest of a tenth of a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from swarm.cgroups import groups, lines_of


class Quota(NamedTuple):
    """Cores' worth of time that a group of processes may use."""

    cores: float
    group: Path


def visible_cores() -> set[int]:
    """The numbers of the cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def quota() -> Quota | None:
    """The smallest quota that applies to this process; None: there is none, or none below the visible cores."""
    found = [Quota(cores, group) for group in groups("cpu") if (cores := _cores_of(group)) is not None]
    least = min(found, default=None)
    return least if least is not None and least.cores < len(visible_cores()) else None


def usable_cores() -> float:
    """Number of cores' worth of time that this process may use; 0.5 means half of one core's time."""
    limit = quota()
    return float(len(visible_cores())) if limit is None else limit.cores


def _cores_of(group: Path) -> float | None:
    """The quota of a group, in version 2 or 1. None: it has none."""
    words = " ".join(lines_of(group / "cpu.max")[:1]).split() or [
        "".join(lines_of(group / f"cpu.cfs_{name}_us")[:1]).strip() for name in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # "max" and -1 mean no quota
        return None
    used, period = map(int, words)
    return used / period if used and period else None
