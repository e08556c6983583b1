"""The fleet's internet: every machine's line up and down is a queue, regions are apart, and a flow has a limit.

What is sent waits for what the same machine sent before, crosses, and waits at the receiver for what came before.
Control messages wait only for control messages, as in swarm/net. So messages of one kind between two machines arrive in
order. Nothing is lost but what is under way when a process dies. Lines between regions are not shared: home lines are
the narrow ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swarm.protocol.actions import Received
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message, Relay, WithPayload
from swarm.simulation.fleet.machine import Machine
from swarm.simulation.fleet.payload import Payload
from swarm.simulation.fleet.traffic import Traffic

if TYPE_CHECKING:
    from swarm.simulation.fleet.world import FleetWorld
    from swarm.simulation.timeline import Process

HEADER_BYTES = 60
"""Of a frame or a part, beside its payload."""
NOTICE_S = 0.02
"""After which a broken connection is noticed, beside the way there."""

Weigh = Callable[[Actor, Actor, Message], int]
"""Bytes of a control message from one actor to another."""


class _Line:
    """When a machine's queues will be empty."""

    __slots__ = ("control_in", "control_out", "data_in", "data_out")

    def __init__(self) -> None:
        self.control_in = self.control_out = self.data_in = self.data_out = 0.0


class Links:
    """Sending never fails; a message to the dead never arrives."""

    def __init__(self, world: FleetWorld, weigh: Weigh) -> None:
        self.traffic = Traffic()
        self._world = world
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
            assert isinstance(inner.payload, Payload)
            nbytes, data = HEADER_BYTES + inner.payload.nbytes, True
        else:
            nbytes, data = self._weigh(source.actor, to, message), False
        self.traffic.add(source is world.coordinator, target is world.coordinator, message, nbytes)
        arrival = self._carried(source, target, nbytes, data)
        world.at(arrival, target, (self._arrive, (source, target, Received(source.actor, message))))

    def carry(self, source: Process, target: Process, nbytes: int, then: Callable[[Any], None], what: Any) -> float:
        """Bulk data: `then(what)` happens at the target when it is there. Returns when it has left the source."""
        self.traffic.bulk(nbytes)
        self._connect(source, target)
        self._world.at(self._carried(source, target, nbytes, data=True), target, (then, what))
        return self._line(source).data_out

    def one_way_s(self, a: Process, b: Process) -> float:
        return self._world.regions.one_way_s[self._machine(a).region][self._machine(b).region]

    def process_died(self, process: Process) -> None:
        """Whoever was connected to it is told."""
        world = self._world
        for pid in sorted(self._neighbours.pop(process.pid, ())):
            other = world.processes[pid]
            if other.alive:
                self._told.add((pid, process.actor))
                world.tell_lost(other, process.actor, NOTICE_S * (0.5 + world.random.random()))
            self._neighbours.get(pid, set()).discard(process.pid)
        self._lines.pop(process.pid, None)

    def _machine(self, process: Process) -> Machine:
        return self._world.machine_of(process)

    def _carried(self, source: Process, target: Process, nbytes: int, data: bool) -> float:
        """When it is there: as fast as the narrowest of the three ways, after what waits at both ends."""
        world = self._world
        here, there = self._machine(source), self._machine(target)
        mine, theirs = self._line(source), self._line(target)
        regions = world.regions
        delay = regions.one_way_s[here.region][there.region]
        flow = regions.flow_bytes_per_s[here.region][there.region]
        out_s, in_s = nbytes / here.up, nbytes / there.down
        if data:
            start = max(world.now, mine.data_out)
            mine.data_out = start + out_s
            end = max(max(start + delay, theirs.data_in) + in_s, start + max(out_s, nbytes / flow) + delay)
            theirs.data_in = max(start + delay, theirs.data_in) + in_s
        else:
            start = max(world.now, mine.control_out)
            mine.control_out = start + out_s
            end = max(max(start + delay, theirs.control_in) + in_s, start + max(out_s, nbytes / flow) + delay)
            theirs.control_in = max(start + delay, theirs.control_in) + in_s
        return end

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
        """Dialling a dead process fails: the sender is told once."""
        if (source.pid, to) not in self._told:
            self._told.add((source.pid, to))
            self._world.tell_lost(source, to, NOTICE_S)
