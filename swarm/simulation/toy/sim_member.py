"""A simulated member of a group of coordinators: carries out its core's orders, with a disk of its own."""

from __future__ import annotations

from swarm.events import CoordinatorStarted, LeadershipTaken, ProcessStopped
from swarm.protocol import io
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.ids import Actor
from swarm.protocol.messages import TermEntry, Vote
from swarm.protocol.raft import io as raft_io
from swarm.protocol.raft.member import GroupMember
from swarm.simulation.runs.world import World
from swarm.simulation.toy.member_disk import MemberDisk
from swarm.simulation.toy.sim_coordinator import WRITE_S, Record, SimCoordinator, store


class SimMember(SimCoordinator):
    """`disk` outlives the process."""

    core: GroupMember

    def __init__(self, world: World, actor: Actor, core: GroupMember, disk: MemberDisk) -> None:
        super().__init__(world, actor, core, Record())
        self.disk = disk
        self._writing: list[raft_io.WriteGroup] = []
        self._proposed = 0
        self._dispatch |= {raft_io.WriteGroup: self._write_group, raft_io.SendEntries: self._send_entries}

    def archived(self, key: tuple[int, int]) -> int | None:
        return self.disk.archive.get(key)

    @property
    def leads(self) -> bool:
        return self.core.core is not None

    @property
    def directing(self) -> CoordinatorCore:
        assert self.core.core is not None
        return self.core.core

    def wiped(self) -> None:
        kept = self.world.random.randrange(len(self._writing) + 1)
        for write in self._writing[:kept]:
            self._to_disk(write)

    def _send(self, action: io.Send) -> None:
        super()._send(action)
        if isinstance(action.message, Vote) and action.message.granted and action.message.binding:
            self.world.watch.group.votes(self.actor, action.message.ballot, action.to)
            self.world.on_phase("voted", self)

    def _emit(self, action: io.Emit) -> None:
        event = action.event
        if isinstance(event, LeadershipTaken):
            self.world.watch.group.leads(self.actor, event.ballot)
        elif isinstance(event, CoordinatorStarted):
            self.world.coordinator = self
        if self.leads:
            super()._emit(action)
        else:  # it may have lost its leadership in this very action
            self.tell(event)
            self.world.watch.emitted(event)

    def _stop(self, action: io.Stop) -> None:
        if not action.failed and action.reason == io.RUN_FINISHED and not self.leads:
            self.tell(ProcessStopped(action.reason))
            self.alive = False
            self.finished = True
            self.world.network.process_died(self)
            return
        super()._stop(action)

    def feed(self, item: object) -> None:
        super().feed(item)
        if self.core.core is not None and self.world.coordinator is self:
            archived = self.core.core.history.archived
            self.world.watch.archived = max(self.world.watch.archived, archived or 0)

    # ------------------------------------------------------------ the record

    def _write_group(self, action: raft_io.WriteGroup) -> None:
        """Write entries. When the leader first writes an entry, this is its proposal."""
        watch = self.world.watch
        for entry in action.entries:
            if self.leads and entry.ballot == action.ballot and isinstance(entry, TermEntry):
                if self.world.coordinator is self and entry.term > self._proposed:
                    watch.takes_term(self.core.standing.term, coordinator_io.WriteTerm(entry.term, entry.rollback_to))
                self._proposed = max(self._proposed, entry.term)
        if action.entries and self.leads:
            self.world.on_phase("deciding", self)
        self._writing.append(action)
        delay = WRITE_S * (0.5 + self.world.random.random())
        self.world.at(self.world.now + delay, self, (self._group_written, None))

    def _group_written(self, _: None) -> None:
        write = self._writing.pop(0)
        self._to_disk(write)
        self.feed(raft_io.GroupWritten(write.number))

    def _to_disk(self, write: raft_io.WriteGroup) -> None:
        disk = self.disk
        before = disk.committed
        disk.write(write)
        for index in range(before, disk.committed):
            entry = disk.entries[index]
            self.world.watch.group.stands(index, entry)
            if isinstance(entry, TermEntry) and entry.rollback_to is not None:
                disk.forget_after(entry.rollback_to)
                self._collecting = -1
        if disk.committed > before and self.leads:
            self.world.on_phase("decided", self)

    def _send_entries(self, action: raft_io.SendEntries) -> None:
        self.world.network.send(self, action.to, self.disk.append(action))

    # ------------------------------------------------------------ the archive

    def _store(self, action: coordinator_io.CollectCheckpoint, shards: dict[int, int]) -> None:
        store(self.disk.archive, action, shards)
        self.disk.files[action.version] = action.digests
        there = {version for _, version in self.disk.archive}
        self.disk.files = {version: files for version, files in self.disk.files.items() if version in there}

    def _stored(self, action: coordinator_io.CollectCheckpoint) -> None:
        self.feed(coordinator_io.ArchiveStored(action.version, action.term, action.digests))
