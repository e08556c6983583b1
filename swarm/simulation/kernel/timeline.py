"""Virtual time: one clock, one heap of events, one source of randomness, and the processes that use them.

Events are ordered by (time, number), so a run depends only on its plan and can be replayed exactly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from swarm.protocol.ids import Actor
from swarm.protocol.io import LinkLost, LinkUp, Tick
from swarm.simulation.kernel.trace import describe_action, describe_input
from swarm.simulation.kernel.violation import Violation

_TICK = Tick()
_SPIN_LIMIT = 200


class Timeline:
    """The base of every simulated world, independent of its network and computations."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.actions = 0
        self.crash_at_event = 0
        self.crash_at_action = 0
        """`on_crash_point` is called after the event, or before the action, with this number (0: never)."""
        self.on_crash_point: Callable[[Process | None], None] = lambda process: None
        self.trace: list[str] | None = [] if tracing else None
        self.processes: list[Process] = []
        self.by_actor: dict[Actor, Process] = {}
        self._heap: list[tuple[float, int, Process | None, Any]] = []
        self._sequence = 0

    def at(self, time: float, process: Process | None, item: Any) -> None:
        """Schedule `item` for `process`. Without a process, `item` is a (function, argument) pair of the world."""
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, process, item))

    def add(self, process: Process) -> None:
        self.processes.append(process)
        self.by_actor[process.actor] = process

    def alive(self) -> Iterable[Process]:
        return [process for process in self.processes if process.alive]

    def note(self, text: str) -> None:
        """Add a line to the readable trace. Call it only while tracing."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f}  {text}")

    def tell_lost(self, process: Process, other: Actor, delay: float) -> None:
        self.at(self.now + delay, process, LinkLost(other))

    def tell_up(self, process: Process, other: Actor, delay: float) -> None:
        self.at(self.now + delay, process, LinkUp(other))

    def run(self, until: float, max_events: int, stop: Callable[[], bool]) -> None:
        """Handle events until `stop()` is true or the virtual time is `until`. `max_events` events violate progress."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, process, item = heappop(heap)
            if process is None:
                item[0](item[1])
            else:
                process.accept(item)
            if self.events == self.crash_at_event:
                self.crash_at_event = 0
                self.on_crash_point(None)
            if self.events >= max_events:
                raise Violation("progress", f"the run did not end within {max_events} events")
            if stop():
                return


class Process:
    """A process with a core in it: alive or dead, running or stalled, with a backlog while stalled."""

    stage: int | None = None
    """The stage that it holds, if any."""
    version: int | None = None
    """The version of that stage."""

    def __init__(self, world: Timeline, actor: Actor, core: Any) -> None:
        self.world = world
        self.actor = actor
        self.core = core
        self.alive = True
        self.stalled = False
        self.finished = False
        """True if its core ordered Stop because the run is complete."""
        self.slowness = 1.0
        self.leaving = False
        """True if its owner has asked for the machine."""
        self.replaced = False
        """True if its machine has started another process, or will."""
        self.disturbed_at = world.now
        """The time when a fault last touched this process. Until it has had time to recover, other processes cannot be
        blamed.
        """
        self.loses_last_words = False
        """True if messages in transit at its death are lost with it."""
        self.pid = len(world.processes)
        self._backlog: list[Any] = []
        self._tick_at = math.inf
        self._spins = 0
        self._spun_at = 0.0
        self._dispatch: dict[type, Callable[[Any], None]] = {}

    @property
    def name(self) -> str:
        return str(self.actor)

    @property
    def role(self) -> str:
        """The role of the process in the run."""
        return "process"

    @property
    def mates(self) -> list[Process]:
        """All processes that share one process with this one, starting with the first one. They die together."""
        return [self]

    def accept(self, item: Any) -> None:
        """An event reaches the process: an input of the core, or a (method, argument) pair of the driver itself."""
        if not self.alive:
            return
        if self.stalled:
            if item is not _TICK:
                self._backlog.append(item)
            return
        if type(item) is tuple:
            self.world.events += 1
            item[0](item[1])
            return
        if item is _TICK:
            if self._tick_at != self.world.now:
                return  # an older alarm that was replaced
            self._tick_at = math.inf
            due = self.core.next_wakeup()
            if due is None or due > self.world.now:
                self._rearm(due)
                return
            self._spins = self._spins + 1 if due == self._spun_at else 0
            self._spun_at = due
            if self._spins > _SPIN_LIMIT:
                raise Violation("progress", f"{self.name} asks again and again to be woken at {due}")
        self.world.events += 1
        self.feed(item)

    def feed(self, item: Any) -> None:
        """Give an input to the core and carry out its orders in sequence."""
        world = self.world
        actions = self.core.handle(item, world.now)
        if world.trace is not None:
            self._record(describe_input(item), actions)
        for action in actions:
            world.actions += 1
            if world.actions == world.crash_at_action:
                world.crash_at_action = 0
                world.on_crash_point(self)
            if not self.alive:
                return
            self._dispatch[type(action)](action)
        if self.alive:
            self._rearm(self.core.next_wakeup())

    def start(self) -> None:
        """Give the first input to a new process."""
        self.feed(_TICK)

    def stall(self) -> None:
        self.stalled = True
        self.disturbed_at = math.inf

    def resume(self) -> None:
        """Continue after a stall (SIGCONT): handle everything that arrived in the meantime, in order."""
        if not self.alive or not self.stalled:
            return
        self.stalled = False
        self.disturbed_at = self.world.now
        backlog, self._backlog = self._backlog, []
        for item in backlog:
            self.accept(item)
        if self.alive:
            self._tick_at = math.inf
            self._rearm(self.core.next_wakeup())

    def archived(self, key: tuple[int, int]) -> int | None:
        """The state of (stage, version) in this process's archive."""
        return None

    def live_state(self, stage: int, version: int) -> int | None:
        """The trained state that this process gives to a sibling. None if it has another version or stage."""
        return None

    def snapshot(self, stage: int, version: int) -> int | None:
        """The state that this process gives to the archive: the trained state, or its own checkpoint."""
        return None

    def can_hold(self, version: int) -> bool:
        """Return True if it holds this version of its stage, or lacks only the last decision."""
        return False

    def wiped(self) -> None:
        """The process is gone. Subclasses decide which unfinished writes reached the disk."""

    def _rearm(self, due: float | None) -> None:
        if due is None or due >= self._tick_at:
            return
        world = self.world
        self._tick_at = due if due > world.now else world.now
        world.at(self._tick_at, self, _TICK)

    def _record(self, came: str, actions: list[Any]) -> None:
        orders = [text for text in map(describe_action, actions) if text]
        if orders or came != "tick":
            self.world.note(f"{self.label:<12} {came}" + ("  ⇒  " + " · ".join(orders) if orders else ""))

    @property
    def label(self) -> str:
        return self.name
