"""The fleet's coordinator: carries out its core's orders, and says what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swarm.protocol import actions as act
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame
from swarm.simulation.fleet.machine import Machine
from swarm.simulation.fleet.payload import Payload
from swarm.simulation.timeline import Process

if TYPE_CHECKING:
    from swarm.simulation.fleet.world import FleetWorld

WRITE_S, COLLECT_S = 0.006, 1.0
"""A write with fsync; and what a checkpoint takes to be fetched, which is only ordered at the end of a run."""


class FleetCoordinator(Process):
    role = "coordinator"
    world: FleetWorld

    def __init__(self, world: FleetWorld, actor: Actor, core: Any, machine: Machine) -> None:
        super().__init__(world, actor, core)
        self.machine = machine
        self._dispatch = {
            act.Send: self._send,
            act.Emit: self._emit,
            act.Stop: self._stop,
            act.Feed: self._feed_tokens,
            act.WriteTerm: self._write_term,
            act.WriteRecord: self._write_record,
            act.PassClosed: self._pass_closed,
            act.CollectCheckpoint: self._collect,
        }

    def _send(self, action: act.Send) -> None:
        self.world.links.send(self, action.to, action.message)

    def _emit(self, action: act.Emit) -> None:
        self.world.journal.note(action.event, self.world.now)

    def _stop(self, action: act.Stop) -> None:
        self.finished = True
        self.world.crash(self)

    def _feed_tokens(self, action: act.Feed) -> None:
        self.world.links.send(self, action.to, Frame(action.key, Payload(self.world.workload.token_bytes)))

    def _write_term(self, action: act.WriteTerm) -> None:
        self.world.at(self.world.now + WRITE_S, self, act.TermWritten(action.term))

    def _write_record(self, action: act.WriteRecord) -> None:
        self.world.at(self.world.now + WRITE_S, self, act.RecordWritten(action.decision))

    def _pass_closed(self, action: act.PassClosed) -> None:
        pass

    def _collect(self, action: act.CollectCheckpoint) -> None:
        self.world.at(self.world.now + COLLECT_S, self, act.ArchiveStored(action.version, action.term))
