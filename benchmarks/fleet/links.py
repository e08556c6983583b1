"""The fleet's internet: each machine's line is a queue in each direction, regions are far apart, and a flow has a
limit.

Data waits for its turn at the sender (`FleetUplink`), crosses, and waits at the receiver for data that came before.
Control messages wait only for control messages, as in swarm/net. So messages of one kind between two machines arrive in
order. Data is lost only if a process dies while it is being sent. Lines between regions are not shared, because home
lines are narrower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.fleet.machine import FleetMachine
from benchmarks.fleet.payload import Ballast
from benchmarks.fleet.regions import Regions
from benchmarks.fleet.traffic import TrafficCount
from benchmarks.fleet.uplink import FleetUplink, TransferKind, kind_of
from swarm.protocol.ids import Actor, Attempt
from swarm.protocol.io import Received
from swarm.protocol.messages import Message, ReducePart, Relay, WithPayload
from swarm.simulation.kernel.timeline import Process, Timeline

HEADER_BYTES = 60
"""Bytes of a frame or a part in addition to its payload."""
NOTICE_S = 0.02
"""Seconds after which a broken connection is noticed, in addition to the way there."""

Weigh = Callable[[Actor, Actor, Message], int]
"""Returns the bytes of a control message from one actor to another."""


class _Line:
    """The two directions of a machine's line: the waiting data, and the time when the sent data will be through."""

    __slots__ = ("control_in", "control_out", "data_in", "up")

    def __init__(self) -> None:
        self.control_in = self.control_out = self.data_in = 0.0
        self.up = FleetUplink()


@dataclass(frozen=True, slots=True)
class _Sending:
    """Data that is being sent."""

    source: Process
    target: Process
    nbytes: int
    then: Callable[[Any], None]
    """Called at the target when the data arrives."""
    what: Any
    gone: Callable[[], None] | None
    """Called at the source when its line is free for the next data."""


class FleetLinks:
    """All lines of the fleet. Sending never fails; a message to a dead process never arrives."""

    def __init__(
        self, world: Timeline, regions: Regions, machine_of: Callable[[Process], FleetMachine], weigh: Weigh
    ) -> None:
        self.traffic = TrafficCount()
        self._world = world
        self._regions = regions
        self._machine = machine_of
        self._weigh = weigh
        self._lines: dict[int, _Line] = {}
        self._neighbours: dict[int, set[int]] = {}
        self._told: set[tuple[int, Actor]] = set()

    def send(self, source: Process, to: Actor, message: Message) -> None:
        world = self._world
        target = world.by_actor.get(to)
        if target is None or not target.alive:
            self._refused(source, to)
            return
        self._connect(source, target)
        inner = message.message if type(message) is Relay else message
        if isinstance(inner, WithPayload):
            assert isinstance(inner.payload, Ballast)
            nbytes, data = HEADER_BYTES + inner.payload.nbytes, True
        else:
            nbytes, data = self._weigh(source.actor, to, message), False
        self.traffic.add(source.role == "coordinator", target.role == "coordinator", message, nbytes)
        delivery = (source, target, Received(source.actor, message))
        if data:
            self._put(kind_of(inner), _Sending(source, target, nbytes, self._arrive, delivery, None))
        else:
            world.at(self._control_arrives(source, target, nbytes), target, (self._arrive, delivery))

    def carry(
        self,
        source: Process,
        target: Process,
        nbytes: int,
        then: Callable[[Any], None],
        what: Any,
        gone: Callable[[], None] | None = None,
    ) -> None:
        """Send bulk data. `then(what)` is called at the target when it arrives, `gone()` when it has left the
        source.
        """
        self.traffic.bulk(nbytes)
        self._connect(source, target)
        self._put(TransferKind.STATE, _Sending(source, target, nbytes, then, what, gone))

    def withdraw(self, source: Process, attempt: Attempt) -> None:
        """Drop waiting data of a reduction attempt, and of earlier attempts of its stage, as in swarm/net."""

        def void(sending: _Sending) -> bool:
            _, _, received = sending.what
            message = received.message
            return isinstance(message, ReducePart) and attempt.ends(message.key.attempt)

        self._line(source).up.withdraw(TransferKind.REDUCE, void)

    def one_way_s(self, a: Process, b: Process) -> float:
        return self._regions.one_way_s[self._machine(a).region][self._machine(b).region]

    def process_died(self, process: Process) -> None:
        """Tell all processes that were connected to this one."""
        world = self._world
        for pid in sorted(self._neighbours.pop(process.pid, ())):
            other = world.processes[pid]
            if other.alive:
                self._told.add((pid, process.actor))
                world.tell_lost(other, process.actor, NOTICE_S * (0.5 + world.random.random()))
            self._neighbours.get(pid, set()).discard(process.pid)
        self._lines.pop(process.pid, None)

    def _put(self, kind: TransferKind, sending: _Sending) -> None:
        line = self._line(sending.source)
        line.up.put(kind, sending.nbytes, sending)
        if not line.up.busy:
            self._next((sending.source, line))

    def _next(self, at: tuple[Process, _Line]) -> None:
        """The line in the sending direction is free: send the next data."""
        source, line = at
        line.up.busy = False
        sending = line.up.take()
        while sending is not None and not sending.target.alive:
            sending = line.up.take()
        if sending is None or not source.alive:
            return
        line.up.busy = True
        world, target = self._world, sending.target
        here, there, theirs = self._machine(source), self._machine(target), self._line(target)
        world.at(world.now + sending.nbytes / here.up, source, (self._left, (sending, line)))
        end, theirs.data_in = self._arrival(here, there, sending.nbytes, world.now, theirs.data_in)
        world.at(end, target, (sending.then, sending.what))

    def _left(self, sent: tuple[_Sending, _Line]) -> None:
        sending, line = sent
        if sending.gone is not None:
            sending.gone()
        self._next((sending.source, line))

    def _control_arrives(self, source: Process, target: Process, nbytes: int) -> float:
        """The time when a control message arrives, after the control messages before it at both ends."""
        here, there = self._machine(source), self._machine(target)
        mine, theirs = self._line(source), self._line(target)
        start = max(self._world.now, mine.control_out)
        mine.control_out = start + nbytes / here.up
        end, theirs.control_in = self._arrival(here, there, nbytes, start, theirs.control_in)
        return end

    def _arrival(
        self, here: FleetMachine, there: FleetMachine, nbytes: int, start: float, free_at: float
    ) -> tuple[float, float]:
        """The time when data arrives, at the rate of the narrowest of the three ways, and the time when the receiver's
        line is free.
        """
        regions = self._regions
        delay = regions.one_way_s[here.region][there.region]
        flow = min(regions.flow_bytes_per_s[here.region][there.region], here.up)
        taken = max(start + delay, free_at) + nbytes / there.down
        return max(taken, start + nbytes / flow + delay), taken

    def _line(self, process: Process) -> _Line:
        line = self._lines.get(process.pid)
        if line is None:
            line = self._lines[process.pid] = _Line()
        return line

    def _arrive(self, delivery: tuple[Process, Process, Received]) -> None:
        source, target, received = delivery
        if source.alive or not source.loses_last_words:
            target.feed(received)

    def _connect(self, source: Process, target: Process) -> None:
        mine = self._neighbours.setdefault(source.pid, set())
        if target.pid in mine:
            return
        mine.add(target.pid)
        self._neighbours.setdefault(target.pid, set()).add(source.pid)
        delay = self.one_way_s(source, target)
        self._world.tell_up(source, target.actor, 2 * delay)
        self._world.tell_up(target, source.actor, delay)

    def _refused(self, source: Process, to: Actor) -> None:
        """Dialling a dead process fails. The sender is told once."""
        if (source.pid, to) not in self._told:
            self._told.add((source.pid, to))
            self._world.tell_lost(source, to, NOTICE_S)
