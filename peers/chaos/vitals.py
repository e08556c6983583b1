"""Samples memory, descriptors, threads and tasks of each process and its daemon during a scenario.

A leak shows as growth of one process between its first samples, after it has loaded its state, and its last ones.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from peers.chaos.machine import EmulatedMachine
from swarm.events import Event, ResourcesMeasured

_EVERY_S = 2.0
_YOUTH_S = 15.0
"""Processes younger than this many seconds still load what they need: imports, a stage, buffers."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a process and its children together, at one time."""

    at: float
    resident_bytes: int
    descriptors: int
    threads: int
    tasks: int | None
    """Number of tasks in a peer's event loop, as it reported last."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a process grew: from the median of its first third (without its youth) to the median of its last
    third.
    """

    host: str
    seconds: float
    resident_bytes: int
    descriptors: int
    threads: int
    tasks: int
    """Growth of the number of tasks. 0 for coordinators, and for peers that did not report their tasks continuously."""


class Vitals:
    """The samples of all processes. Call `sample` often; it measures every two seconds. `told`: reports of the
    processes.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, float], list[Sample]] = defaultdict(list)
        """The samples, by host and start of its process."""
        self._tasks: dict[tuple[str, float], int] = {}
        """The reported numbers of tasks, by host and start of its process."""
        self._next_at = 0.0

    def told(self, machine: EmulatedMachine, event: Event) -> None:
        if isinstance(event, ResourcesMeasured):
            self._tasks[machine.name, machine.started_at] = event.tasks

    def sample(self, machines: Iterable[EmulatedMachine], now: float) -> None:
        if now < self._next_at:
            return
        self._next_at = now + _EVERY_S
        for machine in machines:
            life = machine.name, machine.started_at
            if machine.running and now - machine.started_at > _YOUTH_S:
                with contextlib.suppress(psutil.Error):
                    self._samples[life].append(_measure(machine.pid, now, self._tasks.get(life)))

    def growth(self) -> list[Growth]:
        """The growth of each process with enough samples for three thirds. Processes that lived longest come first."""
        found = []
        for (host, _), samples in self._samples.items():
            third = len(samples) // 3
            if third == 0:
                continue
            young, old = samples[:third], samples[-third:]
            of_young, of_old = ([s.tasks for s in some if s.tasks is not None] for some in (young, old))
            found.append(
                Growth(
                    host,
                    samples[-1].at - samples[0].at,
                    _middle([s.resident_bytes for s in old]) - _middle([s.resident_bytes for s in young]),
                    _middle([s.descriptors for s in old]) - _middle([s.descriptors for s in young]),
                    _middle([s.threads for s in old]) - _middle([s.threads for s in young]),
                    _middle(of_old) - _middle(of_young) if len(of_young) == len(of_old) == third else 0,
                )
            )
        return sorted(found, key=lambda growth: -growth.seconds)


def _measure(pid: int, now: float, tasks: int | None) -> Sample:
    process = psutil.Process(pid)
    resident = descriptors = threads = 0
    for each in (process, *process.children(recursive=True)):
        with each.oneshot():
            resident += each.memory_info().rss
            descriptors += each.num_fds()
            threads += each.num_threads()
    return Sample(now, resident, descriptors, threads, tasks)


def _middle(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
