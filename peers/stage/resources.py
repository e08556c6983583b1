"""The resources of the machine that this process and its libp2p daemon have used so far."""

from __future__ import annotations

import asyncio
import resource

import psutil

from swarm.events import ResourcesMeasured


def measure(version: int, peak_retained_bytes: int, daemon_pid: int | None) -> ResourcesMeasured:
    """Measure in the event loop, in a tenth of a millisecond. `daemon_pid`: the process id of the daemon; None: it has
    none. To find it among the children of this process, psutil would read the state of all processes of the machine.
    """
    own = psutil.Process()
    times = own.cpu_times()
    return ResourcesMeasured(
        version=version,
        cpu_seconds=times.user + times.system,
        daemon_cpu_seconds=0.0 if daemon_pid is None else _cpu_seconds(daemon_pid),
        resident_bytes=own.memory_info().rss,
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        peak_retained_bytes=peak_retained_bytes,
        tasks=len(asyncio.all_tasks()),
    )


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
