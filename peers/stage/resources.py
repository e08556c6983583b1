"""The resources of the machine that this process and its libp2p daemon have used so far."""

from __future__ import annotations

import asyncio
import resource

import psutil

from swarm.events import ResourcesMeasured


def measure(version: int, peak_retained_bytes: int) -> ResourcesMeasured:
    """Measure in the event loop. Takes about a millisecond."""
    own = psutil.Process()
    times = own.cpu_times()
    daemon = 0.0
    for child in own.children():
        try:
            of_child = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        daemon += of_child.user + of_child.system
    return ResourcesMeasured(
        version=version,
        cpu_seconds=times.user + times.system,
        daemon_cpu_seconds=daemon,
        resident_bytes=own.memory_info().rss,
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        peak_retained_bytes=peak_retained_bytes,
        tasks=len(asyncio.all_tasks()),
    )
