"""The disk of a member of a group of coordinators: its vote, its log, and its copy of the archive."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.messages import Append, Entry
from swarm.protocol.raft.io import SendEntries, WriteGroup
from swarm.protocol.raft.log import Standing, Stored
from swarm.protocol.raft.raft import BATCH


@dataclass(slots=True)
class MemberDisk:
    ballot: int = 0
    vote: str = ""
    committed: int = 0
    entries: list[Entry] = field(default_factory=list)
    archive: dict[tuple[int, int], int] = field(default_factory=dict)
    """{(stage, version): state}"""
    files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """{version: digests by stage}, for complete versions."""

    def write(self, order: WriteGroup) -> None:
        self.ballot, self.vote, self.committed = order.ballot, order.vote, order.committed
        self.entries[order.first - 1 :] = order.entries

    def stored(self) -> Stored:
        """The state that the member finds when it starts."""
        standing = Standing()
        starts: list[tuple[int, int]] = []
        for index, entry in enumerate(self.entries[: self.committed], 1):
            standing = standing.after(entry)
            if not starts or starts[-1][1] != entry.ballot:
                starts.append((index, entry.ballot))
        tail = tuple(self.entries[self.committed :])
        return Stored(self.ballot, self.vote, self.committed, standing, tuple(starts), tail)

    def append(self, order: SendEntries) -> Append:
        """Return the message that a real driver would make from the core's order to send entries."""
        before = order.first - 1
        entries = tuple(self.entries[before : before + BATCH])
        ballot = self.entries[before - 1].ballot if before else 0
        return Append(order.ballot, before, ballot, entries, order.committed, order.offer)

    def forget_after(self, version: int) -> None:
        """Forget the checkpoints of a rolled-back history."""
        for key in [key for key in self.archive if key[1] > version]:
            del self.archive[key]
        self.files = {held: digests for held, digests in self.files.items() if held <= version}
