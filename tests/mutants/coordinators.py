"""Rules of a group of coordinators: votes, what is durable, who is obeyed."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.protocol.messages import ArchivedEntry, Canvass
from swarm.protocol.peer.leader import Leader
from swarm.protocol.raft.archive_copies import ArchiveCopies
from swarm.protocol.raft.raft import Raft
from swarm.simulation.toy.member_disk import MemberDisk
from tests.mutants.mutant import Mutant, Patch
from tests.mutants.steps import late_open


def _two_votes() -> list[Patch]:
    return [(Raft, "_may_vote_for", lambda self, sender: True)]


def _one_disk_is_enough() -> list[Patch]:
    def commit(self: Raft) -> None:
        self._advance(self._durable)

    return [(Raft, "_commit", commit)]


def _shorter_log_wins() -> list[Patch]:
    judge = Raft._on_canvass

    def long_enough(self: Raft, sender: Any, canvass: Canvass, now: float) -> None:
        judge(self, sender, dataclasses.replace(canvass, last_index=1 << 40, last_ballot=1 << 40), now)

    return [(Raft, "_on_canvass", long_enough)]


def _vote_forgotten() -> list[Patch]:
    stored = MemberDisk.stored
    return [(MemberDisk, "stored", lambda self: dataclasses.replace(stored(self), vote=""))]


def _older_leader_obeyed() -> list[Patch]:
    def whoever(self: Leader, sender: Any, message: Any) -> bool:
        if sender in self.group:
            self.leader = sender
        return sender in self.group

    return [(Leader, "obeys", whoever), *late_open()]


def _own_copy_is_enough() -> list[Patch]:
    """The leader takes a checkpoint for complete when it alone holds it."""
    offer = ArchiveCopies.offer

    def alone(self: ArchiveCopies, record: Raft, now: float) -> Any:
        if self._pending is not None:
            done, self._pending = self._pending, None
            record.propose(ArchivedEntry(record.ballot, done.version, done.term, done.digests))
        return offer(self, record, now)

    return [(ArchiveCopies, "offer", alone)]


COORDINATORS = (
    Mutant("two votes", "a coordinator votes once in a ballot", _two_votes, "election"),
    Mutant("one disk is enough", "a decision stands when a majority has it on disk", _one_disk_is_enough, "group"),
    Mutant("shorter log wins", "who lacks what a voter has is not voted for", _shorter_log_wins, "group"),
    Mutant("vote forgotten", "a vote outlives a restart", _vote_forgotten, "election"),
    Mutant("older leader obeyed", "what comes under an older term is void", _older_leader_obeyed, "group"),
    Mutant("own copy is enough", "a checkpoint is complete when a majority holds it", _own_copy_is_enough, "group"),
)
