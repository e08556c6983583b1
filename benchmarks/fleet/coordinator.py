"""The fleet's coordinator: carries out its core's orders, and measures what it costs."""

from __future__ import annotations

from typing import Any

from benchmarks.fleet.ground import FleetProcess, Ground
from benchmarks.fleet.machine import FleetMachine
from benchmarks.fleet.payload import Ballast
from swarm.protocol import io
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame

WRITE_S, COLLECT_S = 0.006, 1.0
"""Seconds of a write with fsync, and of fetching a checkpoint, which is ordered only at the end of a run."""


class FleetCoordinator(FleetProcess):
    role = "coordinator"

    def __init__(self, world: Ground, actor: Actor, core: Any, machine: FleetMachine) -> None:
        super().__init__(world, actor, core, machine)
        self._dispatch = {
            io.Send: self._send,
            io.Emit: self._emit,
            io.Stop: self._stop,
            coordinator_io.Feed: self._feed_tokens,
            coordinator_io.WriteTerm: self._write_term,
            coordinator_io.WriteRecord: self._write_record,
            coordinator_io.PassClosed: self._pass_closed,
            coordinator_io.CollectCheckpoint: self._collect,
        }

    def _send(self, action: io.Send) -> None:
        self.world.links.send(self, action.to, action.message)

    def _emit(self, action: io.Emit) -> None:
        self.world.journal.note(action.event, self.world.now)

    def _stop(self, action: io.Stop) -> None:
        self.finished = True
        self.world.crash(self)

    def _feed_tokens(self, action: coordinator_io.Feed) -> None:
        self.world.links.send(self, action.to, Frame(action.key, Ballast(self.world.workload.token_bytes)))

    def _write_term(self, action: coordinator_io.WriteTerm) -> None:
        self.world.at(self.world.now + WRITE_S, self, coordinator_io.TermWritten(action.term))

    def _write_record(self, action: coordinator_io.WriteRecord) -> None:
        self.world.at(self.world.now + WRITE_S, self, coordinator_io.RecordWritten(action.decision))

    def _pass_closed(self, action: coordinator_io.PassClosed) -> None:
        pass

    def _collect(self, action: coordinator_io.CollectCheckpoint) -> None:
        done = coordinator_io.ArchiveStored(action.version, action.term, action.digests)
        self.world.at(self.world.now + COLLECT_S, self, done)
