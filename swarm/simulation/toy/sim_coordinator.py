"""The simulated coordinator: carries out its core's orders. Its decision record, term and archive survive its death."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarm.events import Event, PeerExpelled, PeerMoved, ProcessStarted, ProcessStopped
from swarm.protocol import io
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.exclusions import SENT_AWAY
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.messages import Command, Decision, Frame
from swarm.protocol.soundness import Soundness, to_keep
from swarm.simulation.checks.watch import GOODBYE
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.world import World
from swarm.simulation.toy.peer_body import PeerBody
from swarm.simulation.toy.toy_model import state_digest, tokens_payload

WRITE_S = 0.004
_COLLECT_S, _COLLECT_RETRY_S = 0.04, 0.3
_KEEP = 2


@dataclass(slots=True)
class Record:
    """The data that the coordinator finds on disk when it starts."""

    term: int = 0
    archived: int | None = None
    rolled_back_in: int = 0
    decisions: list[Decision] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    soundness: Soundness = field(default_factory=Soundness)

    @property
    def last_decision(self) -> Decision | None:
        return self.decisions[-1] if self.decisions else None


class SimCoordinator(Process):
    """The coordinator's process. `record` outlives it."""

    role = "coordinator"
    world: World

    def __init__(self, world: World, actor: Actor, core: Any, record: Record) -> None:
        super().__init__(world, actor, core)
        self.record = record
        self._pending: list[coordinator_io.WriteTerm | coordinator_io.WriteRecord | coordinator_io.WriteCommand] = []
        self._collecting = 0
        self._dispatch = {
            io.Send: self._send,
            io.Emit: self._emit,
            io.Stop: self._stop,
            coordinator_io.Feed: self._feed_tokens,
            coordinator_io.WriteTerm: self._write,
            coordinator_io.WriteRecord: self._write_record,
            coordinator_io.WriteCommand: self._write,
            coordinator_io.AnswerControl: lambda answer: self.world.answered(answer),
            coordinator_io.PassClosed: self._pass_closed,
            coordinator_io.CollectCheckpoint: self._collect,
        }

    def start(self) -> None:
        self.tell(ProcessStarted("coordinator", str(self.actor), "simulated", ""))
        super().start()
        if self.alive:
            self.world.on_phase("joining", self)

    def feed(self, item: object) -> None:
        super().feed(item)
        if self.alive and self.world.scribe is not None:
            self.world.scribe.settled(self)

    def tell(self, event: Event) -> None:
        """Write to the coordinator's event log."""
        if self.world.scribe is not None:
            self.world.scribe.told(self, event, self.world.now)

    def archived(self, key: tuple[int, int]) -> int | None:
        return self.world.archive.get(key)

    @property
    def directing(self) -> CoordinatorCore:
        """The core that directs the peers."""
        core = self.core
        assert isinstance(core, CoordinatorCore)
        return core

    def wiped(self) -> None:
        """The coordinator dies. Some of the unfinished writes, from the first on, reach the disk."""
        kept = self.world.random.randrange(len(self._pending) + 1)
        for write in self._pending[:kept]:
            self._durable(write)

    def _send(self, action: io.Send) -> None:
        self.world.watch.coordinator_sends(self.actor, action.to, action.message)
        self.world.network.send(self, action.to, action.message)

    def _emit(self, action: io.Emit) -> None:
        self.tell(action.event)
        if isinstance(action.event, PeerExpelled):
            self._check_expelled(action.event)
        if isinstance(action.event, PeerMoved):
            self.world.watch.moves_peer(action.event, self.directing)
        self.world.watch.emitted(action.event)

    def _check_expelled(self, event: PeerExpelled) -> None:
        """Check that audits expel only peers that lie."""
        those = [p for p in self.world.processes if isinstance(p, PeerBody) and str(p.actor) == event.actor]
        if not event.reason.startswith(SENT_AWAY) and any(p.lie is None for p in those):
            raise Violation("honest stay", f"{event.actor} is expelled, because {event.reason}")

    def _stop(self, action: io.Stop) -> None:
        self.tell(ProcessStopped(action.reason))
        self.world.watch.coordinator_stops(action)
        self.alive = False
        self.finished = not action.reason.startswith(GOODBYE)
        if self.finished:
            self.world.finished_at = self.world.now
        else:
            self.wiped()
        self.world.network.process_died(self)

    def _feed_tokens(self, action: coordinator_io.Feed) -> None:
        key = action.key
        payload = tokens_payload(key.pass_id.index, key.pass_id.step, key.microbatch)
        self.world.network.send(self, action.to, Frame(key, payload))
        self.world.on_phase("forward" if action.kind is PassKind.TRAIN else "evaluating", self)

    def _write_record(self, action: coordinator_io.WriteRecord) -> None:
        self.world.watch.writes(action.decision)
        self._write(action)
        self.world.on_phase("deciding", self)

    def _write(
        self, action: coordinator_io.WriteTerm | coordinator_io.WriteRecord | coordinator_io.WriteCommand
    ) -> None:
        if isinstance(action, coordinator_io.WriteTerm):
            self.world.watch.takes_term(self.record.term, action)
        self._pending.append(action)
        self.world.at(self.world.now + WRITE_S * (0.5 + self.world.random.random()), self, (self._written, None))

    def _written(self, _: None) -> None:
        write = self._pending.pop(0)
        self._durable(write)
        if isinstance(write, coordinator_io.WriteTerm):
            self.feed(coordinator_io.TermWritten(write.term))
        elif isinstance(write, coordinator_io.WriteCommand):
            self.feed(coordinator_io.CommandWritten(write.command))
        else:
            self.world.on_phase("decided", self)
            if self.alive:
                self.feed(coordinator_io.RecordWritten(write.decision))

    def _durable(
        self, write: coordinator_io.WriteTerm | coordinator_io.WriteRecord | coordinator_io.WriteCommand
    ) -> None:
        record = self.record
        if isinstance(write, coordinator_io.WriteCommand):
            record.commands.append(write.command)
            self.world.watch.commanded(write.command)
            return
        if isinstance(write, coordinator_io.WriteRecord):
            record.decisions.append(write.decision)
            record.soundness = record.soundness.after(write.decision)
            self.world.watch.decided(write.decision)
            return
        record.term = write.term
        if write.rollback_to is not None:
            del record.decisions[write.rollback_to :]
            record.soundness = record.soundness.rolled_back(write.rollback_to)
            record.rolled_back_in = write.term
            self._collecting = -1
            for key in [key for key in self.world.archive if key[1] > write.rollback_to]:
                del self.world.archive[key]
            if record.archived is not None:
                record.archived = min(record.archived, write.rollback_to)
            self.world.watch.archived = record.archived or 0
            self.world.watch.rolled_back(write.rollback_to)

    def _pass_closed(self, action: coordinator_io.PassClosed) -> None:
        if any(isinstance(p, PeerBody) and p.deceived for p in self.world.alive()):
            return  # the evaluation is wrong, but nothing depends on it
        self.world.watch.closed(action.pass_id, action.kind, action.loss_sum, action.token)

    def _collect(self, action: coordinator_io.CollectCheckpoint) -> None:
        self._collecting = action.version
        self.world.on_phase("checkpointing", self)
        self._later(_COLLECT_S, action)

    def _later(self, delay: float, action: coordinator_io.CollectCheckpoint) -> None:
        self.world.at(self.world.now + delay * (0.5 + self.world.random.random()), self, (self._collected, action))

    def _collected(self, action: coordinator_io.CollectCheckpoint) -> None:
        """Store a copy of every stage, checked against the agreed digest. Try again while a holder is away."""
        if action.version != self._collecting:
            return
        shards = {}
        for stage, (holders, digest) in enumerate(zip(action.holders, action.digests, strict=True)):
            for holder in holders:
                other = self.world.by_actor.get(holder)
                if other is None or other.stalled or self.world.network.cut(self, other):
                    continue
                if action.from_archive:
                    state = other.archived((stage, action.version)) if other.alive else None
                else:
                    state = other.snapshot(stage, action.version)
                if state is not None and state_digest(stage, action.version, state) == digest:
                    shards[stage] = state
                    break
            else:
                if not action.from_archive:
                    self.feed(coordinator_io.CheckpointUnfetched(action.version, stage))
                self._later(_COLLECT_RETRY_S, action)
                return
        self._store(action, shards)
        delay = self.world.random.choice((0.0, 0.0, WRITE_S, 20 * WRITE_S))
        self.world.at(self.world.now + delay, self, (self._stored, action))  # the core may roll back meanwhile

    def _store(self, action: coordinator_io.CollectCheckpoint, shards: dict[int, int]) -> None:
        store(self.world.archive, action, shards)
        self.record.archived = max(self.record.archived or 0, action.version)

    def _stored(self, action: coordinator_io.CollectCheckpoint) -> None:
        if action.term >= self.record.rolled_back_in:
            self.world.watch.archived = max(self.world.watch.archived, action.version)
            self.world.watch.stored.add(action.version)
        self.feed(coordinator_io.ArchiveStored(action.version, action.term, action.digests))


def store(archive: dict[tuple[int, int], int], order: coordinator_io.CollectCheckpoint, shards: dict[int, int]) -> None:
    """Put the shards of a whole checkpoint into an archive, and prune it as the real archive does."""
    for stage, state in shards.items():
        archive[stage, order.version] = state
    versions = sorted({version for _, version in archive})
    kept = to_keep(versions, _KEEP, order.proven) | {0}  # version 0 exists only if it was imported
    for key in [key for key in archive if key[1] not in kept]:
        del archive[key]
